"""Sketches of gradients: a few random projections, from whose moments a server knows the spread of its clients."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar

SKETCH = 16  # random projections of a gradient that a client sends along


class SketchMoments(NamedTuple):
    """Mean and mean square of the clients' sketches. Both are sums, so a secure aggregation can make them."""

    first: Float[Array, " sketch"]
    second: Float[Array, " sketch"]


def sketch(vector: Params, seed: UInt32[Array, " 2"]) -> Float[Array, " sketch"]:
    """Random projections with E|sketch|^2 = |vector|^2: random signs, summed into buckets."""
    flat, _ = trees.vectorize(vector)
    bits = jax.random.bits(jax.random.wrap_key_data(seed), flat.shape, jnp.uint8)
    signed = jnp.where(bits & 1, flat, -flat)
    return jnp.pad(signed, (0, -flat.size % SKETCH)).reshape(-1, SKETCH).sum(0)


def moments(sketch: Float[Array, " sketch"]) -> SketchMoments:
    return SketchMoments(sketch, sketch**2)


def spread(moments: SketchMoments, count: int) -> Scalar:
    """The unbiased estimate of the clients' spread from the moments of their sketches."""
    return jnp.maximum(jnp.sum(moments.second - moments.first**2), 0) * (count / (count - 1))
