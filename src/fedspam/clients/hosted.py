"""A finite population whose losses and gradients are computed outside JAX."""

import numbers
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, UInt32

from fedspam._internal import checks, prng
from fedspam._internal.trees import Key, Params, Scalar, static, struct
from fedspam.clients.protocol import Ids


@struct
class HostedOracle:
    """A client whose loss and gradient are computed outside JAX, by a callback to the host."""

    id: UInt32[Array, ""]
    weight: Scalar
    answer: Callable[..., Any] = static()

    def __call__(self, params: Params, key: Key | None = None) -> Scalar:
        return self.asked(params, None if key is None else jax.random.key_data(key).astype(jnp.uint32)[:2])

    def asked(self, params: Params, words: UInt32[Array, " words"] | None) -> Scalar:
        """The loss on the minibatch that these words determine; on all rows if there are none."""
        seeded, seed = words is not None, jnp.zeros(2, jnp.uint32) if words is None else words
        dtype = jnp.result_type(*jax.tree.leaves(params))

        def on_host(id: Any, seed: Any, params: Any) -> tuple[Any, Any]:
            minibatch = tuple(map(int, seed)) if seeded else None
            value, gradient = self.answer(int(id), jax.tree.map(np.asarray, params), minibatch)
            fitted = lambda leaf, like: np.asarray(leaf, like.dtype).reshape(like.shape)
            return np.asarray(value, dtype), jax.tree.map(fitted, gradient, params)

        def both(params: Params) -> tuple[Scalar, Params]:
            shapes = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), params)
            like = (jax.ShapeDtypeStruct((), dtype), shapes)
            return jax.pure_callback(on_host, like, self.id, seed, params, vmap_method="sequential")

        @jax.custom_vjp
        def loss(params: Params) -> Scalar:
            return both(params)[0]

        loss.defvjp(both, lambda gradient, cotangent: (jax.tree.map(lambda leaf: cotangent * leaf, gradient),))
        return loss(params)


@struct
class Hosted:
    """A finite population whose clients are computed on the host: PyTorch modules, files, anything.

    Arguments:
        answer: (id, params, seed) -> (loss, gradient); NumPy in, NumPy out. The seed is None, or two
            32-bit integers that determine the minibatch: equal seeds must give equal minibatches.
        count: how many clients there are.
        weights: the number of examples per client, or None for 1.
        replace: whether a cohort may hold a client twice.
    """

    answer: Callable[[int, Any, tuple[int, int] | None], tuple[Any, Any]] = static()
    count: int = static()
    weights: Float[Array, " clients"] | None = None
    replace: bool = static(default=False)

    def __post_init__(self) -> None:
        checks.whole("count", self.count, 1)
        # JAX also rebuilds the struct around tracers, shapes and marks of its own
        given = isinstance(self.weights, jax.Array | np.ndarray | Sequence | Mapping | Set | numbers.Number)
        if given and not isinstance(self.weights, Tracer | bool):
            _check_weights(np.asarray(self.weights), self.count)
            object.__setattr__(self, "weights", jnp.asarray(self.weights))

    @property
    def size(self) -> int:
        return self.count

    def sample(self, key: Key, count: int) -> Ids:
        return prng.draw(key, count, self.size, self.replace)

    def client(self, id: UInt32[Array, ""]) -> HostedOracle:
        weight = jnp.ones(()) if self.weights is None else self.weights[id]
        return HostedOracle(id, weight, answer=self.answer)


def _check_weights(weights: np.ndarray, count: int) -> None:
    if not any(jnp.issubdtype(weights.dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating)):
        raise ValueError(f"weights = {weights.tolist()!r} are not numbers; give one per client, such as [1.0, 2.0]")
    if weights.shape != (count,):
        raise ValueError(f"weights has shape {weights.shape} for {count} clients; give one weight per client")
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if wrong.size:
        raise ValueError(f"client {wrong[0]} has weight {weights[wrong[0]]}; weights must be finite and at least 0")
    if not weights.any():
        raise ValueError("all weights are 0; give at least one client a positive weight")
