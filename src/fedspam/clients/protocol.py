"""The protocols of a client and a population, and how ids are drawn."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, UInt32

from fedspam._internal import checks, prng
from fedspam._internal.trees import Params, Scalar

Ids = UInt32[Array, " cohort"]
Loss = Callable[..., Any]


class Oracle(Protocol):
    """One client's loss f_xi, differentiable in the parameters; the key, if given, chooses the minibatch."""

    @property
    def weight(self) -> Any:
        """The number of the client's examples, or 1."""
        ...

    def __call__(self, params: Params, key: Key[Array, ""] | None = None) -> Scalar: ...


class Population(Protocol):
    """A distribution over clients: it draws ids, and makes the client of an id on demand."""

    @property
    def size(self) -> int | None:
        """How many clients there are; None if endless."""
        ...

    def sample(self, key: Key[Array, ""], count: int) -> Ids: ...

    def client(self, id: UInt32[Array, ""]) -> Oracle: ...


def draw(key: Key[Array, ""], count: int, size: int, replace: bool) -> Ids:
    """`count` uniform ids below `size`: distinct unless `replace`, at a cost that grows with `count` alone."""
    checks.whole("cohort size", count, 1)
    if replace:
        return jax.random.bits(key, (count,), jnp.uint32) % jnp.uint32(size)
    if count > size:
        raise ValueError(
            f"cohort size = {count} is larger than the population of {size} clients; "
            f"draw at most {size}, or sample with replace=True"
        )
    if count == 1:
        return prng.index(key, size)[None]
    return prng.permuted(key, jnp.arange(count, dtype=jnp.uint32), size)
