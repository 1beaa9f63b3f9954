"""Vector algebra on pytrees of parameters, and the decorator that makes a dataclass one."""

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, Key as KeyArray, PyTree

from fedspam._internal import checks
from fedspam._internal.brief import brief

T = TypeVar("T")

Params = PyTree[Float[Array, "..."]]
Scalar = Float[Array, ""]
Key = KeyArray[Array, ""]


def static(*, converter: Callable[..., Any] | None = None, **options: Any) -> Any:
    """A field that belongs to the structure: another value needs another compiled program."""
    return dataclasses.field(metadata={"static": True, "converter": converter}, **options)


def dynamic(*, converter: Callable[..., Any], **options: Any) -> Any:
    """A field of numbers, which holds what the converter makes of the value and the field's name."""
    return dataclasses.field(metadata={"converter": converter}, **options)


def count(
    at_least: int = 1, remedy: str = "", *, at_most: int | None = None, or_none: bool = False, **options: Any
) -> Any:
    """A static field: a whole number."""

    def check(name: str, value: Any) -> None:
        if not (or_none and value is None):
            checks.whole(name, value, at_least, remedy)
            checks.between(name, value, at_least, math.inf if at_most is None else at_most)

    return static(converter=_checked(check), **options)


def choice(*allowed: str, **options: Any) -> Any:
    """A static field: one of a few texts."""
    return static(converter=_checked(lambda name, value: checks.one_of(name, value, allowed)), **options)


def number(
    low: float, high: float = math.inf, *, open_low: bool = False, remedy: str = "", fixed: bool = False, **options: Any
) -> Any:
    """A dynamic field, or a static one if `fixed`: a number of an interval. None passes."""
    check = functools.partial(checks.between, low=low, high=high, open_low=open_low, remedy=remedy)
    return (static if fixed else dynamic)(converter=_checked(check), **options)


def positive(remedy: str = "", *, fixed: bool = False, **options: Any) -> Any:
    """A dynamic field, or a static one if `fixed`: a number above 0. None passes."""
    check = functools.partial(checks.positive, remedy=remedy)
    return (static if fixed else dynamic)(converter=_checked(check), **options)


def _checked(check: Callable[[str, Any], None]) -> Callable[[Any, str], Any]:
    """The converter that leaves a value as it is, if the check passes."""

    def convert(value: Any, name: str) -> Any:
        check(name, value)
        return value

    return convert


@dataclass_transform(
    frozen_default=True, field_specifiers=(static, dynamic, count, choice, number, positive, dataclasses.field)
)
def struct(cls: type[T]) -> type[T]:
    """A frozen dataclass that is also a pytree; numbers and arrays are leaves, `static` fields are not.

    Fields are converted and checked first, then ``__post_init__`` runs. Neither happens where JAX rebuilds the struct.
    """
    _convert_first(cls)
    made: Any = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    if cls.__repr__ is object.__repr__:
        made.__repr__ = brief
    fields = dataclasses.fields(made)
    data = [field.name for field in fields if not field.metadata.get("static")]
    fixed = [field.name for field in fields if field.metadata.get("static")]

    # Comparison includes the class. JAX's own `register_dataclass` leaves it out: there, structures of different
    # classes with equal fields are equal (jaxlib 0.10.2), and a compiled function may take one for the other.
    def flatten(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        return [getattr(tree, name) for name in data], (made, *(getattr(tree, name) for name in fixed))

    def with_keys(tree: Any) -> tuple[list[Any], tuple[Any, ...]]:
        leaves, rest = flatten(tree)
        return list(zip(map(jax.tree_util.GetAttrKey, data), leaves, strict=True)), rest

    def unflatten(rest: tuple[Any, ...], leaves: Any) -> Any:
        tree = object.__new__(made)
        for name, value in (*zip(data, leaves, strict=True), *zip(fixed, rest[1:], strict=True)):
            object.__setattr__(tree, name, value)
        return tree

    jax.tree_util.register_pytree_with_keys(made, with_keys, unflatten, flatten)
    return made


def _convert_first(cls: Any) -> None:
    """Let ``__post_init__`` begin with the converters of the fields."""
    own = {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)}
    converters = {name: field.metadata.get("converter") for name, field in own.items()}
    if not any(converters.values()):
        return
    check_together = getattr(cls, "__post_init__", None)

    def convert_and_check(self: Any) -> None:
        for name, converter in converters.items():
            if converter is not None:
                object.__setattr__(self, name, converter(getattr(self, name), name))
        if check_together is not None:
            check_together(self)

    cls.__post_init__ = convert_and_check


