"""The table of methods, made from the registry: for the terminal, the documentation and programs."""

import dataclasses
import json
import re
from typing import Any

from fedspam.methods import METHODS, Entry

FACTS = ("similarity", "partial", "stateless", "nonsmooth", "nonconvex")
MARKS = {"code": " ‡", "text": "", "no": " †", "own": ""}
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "–"}
COLUMNS: tuple[str, ...] = (
    "key", "method", "constructor", "alike", "partial", "no state", "no L", "non-convex", "estimator", "client",
    "phases", "floats down", "floats up", "reference",
)  # fmt: skip
INTRODUCTION = """\
# Methods

This page is made by `fedspam methods --markdown > docs/methods.md`.

`d` is the number of parameters. Floats are per round and client of the cohort; brackets hold those of a client that
moves alone. ¢: a coin decides whether a round asks everyone, and the floats are those of the other rounds. Phases are
the exchanges of a round that must follow each other.

What the theory of a method covers: *alike*, it gains from similar Hessians; *partial*, a cohort of some clients; *no
L*, losses need not be smooth; *non-convex*, losses need not be convex. *No state*: clients keep nothing between rounds.
(✓): in part.

A method without a mark was compared with the text of its paper, and one with ‡ with its authors' code as well. †:
unverified. Neither the full text of its paper nor its authors' code was at hand; its docstring says what it is made
from.

Two constructors of `fedspam.methods` have no row, and so no name in `fedspam run` and `fedspam compare`. `fedper` sends
only a part of the parameters, so its cost is not a multiple of d, and which part stays on the clients depends on the
model. `buffered` wraps another method.
"""


def ordered_keys() -> list[str]:
    """The keys of all methods: the SPAM family first, the others by their key."""
    return sorted(METHODS, key=lambda key: (not key.startswith("spam"), key))


def cells(key: str) -> list[str]:
    """A method's row of the table."""
    row = METHODS[key]
    coin = " ¢" if row.coin else ""
    facts = (SIGNS[getattr(row, fact)] for fact in FACTS)
    work = (row.estimator, row.oracle, str(row.phases), f"{row.down}{coin}", f"{row.up}{coin}")
    return [key, row.name + MARKS[row.verified], row.build.__name__, *facts, *work, row.reference]


def markdown() -> str:
    """The page of the documentation that lists the methods."""
    lines = [f"| {' | '.join(COLUMNS)} |", "|" + "---|" * len(COLUMNS)]
    for key in ordered_keys():
        first, name, constructor, *middle, reference = cells(key)
        link = re.sub(r"arXiv:(\d\S*\d)", r"[arXiv:\1](https://arxiv.org/abs/\1)", reference)
        lines.append(f"| {' | '.join([f'`{first}`', name, f'`{constructor}`', *middle, link])} |")
    return INTRODUCTION + "\n" + "\n".join(lines) + "\n"


def as_json() -> str:
    """The rows as JSON, for programs."""
    left_out = ("build", "example", "grid")  # code, not facts
    fields = [field.name for field in dataclasses.fields(Entry) if field.name not in left_out]

    def plain(row: Entry) -> dict[str, Any]:
        found = {name: getattr(row, name) for name in fields}
        return found | {"constructor": row.build.__name__, "up": row.up._asdict(), "down": row.down._asdict()}

    return json.dumps({key: plain(METHODS[key]) for key in ordered_keys()}, indent=1, ensure_ascii=False)
