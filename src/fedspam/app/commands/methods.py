"""`fedspam methods`: the table of all methods."""

import argparse

from fedspam.app.commands._arguments import Commands


def add(commands: Commands) -> None:
    command = commands.add_parser(
        "methods",
        help="list all methods with their facts and costs",
        description="List all methods: what their theory covers, what they send, and their key for `compare`.",
    )
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="for programs")
    command.set_defaults(run=run, form="table")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from fedspam.methods import table

    if options.form != "table":
        text = table.markdown() if options.form == "markdown" else table.as_json() + "\n"
        Console(soft_wrap=True).print(text, end="", markup=False, highlight=False, emoji=False)
        return 0
    shown = Table(title=f"{len(table.ordered_keys())} methods", title_justify="left")
    columns = [name for name in table.COLUMNS if name not in ("method", "constructor", "reference")]
    for name in columns:
        shown.add_column(name.replace("-", " "), no_wrap=name in ("key", "floats down", "floats up"))
    for key in table.ordered_keys():
        row = dict(zip(table.COLUMNS, table.cells(key), strict=True))
        shown.add_row(*(row[name] for name in columns))
    console = Console()
    # a table that does not fit is wider than the window rather than squeezed
    console = Console(width=max(console.width, 132)) if not console.is_terminal else console
    console.print(shown)
    console.print("✓ covered by its theory, (✓) in part; ¢ a coin decides whether everyone is asked instead")
    return 0
