"""What the commands' arguments have in common."""

import argparse
from collections.abc import Callable
from typing import TypeAlias

EXIT_CODES = "exit codes: 0 done, 1 something failed or does not hold, 2 wrong arguments"

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def listed(kind: Callable[[str], object]) -> Callable[[str], list[object]]:
    """An argument that is a list with commas."""

    def parse(text: str) -> list[object]:
        try:
            return [kind(part.strip()) for part in text.split(",") if part.strip()]
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} must be numbers with commas between them") from None

    return parse


def whole(least: int) -> Callable[[str], int]:
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
