r"""Methods that measure the spread of a cohort: of gradients, :math:`\sigma^2(x)`; of secants; of curvatures."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, UInt32

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Cohort, Federation, on_client
from fedspam.methods._method import RoundInfo, Stateless, sample_or_all
from fedspam.theory.curvature import hessian_products, product


class Deviations(NamedTuple):
    """What one client reports once it has the cohort's means: three numbers."""

    here: Any  # |grad f_i(x) - mean|^2
    there: Any  # the same at y
    secant: Any  # |grad f_i(y) - grad f_i(x) - mean of it|^2


class SpreadState(NamedTuple):
    """The deviations of the last round's cohort, and the length of the secant."""

    x: Params
    deviations: Deviations
    counted: Any
    length: Any
    gradients: Any


class SpreadInfo(NamedTuple):
    """What a round records."""

    sigma: Any
    secant: Any
    gradients: Any


@struct
class Spread(Stateless):
    r"""The spread of a cohort's gradients at x, and of their change over a short step along the mean gradient.

    Three exchanges: the mean gradient at x; the mean gradient at y, a step down along it; then three numbers from each
    client. The server stores no client's gradient. Every round draws a new cohort.
    """

    clients: int | None = static(default=None)  # the size of the cohort; None for everyone
    reach: float = positive(default=1e-2)  # the length of the secant, relative to max(1, |x|)
    minibatch: bool = static(default=False)  # the losses of minibatches, not those of all of a client's data

    def init(self, params: Params, key: Key, fed: Federation) -> SpreadState:
        cohort = sample_or_all(self.clients, key, fed)
        blank = jnp.zeros(cohort.size, trees.norm(params).dtype)
        zero = jnp.zeros((), blank.dtype)
        return SpreadState(params, Deviations(blank, blank, blank), jnp.zeros(cohort.size, bool), zero, zero)

    def round(self, state: SpreadState, key: Key, fed: Federation) -> tuple[SpreadState, SpreadInfo]:
        x = state.x
        cohort = sample_or_all(self.clients, key, fed)
        here = fed.mean(cohort, self.slope, x=x)
        length = jnp.asarray(self.reach, state.length.dtype) * jnp.maximum(1, trees.norm(x))
        size = trees.norm(here)
        y = trees.axpy(-length / jnp.where(size > 0, size, 1), here, x)
        there = fed.mean(cohort, self.second_slope, y=y)
        replies, counted = fed.collect(cohort, self.deviation, x=x, y=y, here=here, there=there)
        spent = 4 * cohort.size
        length = jnp.where(size > 0, length, 0)
        state = SpreadState(x, replies, counted, length, state.gradients + spent)
        mean = lambda values: jnp.sum(jnp.where(counted, values, 0)) / jnp.maximum(1, jnp.sum(counted))
        secant = jnp.sqrt(mean(replies.secant)) / jnp.where(size > 0, length, 1)
        return state, SpreadInfo(jnp.sqrt(mean(replies.here)), secant, jnp.asarray(spent, jnp.int32))

    @on_client
    def slope(self, oracle: Oracle, key: Key, *, x: Params) -> Params:
        return jax.grad(oracle)(x, key if self.minibatch else None)

    @on_client
    def second_slope(self, oracle: Oracle, key: Key, *, y: Params) -> Params:
        return jax.grad(oracle)(y, key if self.minibatch else None)

    @on_client
    def deviation(self, oracle: Oracle, key: Key, *, x: Params, y: Params, here: Params, there: Params) -> Deviations:
        own = key if self.minibatch else None
        a = trees.subtract(jax.grad(oracle)(x, own), here)
        b = trees.subtract(jax.grad(oracle)(y, own), there)
        return Deviations(trees.squared_norm(a), trees.squared_norm(b), trees.squared_norm(trees.subtract(b, a)))


class DirectionsState(NamedTuple):
    """Clients' curvatures and squared deviations along the directions."""

    x: Params
    curvatures: Float[Array, "clients m"]  # v' H_i v
    squares: Float[Array, "clients m"]  # |H_i v - H v|^2
    counted: Any
    gradients: Any


@struct
class Directions(Stateless):
    """Each client's curvature along given directions, for the sampling error of what a cohort says of all clients."""

    rows: Float[Array, "m d"]  # the directions
    ids: UInt32[Array, " clients"] | None = None  # the clients; None for a fresh cohort
    clients: int = static(default=10)  # the size of that cohort
    secant: bool = static(default=False)
    minibatch: bool = static(default=False)

    def init(self, params: Params, key: Key, fed: Federation) -> DirectionsState:
        count = self.clients if self.ids is None else self.ids.shape[0]
        dtype = self.rows.dtype
        blank = jnp.zeros((count, self.rows.shape[0]), dtype)
        return DirectionsState(params, blank, blank, jnp.zeros(count, bool), jnp.zeros((), dtype))

    def round(self, state: DirectionsState, key: Key, fed: Federation) -> tuple[DirectionsState, RoundInfo]:
        cohort = fed.sample(key, self.clients, role="fresh") if self.ids is None else Cohort(self.ids, key)
        mean = fed.mean(cohort, self.product, x=state.x, rows=self.rows)
        replies, counted = fed.collect(cohort, self.along, x=state.x, rows=self.rows, mean=mean)
        spent = 4 * cohort.size * self.rows.shape[0]
        curvatures, squares = replies
        state = DirectionsState(state.x, curvatures, squares, counted, state.gradients + spent)
        return state, RoundInfo(gradients=jnp.int32(spent))

    product = product

    @on_client
    def along(self, oracle: Oracle, key: Key, *, x: Params, rows: Any, mean: Any) -> tuple[Any, Any]:
        own = hessian_products(oracle, key if self.minibatch else None, x, rows, self.secant)
        return jnp.sum(own * rows, axis=1), jnp.sum((own - mean) ** 2, axis=1)


# --- from gradients at hand ---


def spread_squares(gradients: Any) -> Float[np.ndarray, " clients"]:
    r""":math:`\|g_i - \bar g\|^2` of gradients stacked over clients, for `fedspam.theory.intervals.spread_interval`.

    >>> spread_squares(np.array([[1.0, 0.0], [3.0, 0.0]])).tolist()
    [1.0, 1.0]
    """
    flat = np.concatenate(
        [np.reshape(np.float64(leaf), (len(leaf), -1)) for leaf in jax.tree.leaves(gradients)], axis=1
    )
    return ((flat - flat.mean(0)) ** 2).sum(1)


def secant_squares(here: Any, there: Any, step: Params) -> Float[np.ndarray, " clients"]:
    r""":math:`\|u_i - \bar u\|^2/\|x_k - x_{k-1}\|^2` with :math:`u_i = \nabla f_i(x_k) - \nabla f_i(x_{k-1})`.

    Their mean is the squared similarity along the step, which the error of SPAM's estimate depends on. The root of
    the largest is a lower bound of :math:`\delta`; on the paper's ridge it is 0.3 to 0.7 of it.

    >>> secant_squares(np.array([[1.0], [3.0]]), np.array([[0.0], [0.0]]), np.array([0.5])).tolist()
    [4.0, 4.0]
    """
    length = float(sum(np.sum(np.float64(leaf) ** 2) for leaf in jax.tree.leaves(step)))
    if length == 0:
        raise ValueError("the step has length 0; a secant needs two different points")
    return spread_squares(jax.tree.map(lambda a, b: np.float64(a) - np.float64(b), here, there)) / length
