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
