"""What the commands show on a terminal while they run."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn


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
