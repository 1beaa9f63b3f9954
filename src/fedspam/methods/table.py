"""The table of methods, made from the registry: for the terminal, the documentation and programs."""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

from fedspam.methods import METHODS, Entry
from fedspam.methods.when import FAMILIES, FIRST, WHEN

FACTS = ("similarity", "partial", "stateless", "nonsmooth", "nonconvex")
MARKS = {"code": " ‡", "text": "", "no": " †", "own": ""}
SIGNS = {"yes": "✓", "partly": "(✓)", "no": "–"}
COLUMNS: tuple[str, ...] = (
    "key", "method", "constructor", "alike", "partial", "no state", "no L", "non-convex", "estimator", "client",
    "phases", "floats down", "floats up", "reference",
)  # fmt: skip
MEANINGS = (
    "gains from similar clients", "works with a cohort of some clients", "clients keep no state",
    "losses need not be smooth", "losses need not be convex",
)  # fmt: skip
VERIFIED = {
    "code": "the text of its paper and its authors' code",
    "text": "the text of its paper",
    "no": "neither the text of its paper nor its authors' code: unverified",
    "own": "–",
}
INTRODUCTION = """\
# Methods

This page is made by `fedspam methods --markdown > docs/methods.md`.

Each method has a page with its formula, its arguments, what its theory covers, and what a round sends. In the terminal,
`fedspam methods` lists these facts, and `fedspam methods spam_pp` those of one method. The word in code is its
*key*, for `fedspam run`, `fedspam compare` and `METHODS`.

A method without a mark was compared with the text of its paper, and one with ‡ with its authors' code as well. †:
unverified. Neither the full text of its paper nor its authors' code was at hand; its docstring says what it is made
from.
"""
FIRST_TEN = """\
## The ten to know first

[Choosing a method](choosing.md) says which of them suits your clients, and why.
"""
NO_ROW = """\
`fedper` and `buffered` of `fedspam.methods` have no row, and so no name in `fedspam run` and `fedspam compare`.
`fedper` sends a part of the parameters, so its cost is not a multiple of d, and which part stays on the clients depends
on the model. `buffered` wraps another method.
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


def facts(key: str) -> dict[str, str]:
    """What is known about one method: what its theory covers, what it sends, and where it comes from."""
    row = METHODS[key]
    return {
        "key": key,
        "constructor": f"fedspam.methods.{row.build.__name__}",
        "family": next((title for title, (_, keys) in FAMILIES.items() if key in keys), "–"),
        "estimate of the gradient": row.estimator,
        "what a client does": row.oracle,
        "trips to clients per round": str(row.phases),
        "floats down, per client": str(row.down),
        "floats up, per client": str(row.up),
        **{label: SIGNS[getattr(row, fact)] for fact, label in zip(FACTS, MEANINGS, strict=True)},
        "compared with": VERIFIED[row.verified],
        "reference": row.reference,
    }


def linked(key: str) -> str:
    """The name of a method as a link to its page, with its mark."""
    return f"[{METHODS[key].name}](methods/{key}.md){MARKS[METHODS[key].verified]}"


def markdown() -> str:
    """The page of the documentation that lists the methods by family, with when to use each."""

    def rows(keys: Iterable[str]) -> list[str]:
        lines = [f"| {linked(key)} | `{key}` | {WHEN.get(key, '')} |" for key in keys if key in METHODS]
        return ["| method | key | when to use it |", "|---|---|---|", *lines, ""]

    parts = [INTRODUCTION, FIRST_TEN, *rows(FIRST)]
    for title, (shared, keys) in FAMILIES.items():
        parts += [f"## {title}", "", shared, "", *rows(keys)]
    return "\n".join([*parts, NO_ROW])


def as_json(only: str | None = None) -> str:
    """The rows, or one of them, as JSON, for programs."""
    left_out = ("build", "example", "grid")  # code, not facts
    fields = [field.name for field in dataclasses.fields(Entry) if field.name not in left_out]

    def plain(row: Entry) -> dict[str, Any]:
        found = {name: getattr(row, name) for name in fields}
        return found | {"constructor": row.build.__name__, "up": row.up._asdict(), "down": row.down._asdict()}

    keys = ordered_keys() if only is None else [only]
    return json.dumps({key: plain(METHODS[key]) for key in keys}, indent=1, ensure_ascii=False)
