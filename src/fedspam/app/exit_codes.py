"""The exit codes of all commands, and what ends a command with 1. docs/json.md has them in a table."""

from collections.abc import Mapping

DONE, FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130  # as argparse and shells have the last two

# what ends a command with FAILED besides an error, such as a full disk; the other commands end with it for errors only
FAILURES: Mapping[str, str] = {
    "run": "the run diverged, or too many of its rounds had no effect",
    "reproduce": "a sentence of the paper does not hold",
    "theory": "a bound does not hold",
    "data": "a file of the data set is missing or is not the published one",
}


def verdict(well: bool) -> int:
    """The exit code of a command that did its work and then judged it."""
    return DONE if well else FAILED


def described(command: str = "") -> str:
    """The exit codes, for the help of a command.

    >>> print(described("theory"))
    exit codes:
      0    done
      1    an error, or a bound does not hold
      2    wrong arguments or configuration
      130  interrupted
    """
    failure = f"an error, or {FAILURES[command]}" if command in FAILURES else "an error"
    meanings = {
        DONE: "done",
        FAILED: failure,
        WRONG_USE: "wrong arguments or configuration",
        INTERRUPTED: "interrupted",
    }
    return "\n".join(["exit codes:", *(f"  {code:<3}  {meaning}" for code, meaning in meanings.items())])
