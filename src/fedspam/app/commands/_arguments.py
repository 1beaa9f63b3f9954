"""The parser of the commands, arguments that several of them have, and types of arguments."""

import argparse
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from fedspam._internal.nearest import nearest
from fedspam.app import exit_codes, machine
from fedspam.app.appearance import STYLES

LONGEST_PART = 255  # bytes, as file systems have it
MOST_SEEDS = 10_000
UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")
CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")
DIGITS = re.compile(r"-?[0-9]{1,20}")  # int() takes more: digits of other scripts, underscores, spaces
DOTTED = re.compile(r"--([a-z]+\.[\w.]+)(?:=(.*))?", re.DOTALL)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help as it is written, with the default of each argument behind it."""

    def _get_help_string(self, action: argparse.Action) -> str:
        told = action.nargs != 0 and isinstance(action.default, int | float | str | Path)
        return f"{action.help} (%(default)s)" if told else action.help or ""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line and name the nearest flag or choice. Flags cannot be abbreviated."""

    def __init__(self, **options: Any) -> None:
        defaults = {"formatter_class": _Help, "allow_abbrev": False}
        super().__init__(**defaults | options)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Refuse unknown arguments here: the parser of all commands would suggest the flags of any of them."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        unknown, choice = UNKNOWN.search(message), CHOICE.search(message)
        near = None
        if unknown and unknown[1].startswith("-"):
            flags = {name.lstrip("-"): name for name in options(self)}  # two equal dashes do not make names alike
            near = flags.get(nearest(unknown[1].partition("=")[0].lstrip("-"), flags) or "")
        elif choice:
            near = nearest(choice[1], [word.strip(" '") for word in choice[2].split(",")])
        hint = f"did you mean {near}?" if near else f"see {self.prog} --help"
        self.exit(exit_codes.WRONG_USE, f"{self.prog}: error: {message}; {hint}\n")


def add_command(commands: "argparse._SubParsersAction[Parser]", module: ModuleType) -> None:
    """Add the command of a module. The module's docstring is its help; the first line is for the list of commands."""
    head, _, text = (module.__doc__ or "").strip().partition("\n\n")
    description, _, epilog = text.partition("\n\n")
    name, words = module.__name__.rpartition(".")[2], head.partition(": ")[2].rstrip(".")
    epilog = f"{epilog}\n\n{exit_codes.described(name)}".lstrip()
    command = commands.add_parser(name, help=words, description=description, epilog=epilog)
    module.add(command)
    command.set_defaults(run=machine.reporting(module.run) if machine.add_json(command) else module.run)


def options(parser: argparse.ArgumentParser) -> list[str]:
    """The flags of a parser."""
    return [name for action in parser._actions for name in action.option_strings]


def dotted(words: Sequence[str]) -> list[str]:
    """Flags of the form --section.key VALUE in a form that argparse can parse: --set=section.key=VALUE.

    >>> dotted(["run", "a.toml", "--method.cohort_size", "20", "--method.weighted", "--out", "x"])
    ['run', 'a.toml', '--set=method.cohort_size=20', '--set=method.weighted=true', '--out', 'x']
    """
    found, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        match = DOTTED.fullmatch(word)
        if match is None:
            found.append(word)
            continue
        value = match[2]
        if value is None:  # a flag without a value is true
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "true"
        found.append(f"--set={match[1]}={value}")
    return found


def setting(text: str) -> tuple[str, str]:
    """An argument of the form SECTION.KEY=VALUE."""
    name, equals, value = text.partition("=")
    if not equals or "." not in name:
        raise argparse.ArgumentTypeError(f"{text!r} must have the form SECTION.KEY=VALUE, such as run.rounds=200")
    return name.strip(), value.strip()


def listed(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    """The type of an argument that is a list with commas."""

    def parse(text: str) -> list[object]:
        try:
            return [kind(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers with commas between them") from None

    return parse


def file_path(text: str) -> Path:
    """The type of an argument that is a file or a folder."""
    longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
    if not text or "\0" in text or longest > LONGEST_PART:
        shown = text if len(text) <= 50 else f"{text[:50]}..."
        raise argparse.ArgumentTypeError(
            f"{shown!r} must be a path: not empty, without NUL, and no part longer than {LONGEST_PART} bytes"
        )
    return Path(text)


def whole(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """The type of an argument that is a whole number between two limits."""

    def parse(text: str) -> int:
        value = int(text) if DIGITS.fullmatch(text) else least - 1
        if not least <= value <= most:
            shown = text if len(text) <= 50 else f"{text[:50]}..."
            raise argparse.ArgumentTypeError(f"{shown!r} must be a whole number from {least} to {most}")
        return value

    return parse


def real(rule: str, fits: Callable[[float], bool]) -> Callable[[str], float]:
    """The type of an argument that is a number for which the rule holds."""

    def parse(text: str) -> float:
        try:  # Python would also take digits of other scripts, and underscores
            value = float(text) if text.isascii() and "_" not in text else math.nan
        except ValueError:
            value = math.nan
        if not fits(value):
            raise argparse.ArgumentTypeError(f"{text!r} must be {rule}")
        return value

    return parse


positive = real("a number greater than 0", lambda value: 0 < value < math.inf)
finite = real("a number, such as 0.01: neither infinite nor NaN", math.isfinite)

# arguments of several commands
SHARED: Mapping[str, Mapping[str, Any]] = {
    "file": {"nargs": "?", "type": file_path, "metavar": "FILE", "help": "a TOML file of `fedspam run`: your own data"},
    "--set": {
        "dest": "settings", "action": "append", "type": setting, "default": [], "metavar": "SECTION.KEY=VALUE",
        "help": "a setting of the file; the same as --SECTION.KEY VALUE",
    },
    "--data": {"type": file_path, "metavar": "FOLDER", "help": "the data sets ($FEDSPAM_DATA, else ./data)"},
    "--method-file": {
        "type": file_path, "metavar": "FILE.py",
        "help": "Python code that registers a method of your own; it is run (docs/choosing.md)",
    },
    "--style": {
        "choices": tuple(STYLES),
        "help": "size and fonts of the figures ("
        + "; ".join(f"{name}: {style.about}, {style.width:g} in" for name, style in STYLES.items()) + ")",
    },
    "--devices": {
        "type": whole(1, 1024), "metavar": "N",
        "help": "devices that share the runs (all that JAX finds); a CPU is divided into N",
    },
    "--device": {"choices": ("cpu", "gpu", "tpu"), "help": "where to compute (the best that JAX finds)"},
    "--no-cache": {"dest": "cache", "action": "store_false", "help": "neither keep nor use compiled programs"},
    "--out": {"type": file_path, "metavar": "FOLDER", "help": "the folder of the results (runs/COMMAND-<date-time>)"},
    "--quiet": {"action": "store_true", "help": "print only the folder"},
}  # fmt: skip


def add_shared(command: argparse.ArgumentParser, *names: str) -> None:
    """Add arguments of several commands, as `SHARED` describes them."""
    for name in names:
        text = SHARED[name]["help"].replace("COMMAND", command.prog.split()[-1])
        command.add_argument(name, **{**SHARED[name], "help": text})
