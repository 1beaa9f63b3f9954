"""The table of methods, as the registry has it: for a terminal, for the documents, for programs."""

import dataclasses
import json
import re
from typing import Any

from fedspam.algorithms import METHODS, Method

FACTS = ("similarity", "partial", "stateless", "nonsmooth", "nonconvex")
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "–"}
COLUMNS: tuple[str, ...] = (
    "key", "method", "constructor", "alike", "partial", "no state", "no L", "non-convex", "estimator", "client",
    "phases", "floats down", "floats up", "reference",
)  # fmt: skip
INTRODUCTION = """\
# Methods

This page is made by `fedspam methods --markdown > docs/methods.md`.

`d` is the number of parameters. Floats are those of one round for each client that is asked; in brackets what the one
client that moves alone takes besides. Where a coin decides whether everyone is asked, they are those of the other
rounds, marked ¢. Phases are trips to clients that must follow each other.

What a method's theory covers: *alike*, it gains from alike Hessians; *partial*, a cohort of some clients; *no L*,
losses need not be smooth; *non-convex*, nor convex. *No state*: clients remember nothing. (✓): in part.
"""


def keys() -> list[str]:
    """All methods: the SPAM family first, the others by the name one types."""
    return sorted(METHODS, key=lambda key: (not key.startswith("spam"), key))


def cells(key: str) -> list[str]:
    """A method's row of the table."""
    row = METHODS[key]
    coin = " ¢" if row.coin else ""
    facts = (SIGNS[getattr(row, fact)] for fact in FACTS)
    costs = (f"{row.down}{coin}", f"{row.up}{coin}")
    return [
        key,
        row.name,
        row.build.__name__,
        *facts,
        row.estimator,
        row.oracle,
        str(row.phases),
        *costs,
        row.reference,
    ]


def markdown() -> str:
    """The page of the documents that lists the methods."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for key in keys():
        first, name, constructor, *middle, reference = cells(key)
        link = re.sub(r"arXiv:(\d\S*\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", reference)
        lines.append(f"| {' | '.join([f'`{first}`', name, f'`{constructor}`', *middle, link])} |")
    return INTRODUCTION + "\n" + "\n".join(lines) + "\n"


def as_json() -> str:
    """The rows as JSON, for programs."""
    left_out = ("build", "example", "grid")  # what is no fact but code
    fields = [field.name for field in dataclasses.fields(Method) if field.name not in left_out]

    def plain(row: Method) -> dict[str, Any]:
        found = {name: getattr(row, name) for name in fields}
        return found | {"constructor": row.build.__name__, "up": row.up._asdict(), "down": row.down._asdict()}

    return json.dumps({key: plain(METHODS[key]) for key in keys()}, indent=1, ensure_ascii=False)


def show(form: str = "table") -> int:
    """Print the table: 'table' for a terminal, 'markdown' or 'json'."""
    from rich.console import Console
    from rich.table import Table

    if form != "table":
        Console(soft_wrap=True).print(
            markdown() if form == "markdown" else as_json(), end="" if form == "markdown" else "\n", markup=False,
            highlight=False, emoji=False,
        )  # fmt: skip
        return 0
    shown = Table(title=f"{len(METHODS)} methods", title_justify="left")
    told = [name for name in COLUMNS if name not in ("method", "constructor", "reference")]
    for name in told:
        shown.add_column(name.replace("-", " "), no_wrap=name in ("key", "floats down", "floats up"))
    for key in keys():
        row = dict(zip(COLUMNS, cells(key), strict=True))
        shown.add_row(*(row[name] for name in told))
    console = Console()
    # a table that does not fit is wider than the window rather than squeezed
    console = Console(width=max(console.width, 132)) if not console.is_terminal else console
    console.print(shown)
    console.print("✓ covered by its theory, (✓) in part; ¢ a coin decides whether everyone is asked instead")
    return 0
