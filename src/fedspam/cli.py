"""The command `fedspam`: it reads arguments and calls the library, which is imported when it is needed."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fedspam import __version__

EXIT_CODES = "exit codes: 0 done, 1 something failed or does not hold, 2 wrong arguments"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    options = parser().parse_args(arguments)
    try:
        return options.run(options)
    except KeyboardInterrupt:
        sys.stderr.write("fedspam: stopped\n")
        return 130
    except (OSError, RuntimeError, ValueError) as error:
        sys.stderr.write(f"fedspam: error: {' '.join(str(error).split())}\n")
        return 1


def parser() -> argparse.ArgumentParser:
    command = argparse.ArgumentParser(
        prog="fedspam",
        description="Federated optimization that benefits from clients being alike: SPAM, its variants, its rivals.",
        epilog=f"examples:\n  fedspam reproduce\n  fedspam reproduce --help\n\n{EXIT_CODES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--version", action="version", version=f"fedspam {__version__}")
    commands = command.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_reproduce(commands)
    return command


# --- fedspam reproduce -----------------------------------------------------------------------------------------------


def _add_reproduce(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    command = commands.add_parser(
        "reproduce",
        help="run the paper's experiment and test what it observes",
        description=(
            "Run the paper's ridge regression (section 6): three settings of SPAM, exact prox against\n"
            "1 and 10 local steps. Draws the figure, and puts a number and a verdict to every sentence\n"
            "of the paper's observations. Takes less than a minute; equal arguments give equal curves."
        ),
        epilog=(
            "examples:\n"
            "  fedspam reproduce                              all of it, into runs/reproduce-<date-time>\n"
            "  fedspam reproduce --seeds 3 --out /tmp/try     a quick look\n"
            "  fedspam reproduce --seed 100                   other problems, other draws of clients\n\n"
            "exit codes: 0 every sentence holds, 1 one does not or the run failed, 2 wrong arguments"
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    command.add_argument("--seeds", type=_whole(1), default=20, metavar="N", help="problems to average over (20)")
    command.add_argument(
        "--rounds", type=_whole(8), default=400, metavar="N", help="rounds; the right panel has 2N (400)"
    )
    command.add_argument("--seed", type=_whole(0), default=0, metavar="S", help="the first seed, S+1 the next, ... (0)")
    command.add_argument("--out", type=Path, metavar="FOLDER", help="where the results go (runs/reproduce-<date-time>)")
    command.add_argument("--quiet", action="store_true", help="print the folder and nothing else")
    command.set_defaults(run=_reproduce)


def _reproduce(options: argparse.Namespace) -> int:
    from fedspam.reproduce.terminal import show

    return show(options.out, seeds=options.seeds, rounds=options.rounds, seed=options.seed, quiet=options.quiet)


def _whole(least: int) -> Callable[[str], int]:
    """An argument that must be a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least {least}")
        return value

    return parse
