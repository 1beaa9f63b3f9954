"""What the commands show on a terminal: a progress bar while they run, then tables and the folder of their results."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Column, Table


def progress_bar(quiet: bool, *columns: ProgressColumn, console: Console | None = None) -> Progress:
    """A progress bar on stderr that disappears at its end: description, bar, count, more columns, time remaining."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True) if console is None else console,
        transient=True,
        disable=quiet,
    )


def numbers_table(
    header: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    title: str | None = None,
    no_wrap: bool = False,
    **options: Any,
) -> Table:
    """A table whose first column names the rows and whose other columns are numbers, aligned to the right."""
    names = [Column(name, justify="right" if number else "left", no_wrap=no_wrap) for number, name in enumerate(header)]
    shown = Table(*names, title=title, title_justify="left", **options)
    for row in rows:
        shown.add_row(*map(str, row))
    return shown


def print_plain(console: Console, text: str) -> None:
    """Print a text as it is: paths keep their brackets, and long lines stay one line."""
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def print_folder(console: Console, folder: Path, quiet: bool, files: Sequence[str] = ()) -> None:
    """Print a folder with its files, by default all that are in it; or, if quiet, the folder alone."""
    there = files or sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
    print_plain(console, str(folder) if quiet else f"{folder}: {', '.join(there)}")
