"""`--json` for programs that read: what a command did, as one JSON object of a fixed schema.

`run`, `measure` and `methods` print facts of their own. All other commands print a `Report`.
"""

import argparse
import contextlib
import io
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedspam import __version__

TABLES = ("table.csv", "observations.csv")  # what a folder holds that is small, and that a program reads


@dataclass
class Report:
    """What a command did."""

    command: str
    version: str
    code: int  # the exit code, as in the table of docs/json.md
    output: list[str]  # the lines that the command prints without --json, or with --quiet if it has that
    folder: str | None = None  # of the results
    files: list[str] = field(default_factory=list)  # in that folder
    tables: dict[str, list[dict[str, str]]] = field(default_factory=dict)  # rows of its CSV files, by the file's name


def add_json(command: argparse.ArgumentParser) -> bool:
    """Add --json to a command that has none; whether it had none."""
    if "--json" in command._option_string_actions:
        return False
    command.add_argument("--json", action="store_true", help="print one JSON object that says what was done")
    return True


def reporting(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """Run a command. With --json, collect what it prints, and print a `Report` instead. Errors are as without."""

    def both(options: argparse.Namespace) -> int:
        if not options.json:
            return run(options)
        import msgspec

        from fedspam.app.report.sources import table_of

        if "quiet" in options:
            options.quiet = True
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            code = run(options)
        lines = printed.getvalue().splitlines()
        report = Report(options.line.split()[1], __version__, code, lines)
        if "quiet" in options and lines and Path(lines[-1]).is_dir():
            folder = Path(lines[-1])
            report.folder, report.files = str(folder), sorted(path.name for path in folder.iterdir())
            report.tables = {name: table_of(folder / name)[1] for name in TABLES if name in report.files}
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        return code

    return both
