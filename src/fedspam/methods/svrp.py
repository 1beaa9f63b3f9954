"""SVRP, SVRS and AccSVRS: a prox corrected at an anchor whose exact gradient is known, plain and accelerated."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import Move, ProxInfo, current_x, no_memory
from fedspam.methods._grids import coin_grid, settings
from fedspam.methods._registry import Cost, Method, Scales, register
from fedspam.methods._template import Factored, FactoredState
from fedspam.methods.estimators import SVRG, Anchor, anchor_at, coin, gradient, probability_schedule
from fedspam.methods.schedules import Schedule, ScheduleLike, step_size_schedule
from fedspam.solvers import LBFGS, Exact, LocalSolver


class Outer(NamedTuple):
    """Catalyst's slow sequences: the center y_t of the present problem, and x_t, where it began."""

    center: Params
    x: Params


class SvrpState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    anchor: Anchor
    outer: Any  # Outer, or () without a catalyst
    k: Any


@struct
class Catalyst:
    r"""An outer loop: `period` rounds each on :math:`f + \frac\theta2\|\cdot - y_t\|^2`, and an extrapolation.

    .. math:: y_{t+1} = x_{t+1} + \beta\,(x_{t+1} - x_t), \qquad \beta = \frac{1-\sqrt q}{1+\sqrt q}, \qquad
        q = \frac{\mu}{\mu+\theta}

    This is the constant solution :math:`\alpha_t = \sqrt q` of the paper's recursion for :math:`\alpha_t`.
    """

    pull: float  # theta
    convexity: float  # mu
    period: int

    def advance(self, outer: Outer, x: Params, k: Any) -> tuple[Outer, Any]:
        """The outer sequences in round k, and whether the next outer problem begins in it."""
        begins = (k > 0) & (k % self.period == 0)
        root = jnp.sqrt(self.convexity / (self.convexity + self.pull))
        center = trees.axpy((1 - root) / (1 + root), trees.subtract(x, outer.x), x)
        return trees.where(begins, Outer(center, x), outer), begins

    def joint(self, outer: Outer, x: Params, step_size: Any) -> tuple[Params, Any]:
        """The prox of f_xi + theta/2 |. - y|^2 at x as one of f_xi: its point, between x and y, and its step size."""
        shorter = 1 / (1 / step_size + self.pull)
        return trees.axpy(shorter / step_size, x, trees.scale(shorter * self.pull, outer.center)), shorter


@struct
class Svrp:
    """SVRP. Use `svrp` or `catalyzed_svrp` to build it."""

    step_size: Schedule
    probability: Schedule
    solver: LocalSolver
    catalyst: Catalyst | None = None
    name: str = static(default="svrp")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> SvrpState:
        outer = () if self.catalyst is None else Outer(params, params)
        return SvrpState(params, Anchor(params, trees.zeros_like(params)), outer, jnp.zeros((), jnp.int32))

    def round(self, state: SvrpState, key: Key[Array, ""], fed: Federation) -> tuple[SvrpState, ProxInfo]:
        x, outer, gamma = state.x, state.outer, self.step_size(state.k)
        full = coin(self.probability, key, state.k)
        center = x
        if self.catalyst is not None:
            outer, begins = self.catalyst.advance(outer, x, state.k)
            center, gamma = self.catalyst.joint(outer, x, gamma)
            full = full | begins

        move, stay = lambda: anchor_at(x, self.gradient, key, fed), lambda: (state.anchor, jnp.asarray(0))
        anchor, spent = fed.cond(full, move, stay)
        client = fed.sample(key, 1)
        reply = fed.mean(client, self.step, x=center, anchor=anchor.x, g=anchor.g, step_size=gamma)

        info = ProxInfo(gamma, reply.certificate, spent + 2 + reply.certificate.gradients)
        return SvrpState(reply.x, anchor, outer, state.k + 1), info

    gradient = gradient

    @on_client
    def step(
        self, oracle: Oracle, key: Key[Array, ""], *, x: Params, anchor: Params, g: Params, step_size: Any
    ) -> Move:
        # the solver's phi has the slope g at x, so the control variate at the anchor enters as the client's own g
        here, there = jax.grad(oracle)(x, key), jax.grad(oracle)(anchor, key)
        own = trees.add(trees.subtract(here, there), g)
        return Move(*self.solver(oracle, key, x=x, g=own, step_size=step_size))

    params, client_state = current_x, no_memory


