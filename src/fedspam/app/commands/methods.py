"""`fedspam methods`: list all methods with their facts and costs.

List all methods: what their theory covers, what they send, and their key for `compare`.
"""

import argparse

WIDTH = 132  # least width of the table where the output is not a terminal


def add(command: argparse.ArgumentParser) -> None:
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="print docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    command.set_defaults(form="table")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from fedspam.methods import table

    console = Console()
    if options.form != "table":
        text = table.markdown() if options.form == "markdown" else table.as_json() + "\n"
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
