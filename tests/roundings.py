"""Quadratic clients whose losses and gradients are wrong by rounding: by any number of units of the last place.

What an instruction set, an order of summation or a fused product changes is one such error. Here they are drawn, so
that a rule that compares rounded numbers meets many of them in one process, and larger ones than a processor makes.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fedspam._internal.trees import struct
from fedspam.problems import Quadratics


def drawn(x: Any, seed: Any, shape: tuple[int, ...] = ()) -> Any:
    """Numbers in [-1, 1) that are a function of the bits of x alone: the same point has the same rounding again."""
    whole = jnp.uint32 if x.dtype == jnp.float32 else jnp.uint64
    bits = jnp.sum(lax.bitcast_convert_type(x, whole) * jnp.arange(1, x.size + 1, dtype=whole))
    return jax.random.uniform(jax.random.fold_in(jax.random.key(seed), bits.astype(jnp.uint32)), shape, x.dtype, -1, 1)


@jax.custom_jvp
def rough(x: Any, hessian: Any, linear: Any, constant: Any, seed: Any, unit: Any) -> Any:
    product = hessian @ x
    size = 0.5 * jnp.abs(x) @ (jnp.abs(hessian) @ jnp.abs(x)) + jnp.abs(linear) @ jnp.abs(x) + jnp.abs(constant)
    return 0.5 * x @ product - linear @ x + constant + unit * size * drawn(x, seed)


@rough.defjvp
def _(primals: Any, tangents: Any) -> Any:
    x, hessian, linear, _, seed, unit = primals
    fixed = lax.stop_gradient(x)  # errors have no derivative
    error = unit * (jnp.abs(hessian) @ jnp.abs(fixed) + jnp.abs(linear)) * drawn(fixed, seed + 1, x.shape)
    return rough(*primals), (hessian @ x - linear + error) @ tangents[0]


@struct
class RoughOracle:
    population: "Rough"
    id: Any

    weight = 1.0

    @property
    def lowest_curvature(self) -> Any:
        return self.population.clients.eigenvalues[self.id, 0]

    def __call__(self, x: Any, key: Any = None) -> Any:
        clients, id = self.population.clients, self.id
        unit = self.population.units * jnp.finfo(x.dtype).eps
        seed = self.population.seed + 2 * id.astype(jnp.int32)
        return rough(x, clients.hessians[id], clients.linears[id], clients.constants[id], seed, unit)

    def shifted_solve(self, g: Any, step_size: Any) -> Any:
        return self.population.clients.client(self.id).shifted_solve(g, step_size)


@struct
class Rough:
    """The clients with errors of up to `units` units of the last place of what is summed."""

    clients: Quadratics
    units: Any
    seed: Any

    @property
    def size(self) -> int:
        return self.clients.size

    @property
    def dimension(self) -> int:
        return self.clients.dimension

    def sample(self, key: Any, count: int) -> Any:
        return self.clients.sample(key, count)

    def client(self, id: Any) -> RoughOracle:
        return RoughOracle(self, id)
