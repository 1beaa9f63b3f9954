"""The name that a misspelled name was probably meant to be."""

import difflib
from collections.abc import Iterable


def nearest(name: str, allowed: Iterable[str]) -> str | None:
    """The allowed name that is closest to a name, or None if none is close.

    >>> nearest("cohrt", ["cohort", "step_size"])
    'cohort'
    """
    names = {each.lower(): each for each in allowed}
    found = difflib.get_close_matches(name.lower(), names, n=1, cutoff=0.55)
    return names[found[0]] if found else None


def did_you_mean(name: str, allowed: Iterable[str], otherwise: str = "") -> str:
    """A question about the nearest name, for the end of an error; another hint if no name is close.

    >>> did_you_mean("cohrt", ["cohort", "step_size"])
    "did you mean 'cohort'?"
    """
    near = nearest(name, allowed)
    return f"did you mean {near!r}?" if near else otherwise
