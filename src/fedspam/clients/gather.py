"""Rows of large arrays, at a cost independent of the size of the arrays.

On a CPU, XLA estimates the cost of indexing that is fused with other work by the size of the whole array, and splits it
among all threads: with three million small clients a round took three times as long as with a thousand. Slices are
estimated correctly. ``vmap`` would turn slices into indexing, so here they are taken one by one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Integer, PyTree

UNROLLED = 4  # at most so many slices are taken without a loop


def runs(arrays: PyTree[Array], starts: Integer[Array, "*starts"], length: int) -> PyTree[Array]:
    """``array[start : start + length]`` for every start, of every array; the slice must lie within it.

    >>> import jax.numpy as jnp
    >>> runs(jnp.arange(6), jnp.array([1, 4]), 2).tolist()
    [[1, 2], [4, 5]]
    """
    starts = jnp.asarray(starts)
    cut = _cut if jax.default_backend() == "cpu" else _indexed
    return jax.tree.map(lambda array: cut(array, starts, length), arrays)


def rows(arrays: PyTree[Array], places: Integer[Array, "*places"]) -> PyTree[Array]:
    """``array[places]``, of every array.

    >>> import jax.numpy as jnp
    >>> rows(jnp.arange(6).reshape(3, 2), jnp.array([2, 0])).tolist()
    [[4, 5], [0, 1]]
    """
    return jax.tree.map(lambda array: jnp.squeeze(array, axis=jnp.ndim(places)), runs(arrays, places, 1))


def _indexed(array: Array, starts: Integer[Array, "*starts"], length: int) -> Array:
    return array[starts[..., None] + jnp.arange(length)]


def _cut(array: Array, starts: Integer[Array, "*starts"], length: int) -> Array:
    @jax.custom_batching.custom_vmap
    def cut(array: Any, starts: Any) -> Any:
        one = partial(lax.dynamic_slice_in_dim, array, slice_size=length)
        flat = starts.reshape(-1)
        unrolled = flat.size <= UNROLLED
        result = jnp.stack([one(flat[i]) for i in range(flat.size)]) if unrolled else lax.map(one, flat)
        return result.reshape(*starts.shape, *result.shape[1:])

    @cut.def_vmap
    def _(size: int, batched: Sequence[bool], array: Any, starts: Any) -> tuple[Any, bool]:
        if batched[0]:  # one array per element of the batch: these are small
            axes = tuple(0 if each else None for each in batched)
            return jax.vmap(lambda array, starts: _indexed(array, starts, length), axes)(array, starts), True
        return cut(array, starts), True

    return cut(array, starts)
