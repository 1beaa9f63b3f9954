"""Warnings for names that changed. The old name works for one minor release after the release that warns."""

import functools
import warnings
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated_name(old: str, new: str, removed_in: str) -> None:
    """Warn that a name of a module changed. Call it in the module's ``__getattr__``.

    Arguments:
        old: the old name with its module.
        new: the new name with its module.
        removed_in: the version that no longer has the old name.

    >>> def __getattr__(name):
    ...     if name == "Circle":
    ...         deprecated_name("shapes.Circle", "shapes.Disk", "0.3")
    ...         return "the disk"
    ...     raise AttributeError(name)
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     __getattr__("Circle")
    'the disk'
    >>> str(caught[0].message)
    'shapes.Circle is now shapes.Disk; the old name goes in version 0.3'
    """
    _warn(old, new, removed_in, stacklevel=4)


def renamed_argument(old: str, new: str, removed_in: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function accept an argument under its old name, with a warning.

    >>> @renamed_argument("gamma", "step_size", "0.3")
    ... def step(step_size):
    ...     return step_size
    >>> with warnings.catch_warnings(record=True, action="always") as caught:
    ...     step(gamma=0.5)
    0.5
    >>> str(caught[0].message)
    'step(gamma=...) is now step(step_size=...); the old name goes in version 0.3'
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        name = getattr(function, "__name__", repr(function))

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            if old in kwargs:
                if new in kwargs:
                    raise TypeError(f"{name}() got {old!r} and {new!r}, two names of one argument; give {new!r} alone")
                _warn(f"{name}({old}=...)", f"{name}({new}=...)", removed_in, stacklevel=3)
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return wrapper

    return decorate


def _warn(old: str, new: str, removed_in: str, stacklevel: int) -> None:
    """Warn at the line that uses the old name, `stacklevel` frames above."""
    text = f"{old} is now {new}; the old name goes in version {removed_in}"
    warnings.warn(text, DeprecationWarning, stacklevel=stacklevel)
