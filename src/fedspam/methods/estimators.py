r"""How the server's estimate g of the gradient is made: one of the three factors of a method.

An estimator turns one exchange with the round's cohort S into the new g. It does not depend on how g is used.

=================  =====================================================================================
`OwnGradient`      none: each mover uses its own gradient
`CohortGradient`   :math:`\nabla f_S(x_k)`, exact where the cohort is everyone
`MVR`              :math:`\nabla f_S(x_k) + (1-p)(g_{k-1} - \nabla f_S(x_{k-1}))`
`PAGE`             :math:`g_{k-1} + \nabla f_S(x_k) - \nabla f_S(x_{k-1})`, with a coin exact
`SVRG`             :math:`\nabla f(w) + \nabla f_S(x_k) - \nabla f_S(w)`, with a coin :math:`w = x_k`
`RecursiveSAGA`    RG around SAGA: clients remember a gradient
`RecursiveSVRG`    RG around SVRG: an anchor w that a coin moves
=================  =====================================================================================
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Integer, PyTree

from fedspam._internal import prng, trees
from fedspam._internal.trees import Key, Params, Scalar, choice, count, dynamic, number, struct
from fedspam.clients import Oracle
from fedspam.federation import Cohort, Federation, on_client
from fedspam.methods._method import difference, tracked_mean
from fedspam.methods.schedules import (
    Schedule,
    first_fresh_weight,
    fresh_weight_schedule,
    probability_schedule,
    pull_schedule,
)


class Estimate(NamedTuple):
    """The state of an estimator between rounds."""

    g: Params | None  # None: each mover uses its own gradient
    memory: Any = ()  # what a particular estimator keeps besides g


class Anchor(NamedTuple):
    """A point whose exact gradient is known."""

    x: Params
    g: Params


class Iterate(NamedTuple):
    """Where a round begins: its index, its point, and that of the last round."""

    k: Integer[Array, ""]
    x: Params
    x_prev: Params


class Estimator(Protocol):
    """How g_k is made from the exchange with a cohort."""

    def begin(self, x: Params, g: Params) -> Estimate:
        """The state before the first round, from x_0 and the g_0 of the method's start."""
        ...

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        """The new estimate, and how many client gradients it took."""
        ...

    def client_state(self, params: Params) -> PyTree:
        """A client's memory for this estimator before its first exchange; () if it keeps none."""
        ...


# --- works that several estimators share ---


@on_client(affine=True)
def gradient(self: Any, oracle: Oracle, key: Key, *, x: Params) -> Params:
    return jax.grad(oracle)(x, key)


@on_client(affine=True)
def change(self: Any, oracle: Oracle, key: Key, *, x: Params, reference: Params) -> Params:
    """How the gradient differs between two points, on the same minibatch."""
    return trees.subtract(jax.grad(oracle)(x, key), jax.grad(oracle)(reference, key))


def anchor_at(x: Params, work: Any, key: Key, fed: Federation) -> tuple[Anchor, Any]:
    """An anchor at x, whose gradient everyone is asked for, and the number of gradients."""
    all = fed.everyone(key)
    return Anchor(x, fed.mean(all, work, x=x)), jnp.asarray(all.size)


class KeepsG:
    """An estimator that keeps g alone, and whose clients keep nothing."""

    def begin(self, x: Params, g: Params) -> Estimate:
        return Estimate(g)

    def client_state(self, params: Params) -> Any:
        return ()


# --- without memory ---


@struct
class OwnGradient(KeepsG):
    """No estimate: each mover uses its own gradient, so that the shift of its prox vanishes. Nothing is sent."""

    def begin(self, x: Params, g: Params) -> Estimate:
        return Estimate(None)

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        return old, 0


@struct
class CohortGradient(KeepsG):
    r"""The cohort's gradient, without memory: :math:`g_k = \nabla f_S(x_k)`. That of everyone is exact."""

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        return Estimate(fed.mean(cohort, self.gradient, x=now.x)), cohort.size

    gradient = gradient


# --- the recursion of SPAM ---


