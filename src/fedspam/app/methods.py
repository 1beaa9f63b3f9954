"""`fedspam methods`: the table of all methods on a terminal, as Markdown or as JSON."""

from rich.console import Console
from rich.table import Table

from fedspam.methods import table

WIDTH = 132  # least width of the table where the output is no terminal


def show(form: str) -> int:
    """Print the table in one of its forms, and return the exit code 0."""
    console = Console()
    if form != "table":
        text = table.markdown() if form == "markdown" else table.as_json() + "\n"
        console.print(text, end="", markup=False, highlight=False, emoji=False, soft_wrap=True)
        return 0
    shown = Table(title=f"{len(table.ordered_keys())} methods", title_justify="left")
    columns = [name for name in table.COLUMNS if name not in ("method", "constructor", "reference")]
    for name in columns:
        shown.add_column(name.replace("-", " "), no_wrap=name in ("key", "floats down", "floats up"))
    for key in table.ordered_keys():
        row = dict(zip(table.COLUMNS, table.cells(key), strict=True))
        shown.add_row(*(row[name] for name in columns))
    if not console.is_terminal:
        console = Console(width=max(console.width, WIDTH))
    console.print(shown)
    console.print("✓ covered by its theory, (✓) in part; ¢ a coin decides whether all clients take part instead")
    return 0
