"""Methods that stand for all others where a test is about what every kind of round shares."""

from typing import Any

from fedspam.methods import METHODS


def parts(method: Any) -> set[Any]:
    """What its round is made of: its class, and the estimator and the movers of one that is put together."""
    return {type(method), type(getattr(method, "estimator", None)), getattr(method, "movers", None)}


def kinds() -> list[str]:
    """The methods with a part that no method before them in the table has: each distinct round once."""
    found, seen = list[str](), set[Any]()
    for name, row in METHODS.items():
        if not (new := parts(row.make())) <= seen:
            found.append(name)
            seen |= new
    return found


KINDS = kinds()