@struct
class MVR(KeepsG):
    r"""Momentum variance reduction (STORM), the estimator of SPAM:

    .. math:: g_k = \nabla f_S(x_k) + (1 - p_k)\,(g_{k-1} - \nabla f_S(x_{k-1}))

    Both gradients are of the same clients on the same minibatch. In the first round :math:`x_{-1} = x_0`;
    ``first="given"`` keeps the :math:`g_0` of the start, ``first="update"`` follows the printed loop, which replaces
    it by :math:`p_0\nabla f_S(x_0) + (1-p_0)g_0`.

    With a `scale` s it is the estimator of MARS, which scales down the difference
    :math:`u = \nabla f_S(x_k) - \nabla f_S(x_{k-1})`; the messages are the same:

    .. math:: g_k = (1 - p_k)\,(g_{k-1} + s\,u) + p_k\nabla f_S(x_k)

    s = 1 is MVR, s = 0 is SGD with momentum; between them it may help where :math:`\delta \gtrsim L`.

    Cutkosky, Orabona 2019, arXiv:1905.10018; the scale: Yuan, Liu, Wu, Zhou, Gu: MARS, 2024, arXiv:2411.10438.
    """

    fresh_weight: Schedule = dynamic(converter=fresh_weight_schedule)
    scale: float | Scalar | None = number(0, 1, remedy="1 is MVR, 0 is SGD with momentum", default=None)
    first: str = choice("given", "update", default="given")

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        p = first_fresh_weight(self.fresh_weight, self.first, now.k)
        difference = fed.mean(cohort, self.difference, x=now.x, x_prev=now.x_prev, fresh_weight=p)
        return Estimate(trees.axpy(1 - p, old.g, difference)), 2 * cohort.size

    difference = difference


# --- a coin decides which rounds ask everyone for the gradient ---


def coin(probability: Schedule, key: Key, k: Integer[Array, ""]) -> Bool[Array, ""]:
    """Whether round k asks everyone: with its probability, and always in round 0, which starts g."""
    return (k == 0) | jax.random.bernoulli(prng.fold_name(key, "coin"), probability(k))


@struct
class PAGE(KeepsG):
    r"""The recursion with a fresh weight of 0, restarted by a coin from the exact gradient; see `page`.

    Its error does not fade between restarts, but it grows with :math:`\delta` alone:
    :math:`e_k \le (1-p)(e_{k-1} + \delta^2\|x_k - x_{k-1}\|^2/B)`. A probability of 1 in every m-th round and 0 between
    them makes it SARAH. With `many` clients in place of all, each restart has an error :math:`\sigma^2/B'`.

    Li, Bao, Zhang, Richtárik 2021, arXiv:2008.10898; Nguyen, Liu, Scheinberg, Takáč 2017, arXiv:1703.00102.
    """

    probability: Schedule = dynamic(converter=probability_schedule)
    many: int | None = count(or_none=True, default=None)

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        def restart() -> tuple[Estimate, Any]:
            key, many = cohort.key, self.many
            all = fed.everyone(key) if many is None else fed.sample(key, many, role="many")
            return Estimate(fed.mean(all, self.gradient, x=now.x)), jnp.asarray(all.size)

        def recur() -> tuple[Estimate, Any]:
            change = fed.mean(cohort, self.change, x=now.x, reference=now.x_prev)
            return Estimate(trees.add(old.g, change)), jnp.asarray(2 * cohort.size)

        return fed.cond(coin(self.probability, cohort.key, now.k), restart, recur)

    gradient, change = gradient, change


@struct
class SVRG(KeepsG):
    r"""The difference to an anchor w whose exact gradient is known; see `svrs`.

    Unbiased given w, with an error of :math:`\delta^2\|x_k - w\|^2/B`. In a round that moves the anchor,
    :math:`g_k = \nabla f(x_k)` and there is no exchange with the cohort.

    Johnson, Zhang 2013; with a coin instead of epochs: Kovalev, Horváth, Richtárik 2020, arXiv:1901.08689.
    """

    probability: Schedule = dynamic(converter=probability_schedule)

    def begin(self, x: Params, g: Params) -> Estimate:
        return Estimate(g, Anchor(x, g))

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        anchor: Anchor = old.memory

        def move() -> tuple[Estimate, Any]:
            anchor, spent = anchor_at(now.x, self.gradient, cohort.key, fed)
            return Estimate(anchor.g, anchor), spent

        def stay() -> tuple[Estimate, Any]:
            change = fed.mean(cohort, self.change, x=now.x, reference=anchor.x)
            return Estimate(trees.add(anchor.g, change), anchor), jnp.asarray(2 * cohort.size)

        return fed.cond(coin(self.probability, cohort.key, now.k), move, stay)

    gradient, change = gradient, change


# --- recursive gradients around an unbiased estimate G of the last gradient ---


