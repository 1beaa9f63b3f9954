"""Checks of arguments. Every error names the value, the rule and the remedy."""

import numbers
import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from .nearest import did_you_mean
from .strict import GIB

MOST_GENERATED = 4 * GIB  # bytes of what is drawn at once; the drawing itself takes some times as much


def is_number(value: Any) -> bool:
    """Whether a value is a Python or NumPy number, and not an array."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _known(name: str, value: Any) -> Any:
    """The value as a number that can be checked now; None for tracers, whole arrays, schedules and None."""
    if isinstance(value, str):
        raise ValueError(f"{name} = {value!r} is text; it must be a number: leave out the quotes")
    if is_number(value):
        return value
    is_scalar = (isinstance(value, np.ndarray) or _is_device_array(value)) and value.ndim == 0
    return value.item() if is_scalar else None


def _is_device_array(value: Any) -> bool:
    """Whether a value is an array of JAX, and not a tracer. Clients without JAX check numbers too."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def positive(name: str, value: Any, remedy: str = "") -> None:
    known = _known(name, value)
    if known is not None and not known > 0:
        raise ValueError(_message(name, value, "must be greater than 0", remedy))


def between(name: str, value: Any, low: float, high: float, *, open_low: bool = False, remedy: str = "") -> None:
    known = _known(name, value)
    if known is not None and not ((known > low if open_low else known >= low) and known <= high):
        bracket = "(" if open_low else "["
        raise ValueError(_message(name, value, f"must lie in {bracket}{low:g}, {high:g}]", remedy))


def whole(name: str, value: Any, at_least: int, remedy: str = "") -> None:
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < at_least:
        raise ValueError(_message(name, value, f"must be a whole number of at least {at_least}", remedy))


def one_of(name: str, value: Any, allowed: Iterable[str]) -> None:
    allowed = tuple(allowed)
    if value not in allowed:
        rule = f"must be one of {', '.join(map(repr, allowed))}"
        raise ValueError(_message(name, value, rule, did_you_mean(str(value), allowed)))


def memory(what: str, size: int, remedy: str) -> None:
    """Refuse what would take too many bytes before they are allocated."""
    if size > MOST_GENERATED:
        most = f"at most {MOST_GENERATED / GIB:g} GiB are drawn"
        raise ValueError(f"{what} would take {size / GIB:.3g} GiB; {most}: {remedy}")


def params(name: str, value: Any) -> Any:
    """A pytree of finite float arrays, as device arrays; anything else is refused."""
    import jax
    import jax.numpy as jnp

    from . import trees

    leaves, treedef = jax.tree.flatten(value)
    if not leaves:
        raise ValueError(f"{name} has no arrays; give a pytree with at least one float array, such as jnp.zeros(3)")
    checked = []
    for leaf_name, leaf in zip(trees.names(value), leaves, strict=True):
        label = f"{name}.{leaf_name}" if leaf_name else name
        if not isinstance(leaf, jax.Array | np.ndarray | float | int):
            raise ValueError(f"{label} is a {type(leaf).__name__}; parameters must be arrays of floats")
        leaf = jnp.asarray(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise ValueError(f"{label} has dtype {leaf.dtype}; parameters must be floats: use .astype(jnp.float32)")
        bad = int(np.sum(~np.isfinite(np.asarray(leaf))))  # in NumPy: JAX would compile a program for every shape
        if bad:
            raise ValueError(
                f"{label} holds {bad} value{'s' if bad > 1 else ''} that {'are' if bad > 1 else 'is'} NaN or infinite; "
                "start from finite parameters"
            )
        checked.append(leaf)
    return jax.tree.unflatten(treedef, checked)


def same_tree(name: str, value: Any, other_name: str, other: Any) -> None:
    """Both trees have the same structure and their leaves the same shapes."""
    import jax
    import jax.numpy as jnp

    from . import trees

    if jax.tree.structure(value) != jax.tree.structure(other):
        raise ValueError(
            f"{name} has the structure {jax.tree.structure(value)}, and {other_name} {jax.tree.structure(other)}; "
            "they must be the same pytree"
        )
    for leaf_name, a, b in zip(trees.names(value), jax.tree.leaves(value), jax.tree.leaves(other), strict=True):
        if jnp.shape(a) != jnp.shape(b):
            raise ValueError(
                f"{name}{'.' + leaf_name if leaf_name else ''} has shape {jnp.shape(a)}, in {other_name} it has "
                f"{jnp.shape(b)}; they must agree"
            )


def _message(name: str, value: Any, rule: str, remedy: str) -> str:
    return f"{name} = {value!r} {rule}" + (f"; {remedy}" if remedy else "")