def svrp(step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Svrp:
    r"""SVRP: the prox of a random client, corrected by its gradient at an anchor whose exact gradient is known.

    .. math:: x_{k+1} \approx \mathrm{prox}_{\gamma f_\xi}\bigl(x_k - \gamma(\nabla f(w) - \nabla f_\xi(w))\bigr),
        \qquad w = x_k \text{ with probability } p, \text{ and in round } 0

    3d floats down and d up for one client per round, and d and d for everyone when the anchor moves. No state on
    clients. The paper throws its coin after the step, for the next round. Here it is thrown before the step: the same
    method. Theory, for :math:`\mu`-strongly convex clients: :math:`\gamma = \mu/(2\delta^2)`, :math:`p = 1/n`,
    :math:`O((n + \delta^2/\mu^2)\log 1/\epsilon)` rounds; there is no theory for non-convex ones.

    Arguments:
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule.
        probability: p, likewise, in [0, 1].
        solver: how a client answers the prox.

    Khaled, Jin: Faster federated optimization under second-order similarity, 2022, arXiv:2209.02257.

    >>> from fedspam.problems import progress
    >>> progress(svrp(step_size=2.0, probability=0.1, solver=Exact()), clients=10) < 0.001
    True
    """
    return Svrp(step_size_schedule(step_size), probability_schedule(probability), solver)


def catalyzed_svrp(
    step_size: ScheduleLike,
    probability: ScheduleLike,
    pull: float,
    convexity: float,
    period: int,
    *,
    solver: LocalSolver = LBFGS(),
) -> Svrp:
    r"""SVRP inside an accelerating outer loop.

    For `period` rounds SVRP works on :math:`f + \frac\theta2\|\cdot - y_t\|^2`, from the last point and with a fresh
    anchor; then :math:`y_{t+1} = x_{t+1} + \beta(x_{t+1} - x_t)`. The costs are those of `svrp`: the quadratic is known
    to the server, which sends the center and the step size of the joint prox. Theory:
    :math:`\mu + \theta = \delta/\sqrt n`, :math:`O((n + n^{3/4}\sqrt{\delta/\mu})\log 1/\epsilon)` rounds.

    Arguments:
        step_size, probability, solver: as `svrp`.
        pull: :math:`\theta`.
        convexity: :math:`\mu`.
        period: rounds for each outer step.

    Khaled, Jin 2022, arXiv:2209.02257.

    >>> from fedspam.problems import progress
    >>> progress(catalyzed_svrp(2.0, 0.1, pull=0.1, convexity=1.0, period=10, solver=Exact()), clients=10) < 0.001
    True
    """
    for name, value in (("pull", pull), ("convexity", convexity)):
        checks.positive(name, value)
    checks.whole("period", period, 1)
    plain = svrp(step_size, probability, solver=solver)
    return dataclasses.replace(plain, catalyst=Catalyst(pull, convexity, period), name="catalyzed_svrp")


def svrs(
    cohort_size: int, step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()
) -> Factored:
    r"""SVRS: gradients from all clients, the prox always from the delegate, client 0.

    .. math::
        g_k &= \nabla f(w) + \nabla f_S(x_k) - \nabla f_S(w), \qquad
            w = x_k \text{ with probability } p, \text{ and in round } 0 \\
        x_{k+1} &\approx \arg\min_y f_0(y) + \langle g_k - \nabla f_0(x_k), y\rangle + \tfrac{1}{2\gamma}\|y - x_k\|^2

    A round with a cohort: 2d floats down and d up for each of its clients, then 2d and d for the delegate; when the
    anchor moves, d and d for everyone instead of the cohort. The delegate stands for the paper's server with data of
    its own, where those 3d floats would not travel. The paper's epochs of geometric length, each from where the last
    ended, are these coins. Theory, for :math:`\mu`-strongly convex f whose clients may be non-convex: :math:`\gamma =
    1/(2\sqrt n\delta)`, :math:`p = 1/n`, B = 1, :math:`O((n + \sqrt n\delta/\mu)\log 1/\epsilon)`.

    Arguments:
        cohort_size: B; 1 in the paper.
        step_size: :math:`\gamma_k`, the paper's :math:`\theta`: a number, one value per round, or a schedule.
        probability: p, likewise, in [0, 1].
        solver: how the delegate answers the prox. The paper's
            accuracy, :math:`\|\nabla\phi(y)\|^2 \le \frac{\mu}{20\gamma}\|x_k - y_*\|^2`, is tighter where
            :math:`\gamma\mu` is small: ``LBFGS(stop=Relative(...))``.

    Lin, Han, Ye, Zhang: Stochastic distributed optimization under average second-order similarity, 2023,
    arXiv:2304.07504.

    >>> from fedspam.problems import progress
    >>> progress(svrs(2, step_size=1.0, probability=0.2, solver=Exact()), rounds=40, clients=10) < 0.01
    True
    """
    estimator, gamma = SVRG(probability_schedule(probability)), step_size_schedule(step_size)
    return Factored(estimator, solver, gamma, movers="delegate", cohort_size=cohort_size, name="svrs")


class AccSvrsState(NamedTuple):
    """What the server keeps: the state of SVRS, and the slow sequence z."""

    inner: FactoredState
    z: Params


@struct
class AccSvrs:
    """AccSVRS. Use `acc_svrs` to build it."""

    inner: Factored
    mixing: float | Scalar  # tau
    convexity: float | Scalar  # mu
    length: float | Scalar  # alpha
    name: str = static(default="acc_svrs")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> AccSvrsState:
        return AccSvrsState(self.inner.init(params, key, fed), params)

    def round(self, state: AccSvrsState, key: Key[Array, ""], fed: Federation) -> tuple[AccSvrsState, ProxInfo]:
        inner, k, svrg = state.inner, state.inner.k, self.inner.estimator
        assert isinstance(svrg, SVRG)
        anchor: Anchor = inner.estimate.memory
        p, gamma = svrg.probability(k), self.inner.step_size(k)

        # the coin that SVRG is about to throw: heads ends an epoch, whose last point is y
        ends, y, bend = coin(svrg.probability, key, k), inner.x, 0.5 * self.convexity * self.length
        slope = trees.scale(p / gamma, trees.subtract(anchor.x, y))
        z = trees.axpy(bend, y, trees.axpy(-self.length, slope, state.z))
        z = trees.where(ends, trees.divide(z, 1 + bend), state.z)
        x = trees.where(ends, trees.axpy(self.mixing, z, trees.scale(1 - self.mixing, y)), y)

        inner, info = self.inner.round(inner._replace(x=x), key, fed)
        return AccSvrsState(inner, z), info

    def params(self, state: AccSvrsState) -> Params:
        return state.inner.x

    client_state = no_memory


def acc_svrs(
    cohort_size: int,
    step_size: float,
    probability: float,
    mixing: float,
    convexity: float,
    *,
    length: float | None = None,
    solver: LocalSolver = LBFGS(),
) -> AccSvrs:
    r"""AccSVRS: epochs of SVRS, accelerated from the outside as in Katyusha X.

    .. math::
        w_{t+1} &= \tau z_t + (1-\tau)\,y_t, \qquad y_{t+1} = \text{an epoch of SVRS from } w_{t+1} \\
        G_{t+1} &= \tfrac{p}{\gamma}(w_{t+1} - y_{t+1}), \qquad
            z_{t+1} = \frac{z_t + \frac12\mu\alpha\,y_{t+1} - \alpha G_{t+1}}{1 + \frac12\mu\alpha}

    The costs are those of `svrs`. Theory: :math:`\gamma = 1/(2\sqrt n\delta)`, :math:`p = 1/n`,
    :math:`\tau = \frac14 n^{1/4}\sqrt{\mu/\delta}`, :math:`O((n + n^{3/4}\sqrt{\delta/\mu})\log 1/\epsilon)` contacts.
    The paper's :math:`\alpha` could not be checked; :math:`\alpha = \gamma/(2p\tau)` follows from matching Katyusha X,
    where an epoch is one step of length :math:`\gamma/p`.

    Arguments:
        cohort_size, step_size, probability, solver: as `svrs`.
        mixing: :math:`\tau` in (0, 1].
        convexity: :math:`\mu`, of f; may be 0.
        length: :math:`\alpha`; None for :math:`\gamma/(2p\tau)`.

    Lin, Han, Ye, Zhang 2023, arXiv:2304.07504.

    >>> from fedspam.problems import progress
    >>> progress(acc_svrs(2, 1.0, 0.2, mixing=0.5, convexity=1.0, solver=Exact()), rounds=60, clients=10) < 0.01
    True
    """
    checks.between("mixing", mixing, 0, 1, open_low=True)
    checks.between("convexity", convexity, 0, jnp.inf)
    checks.between("probability", probability, 0, 1, open_low=True)
    inner = svrs(cohort_size, step_size, probability, solver=solver)
    return AccSvrs(inner, mixing, convexity, step_size / (2 * probability * mixing) if length is None else length)


def _grid(scales: Scales) -> list[Mapping[str, Any]]:
    return coin_grid(scales._replace(cohort=1))


def _catalyzed_grid(scales: Scales) -> list[Mapping[str, Any]]:
    theta, n = scales.delta / scales.clients**0.5, scales.clients
    sizes, convexities = [c / scales.delta for c in (0.1, 0.3, 1.0, 3.0)], [theta * q for q in (0.01, 0.1, 1.0)]
    return settings(step_size=sizes, probability=(1 / n,), pull=(theta,), convexity=convexities, period=(2 * n,))


for _key, _name, _build, _more, _build_grid in (
    ("svrp", "SVRP", svrp, {}, _grid),
    ("catalyzed_svrp", "SVRP, catalyzed", catalyzed_svrp, {"pull": 0.1, "convexity": 0.25, "period": 10},
     _catalyzed_grid),
):  # fmt: skip
    register(_key, Method(
        name=_name, build=_build, example={"step_size": 2.0, "probability": 0.1, "solver": Exact(), **_more},
        similarity="yes", partial="partly", nonsmooth="yes", nonconvex="no", estimator="SVRG", oracle="prox",
        down=Cost(3), coin="no", grid=_build_grid, reference="Khaled, Jin 2022, arXiv:2209.02257",
    ))  # fmt: skip


def _accelerated_grid(scales: Scales) -> list[Mapping[str, Any]]:
    sizes, p = [c / scales.delta for c in (0.1, 0.3, 1.0, 3.0)], min(1.0, scales.cohort / scales.clients)
    return settings(step_size=sizes, probability=(p,), mixing=(0.1, 0.3, 0.9), convexity=(0.0,))


for _key, _name, _build, _more, _build_grid in (
    ("svrs", "SVRS", svrs, {}, coin_grid),
    ("acc_svrs", "AccSVRS", acc_svrs, {"mixing": 0.5, "convexity": 0.25}, _accelerated_grid),
):
    register(_key, Method(
        name=_name, build=_build, similarity="yes", partial="partly", nonsmooth="yes", nonconvex="no",
        example={"cohort_size": 2, "step_size": 2.0, "probability": 0.2, "solver": Exact(), **_more}, estimator="SVRG",
        oracle="prox, delegate", phases=2, up=Cost(1, 1), down=Cost(2, 2), coin="no", grid=_build_grid,
        reference="Lin, Han, Ye, Zhang 2023, arXiv:2304.07504",
    ))  # fmt: skip