def add(a: Params, b: Params) -> Params:
    return jax.tree.map(jnp.add, a, b)


def subtract(a: Params, b: Params) -> Params:
    return jax.tree.map(jnp.subtract, a, b)


def scale(factor: Any, a: Params) -> Params:
    """``factor * a``, in the dtype of `a` whatever that of the factor."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, a)


def axpy(factor: Any, a: Params, b: Params) -> Params:
    """``factor * a + b``, in the dtype of `a`."""
    return jax.tree.map(lambda u, v: jnp.asarray(factor, u.dtype) * u + v, a, b)


def divide(a: Params, divisor: Any) -> Params:
    return jax.tree.map(lambda leaf: leaf / jnp.asarray(divisor, leaf.dtype), a)


def zeros_like(a: Params) -> Params:
    return jax.tree.map(jnp.zeros_like, a)


def dot(a: Params, b: Params) -> Scalar:
    products = jax.tree.map(jnp.vdot, a, b)
    return jax.tree.reduce(jnp.add, products)


def squared_norm(a: Params) -> Scalar:
    return dot(a, a)


def norm(a: Params) -> Scalar:
    return jnp.sqrt(squared_norm(a))


def where(condition: Any, a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda u, v: jnp.where(condition, u, v), a, b)


def finite(a: PyTree) -> Any:
    """Whether every number of the tree, and the sum of their squares, is finite; integers and booleans always are.

    The square catches both NaN and infinity in one dot product, which is cheaper than checking each number. Half
    precision is summed in single precision, where finite numbers cannot overflow.
    """
    leaves = map(jnp.asarray, jax.tree.leaves(a))
    floats = [jnp.ravel(leaf) for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    wide = lambda leaf: jnp.promote_types(leaf.dtype, jnp.float32)
    dots = [jnp.vdot(leaf, leaf, preferred_element_type=wide(leaf)) for leaf in floats]
    return functools.reduce(jnp.logical_and, map(jnp.isfinite, dots), jnp.array(True))


def is_report(part: Any) -> bool:
    """Whether the type of a part says ``report = True``: it is recorded and never reaches the state."""
    return getattr(type(part), "report", False)


def size(a: PyTree) -> int:
    """The number of scalars in the tree."""
    return sum(leaf.size for leaf in jax.tree.leaves(a))


def names(a: PyTree) -> list[str]:
    """A readable name for each leaf: ``layers.0.kernel``, in the order of ``jax.tree.leaves``."""
    paths, _ = jax.tree_util.tree_flatten_with_path(a)
    return [path_name(path) for path, _ in paths]


def path_name(path: Any) -> str:
    """The name of one leaf, from its path."""
    return jax.tree_util.keystr(path, simple=True, separator=".")


def matching(a: PyTree, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the leaves that match one of the patterns; each pattern must match one."""
    known = names(a)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in known):
            raise ValueError(f"{pattern!r} matches no parameter; the model has {', '.join(known)}")
    return tuple(name for name in known if any(fnmatchcase(name, pattern) for pattern in patterns))


def split(a: PyTree, apart: Sequence[str]) -> tuple[PyTree, PyTree]:
    """The tree without the leaves of these names, and the tree with them alone; None is where a leaf is missing."""
    leaves, structure = jax.tree.flatten(a)
    away = [name in apart for name in names(a)]
    rest = [None if one else leaf for one, leaf in zip(away, leaves, strict=True)]
    taken = [leaf if one else None for one, leaf in zip(away, leaves, strict=True)]
    return jax.tree.unflatten(structure, rest), jax.tree.unflatten(structure, taken)


def combine(a: PyTree, b: PyTree) -> PyTree:
    """The whole of two trees of `split`."""
    return jax.tree.map(lambda u, v: v if u is None else u, a, b, is_leaf=lambda leaf: leaf is None)


def vectorize(a: Params) -> tuple[Float[Array, " d"], Callable[[Float[Array, " d"]], Params]]:
    """The tree as one vector, and the function that restores it."""
    return ravel_pytree(a)
