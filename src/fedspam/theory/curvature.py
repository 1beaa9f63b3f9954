r"""Methods that measure Hessians from clients' Hessian-vector products alone.

Each is a method like any other, which runs in a deployment as well. One round is one step of Lanczos.
`fedspam.theory.measure` reads the results from their states.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, UInt32

from fedspam._internal import prng, trees
from fedspam._internal.trees import Key, Params, count, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Cohort, Federation, on_client
from fedspam.methods._method import RoundInfo, Stateless
from fedspam.theory import _lanczos
from fedspam.theory._lanczos import Krylov

Rows = Float[Array, "m d"]
SCANS = 3  # of all clients, before the candidates are chosen


class LanczosState(NamedTuple):
    """The point, the clients, and the progress of Lanczos."""

    x: Params
    ids: UInt32[Array, " clients"]  # the same clients in every round
    candidates: UInt32[Array, " m"]  # clients whose own Hessians are measured
    krylov: Krylov
    gradients: Float[Array, ""]  # client gradients so far; a product counts as two


def hessian_products(oracle: Oracle, key: Any, x: Params, rows: Rows, secant: bool) -> Rows:
    r"""The client's Hessian at x times each row.

    Exactly, by differentiating the gradient; or, for clients outside JAX, by central differences of gradients,
    :math:`(\nabla f(x + hv) - \nabla f(x - hv))/(2h)`.
    """
    flat, restore = trees.vectorize(x)
    slope = lambda y: trees.vectorize(jax.grad(oracle)(restore(y), key))[0]
    if secant:
        reach = jnp.finfo(flat.dtype).eps ** (1 / 3) * jnp.maximum(1, jnp.linalg.norm(flat))

        def difference(v: Float[Array, " d"]) -> Float[Array, " d"]:
            length = jnp.linalg.norm(v)
            h = reach / jnp.where(length > 0, length, 1)
            return (slope(flat + h * v) - slope(flat - h * v)) / (2 * h)

        return jax.lax.map(difference, rows)
    return jax.vmap(lambda v: jax.jvp(slope, (flat,), (v,))[1])(rows)


@on_client
def product(self: Any, oracle: Oracle, key: Key, *, x: Params, rows: Rows) -> Rows:
    """The work of all methods that measure Hessians: the client's own, times each row."""
    return hessian_products(oracle, key if self.minibatch else None, x, rows, self.secant)


@struct
class Hessian(Stateless):
    r"""Lanczos on :math:`H = \nabla^2 f(x)`, for L, and :math:`\mu` or the weak convexity. One exchange per round.

    With `mean_square`, Lanczos on :math:`\frac1n\sum_i(H_i - H)^2`, whose largest eigenvalue is :math:`\delta^2` in
    mean square. That takes two exchanges per round: the cohort's mean product :math:`u = Hv`, then the mean of
    :math:`H_i(H_iv - u) = (H_i - H)^2v + H(H_iv - u)`, whose last part has mean zero over the same clients. So no
    difference of two large means is taken.
    """

    steps: int = count(default=24)  # of Lanczos; run as many rounds
    clients: int | None = static(default=None)  # how many take part, the same ones in all rounds; None for everyone
    secant: bool = static(default=False)  # products from differences of gradients, for clients outside JAX
    minibatch: bool = static(default=False)  # the losses of minibatches, not those of all of a client's data
    mean_square: bool = static(default=False)  # which of the two matrices

    def init(self, params: Params, key: Key, fed: Federation) -> LanczosState:
        cohort = _cohort(self.clients, key, fed)
        return _initial(params, cohort.ids, cohort.ids[:0], key, 1, self.steps)

    def round(self, state: LanczosState, key: Key, fed: Federation) -> tuple[LanczosState, RoundInfo]:
        rows, cohort = state.krylov.basis[state.krylov.k], Cohort(state.ids, key)
        image, spent = fed.mean(cohort, self.product, x=state.x, rows=rows), 2 * cohort.size
        if self.mean_square:
            image, spent = fed.mean(cohort, self.square, x=state.x, rows=rows, mean=image), 6 * cohort.size
        return _advance(state, image, image, spent)

    product = product

    @on_client
    def square(self, oracle: Oracle, key: Key, *, x: Params, rows: Rows, mean: Rows) -> Rows:
        own = key if self.minibatch else None
        deviation = hessian_products(oracle, own, x, rows, self.secant) - mean
        return hessian_products(oracle, own, x, deviation, self.secant)


