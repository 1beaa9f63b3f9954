"""`fedspam methods`: list all methods with their facts and costs.

List all methods: what their theory covers, what they send, and their key for `compare`. With a key, tell when to use
that method, and its facts.

examples:
  fedspam methods             all methods
  fedspam methods scaffold    when to use SCAFFOLD, and what it costs
"""

import argparse
from typing import Any

from fedspam._internal.nearest import did_you_mean
from fedspam.app import UsageError

WIDTH = 132  # least width of the table where the output is not a terminal


def add(command: argparse.ArgumentParser) -> None:
    command.add_argument("key", nargs="?", metavar="METHOD", help="a key of this list (all methods)")
    form = command.add_mutually_exclusive_group()
    form.add_argument("--markdown", dest="form", action="store_const", const="markdown", help="print docs/methods.md")
    form.add_argument("--json", dest="form", action="store_const", const="json", help="print JSON")
    command.set_defaults(form="table")


def run(options: argparse.Namespace) -> int:
    from rich.console import Console
    from rich.table import Table

    from fedspam.methods import METHODS, table

    if options.key is not None and options.key not in METHODS:
        raise UsageError(
            f"method {options.key!r} is unknown; {did_you_mean(options.key, METHODS, 'see fedspam methods')}"
        )
    if options.key is not None and options.form == "markdown":
        raise UsageError("--markdown prints the page of all methods; leave out the key")
    console = Console()
    if options.key is not None and options.form == "table":
        described(console, options.key)
        return 0
    if options.form != "table":
        text = table.markdown() if options.form == "markdown" else table.as_json(options.key) + "\n"
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


def described(console: Any, key: str) -> None:
    """When to use one method, and its facts."""
    from rich.table import Table
    from rich.text import Text

    from fedspam.methods import METHODS, table
    from fedspam.methods.when import WHEN

    console.print(Text(METHODS[key].name, style="bold"))
    console.print(Text(WHEN.get(key, "").replace("`", "")), width=min(console.width, 100))
    console.print()
    shown = Table(show_header=False, box=None)
    for name, fact in table.facts(key).items():
        shown.add_row(name, Text(fact))
    console.print(shown)
    console.print(
        "✓ covered by its theory, (✓) in part; d is the number of parameters; in brackets what one client alone sends"
    )