@struct
class RecursiveSAGA(KeepsG):
    r"""The recursion, pulled towards an unbiased estimate G from the gradients that clients remember; see `rg_saga`.

    The first `synchronizations` rounds ask everyone: :math:`g_k = \nabla f(x_k)` and all :math:`b_i = \nabla f_i(x_k)`.
    Without them :math:`b_i = 0`, and in round 0 :math:`\beta = 1`. The server keeps :math:`\bar b`, the mean of what
    all clients remember, so a cohort must not contain a client twice. Clients remember different points, so even equal
    Hessians leave an error in G, which vanishes as x settles.

    Jiang, Rodomanov, Stich 2025, arXiv:2512.05327.
    """

    pull: Schedule = dynamic(converter=pull_schedule)  # beta
    synchronizations: int = count(0, default=2)

    def begin(self, x: Params, g: Params) -> Estimate:
        return Estimate(g, trees.zeros_like(x))

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        def synchronize() -> tuple[Estimate, Any]:
            everyone = fed.everyone(cohort.key)
            difference = fed.mean(everyone, self.remember, x=now.x)
            g = trees.add(difference, old.memory)
            return Estimate(g, tracked_mean(old.memory, difference, fed, cohort.key)), jnp.asarray(everyone.size)

        def recur() -> tuple[Estimate, Any]:
            beta = jnp.where(now.k == 0, 1.0, self.pull(now.k))
            difference, change = fed.mean(cohort, self.compare, x=now.x, x_prev=now.x_prev)
            G = trees.add(difference, old.memory)
            g = trees.axpy(1 - beta, old.g, trees.axpy(beta, G, change))
            return Estimate(g, tracked_mean(old.memory, difference, fed, cohort.key)), jnp.asarray(2 * cohort.size)

        return fed.cond(now.k < self.synchronizations, synchronize, recur) if self.synchronizations else recur()

    @on_client(stateful=True)
    def remember(self, oracle: Oracle, key: Key, memory: Params, *, x: Params) -> tuple[Params, Params]:
        gradient = jax.grad(oracle)(x, key)
        return trees.subtract(gradient, memory), gradient

    @on_client(stateful=True)
    def compare(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, x_prev: Params
    ) -> tuple[tuple[Params, Params], Params]:
        here, there = jax.grad(oracle)(x, key), jax.grad(oracle)(x_prev, key)
        return (trees.subtract(there, memory), trees.subtract(here, there)), there

    def client_state(self, params: Params) -> Params:
        return trees.zeros_like(params)


@struct
class RecursiveSVRG(KeepsG):
    r"""The recursion, pulled towards an unbiased estimate made from an anchor w; see `rg_svrg`.

    A coin, thrown before the exchange with the cohort, moves the anchor to :math:`w = x_{k-1}`; it does so in round
    0, where also :math:`\beta = 1`, so that :math:`g_0 = \nabla f(x_0)`. As :math:`\beta` is known to the clients,
    each sends one combined vector.

    Jiang, Rodomanov, Stich 2025, arXiv:2512.05327.
    """

    pull: Schedule = dynamic(converter=pull_schedule)  # beta
    probability: Schedule = dynamic(converter=probability_schedule)

    def begin(self, x: Params, g: Params) -> Estimate:
        return Estimate(g, Anchor(x, g))

    def update(self, old: Estimate, cohort: Cohort, fed: Federation, now: Iterate) -> tuple[Estimate, Any]:
        move = lambda: anchor_at(now.x_prev, self.gradient, cohort.key, fed)
        stay = lambda: (old.memory, jnp.asarray(0))
        beta = jnp.where(now.k == 0, 1.0, self.pull(now.k))
        anchor, spent = fed.cond(coin(self.probability, cohort.key, now.k), move, stay)
        reply = fed.mean(cohort, self.recursion, x=now.x, x_prev=now.x_prev, anchor=anchor.x, pull=beta)
        g = trees.axpy(1 - beta, old.g, trees.axpy(beta, anchor.g, reply))
        return Estimate(g, anchor), spent + 3 * cohort.size

    gradient = gradient

    @on_client(affine=True)
    def recursion(self, oracle: Oracle, key: Key, *, x: Params, x_prev: Params, anchor: Params, pull: Any) -> Params:
        here, there, far = (jax.grad(oracle)(point, key) for point in (x, x_prev, anchor))
        return trees.axpy(pull, trees.subtract(there, far), trees.subtract(here, there))