@struct
class Similarity(Stateless):
    r"""Lanczos on :math:`H_i - H` of several clients i at once; the largest :math:`\|H_i - H\|` is :math:`\delta`.

    With more than m clients, three scans at the start choose the m candidates: every client reports how much it
    deviates within a block of directions, at first 2m random ones, then those in which the m clients with the largest
    deviations so far deviate most. A client that deviates in a single direction, by less than all others do in many,
    can be missed. A round then sends m vectors to all clients, for the mean of their products, and collects those of
    the m candidates. The other fields are those of `Hessian`.
    """

    steps: int = count(default=24)
    clients: int | None = static(default=None)
    candidates: int = count(default=16)  # m, the clients whose own Hessians are measured
    secant: bool = static(default=False)
    minibatch: bool = static(default=False)

    def init(self, params: Params, key: Key, fed: Federation) -> LanczosState:
        cohort = _cohort(self.clients, key, fed)
        if cohort.size <= self.candidates:
            return _initial(params, cohort.ids, cohort.ids, key, cohort.size, self.steps)
        m = self.candidates
        flat, _ = trees.vectorize(params)
        rows = jax.random.normal(prng.fold_name(key, "scan"), (2 * m, flat.shape[0]), flat.dtype)
        most, best = jnp.zeros(cohort.size, flat.dtype), jnp.arange(m)
        for scan in range(SCANS):
            rows = jnp.linalg.qr(rows.T)[0].T
            mean = fed.mean(cohort, self.product, x=params, rows=rows)
            scores, counted = fed.collect(cohort, self.deviation, x=params, rows=rows, mean=mean)
            most = jnp.maximum(most, jnp.where(counted, scores, 0))
            _, best = jax.lax.top_k(most, m)
            if scan < SCANS - 1:
                chosen = dataclasses.replace(cohort, ids=cohort.ids[best])
                rows, _ = fed.collect(chosen, self.direction, x=params, rows=rows, mean=mean)
        state = _initial(params, cohort.ids, cohort.ids[best], key, m, self.steps)
        widths = [min(2 * m, flat.shape[0])] + [min(m, flat.shape[0])] * (SCANS - 1)
        spent = 4 * cohort.size * sum(widths) + 2 * m * sum(widths[:-1])
        return state._replace(gradients=state.gradients + spent)

    def round(self, state: LanczosState, key: Key, fed: Federation) -> tuple[LanczosState, RoundInfo]:
        rows, cohort = state.krylov.basis[state.krylov.k], Cohort(state.ids, key)
        m = rows.shape[0]
        if cohort.size == m:  # every client is a candidate, so one exchange gives the mean as well
            products, _ = fed.collect(cohort, self.product, x=state.x, rows=rows)
            mean, spent = products.mean(0), 2 * m * m
        else:
            mean = fed.mean(cohort, self.product, x=state.x, rows=rows)
            chosen = dataclasses.replace(cohort, ids=state.candidates)
            products, _ = fed.collect(chosen, self.product, x=state.x, rows=rows)
            spent = 2 * m * (cohort.size + m)
        own = products[jnp.arange(m), jnp.arange(m)]
        return _advance(state, own - mean, own, spent)

    product = product

    @on_client
    def deviation(self, oracle: Oracle, key: Key, *, x: Params, rows: Rows, mean: Rows) -> Any:
        """How much the client deviates within the span of the rows."""
        return self._leading(oracle, key, x, rows, mean)[0]

    @on_client
    def direction(self, oracle: Oracle, key: Key, *, x: Params, rows: Rows, mean: Rows) -> Any:
        """The direction of that deviation: one step of the power method from the best direction in the span."""
        return self._leading(oracle, key, x, rows, mean)[1]

    def _leading(self, oracle: Oracle, key: Any, x: Params, rows: Rows, mean: Rows) -> tuple[Any, Any]:
        deviation = hessian_products(oracle, key if self.minibatch else None, x, rows, self.secant) - mean
        values, vectors = jnp.linalg.eigh(deviation @ deviation.T)
        image = vectors[:, -1] @ deviation
        score = jnp.sqrt(jnp.maximum(values[-1], 0))
        return score, image / jnp.where(score > 0, score, 1)


def _cohort(clients: int | None, key: Key, fed: Federation) -> Cohort:
    return fed.everyone(key) if clients is None else fed.sample(key, clients, role="measured")


def _initial(params: Params, ids: Any, candidates: Any, key: Key, count: int, steps: int) -> LanczosState:
    flat, _ = trees.vectorize(params)
    krylov = _lanczos.begin(prng.fold_name(key, "lanczos"), count, flat, steps)
    return LanczosState(params, ids, candidates, krylov, jnp.zeros((), flat.dtype))


def _advance(state: LanczosState, image: Rows, products: Rows, spent: int) -> tuple[LanczosState, RoundInfo]:
    krylov = _lanczos.step(state.krylov, image, jnp.max(jnp.linalg.norm(products, axis=1)))
    state = state._replace(krylov=krylov, gradients=state.gradients + spent)
    return state, RoundInfo(gradients=jnp.asarray(spent, jnp.int32))
