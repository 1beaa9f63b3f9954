"""SVRP and its Catalyst form: a prox corrected at an anchor whose exact gradient a coin renews."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, dynamic, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import coin_grid, grid, prox_sizes
from fedspam.methods._method import Move, RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, Scales, register
from fedspam.methods.estimators import Anchor, anchor_at, coin, gradient
from fedspam.methods.schedules import Schedule, ScheduleLike, probability_schedule, step_size_schedule
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

    pull: float = positive()  # theta
    convexity: float = positive()  # mu
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
class Svrp(Stateless):
    """SVRP. Use `svrp` or `catalyzed_svrp` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    probability: Schedule = dynamic(converter=probability_schedule)
    solver: LocalSolver
    catalyst: Catalyst | None = None
    name: str = static(default="svrp")

    def init(self, params: Params, key: Key, fed: Federation) -> SvrpState:
        outer = () if self.catalyst is None else Outer(params, params)
        return SvrpState(params, Anchor(params, trees.zeros_like(params)), outer, jnp.zeros((), jnp.int32))

    def round(self, state: SvrpState, key: Key, fed: Federation) -> tuple[SvrpState, RoundInfo]:
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

        gradients = spent + 2 + reply.certificate.gradients
        info = RoundInfo(step_size=gamma, certificate=reply.certificate, gradients=gradients)
        return SvrpState(reply.x, anchor, outer, state.k + 1), info

    gradient = gradient

    @on_client
    def step(self, oracle: Oracle, key: Key, *, x: Params, anchor: Params, g: Params, step_size: Any) -> Move:
        # the solver's phi has the slope g at x, so the control variate at the anchor enters as the client's own g
        here, there = jax.grad(oracle)(x, key), jax.grad(oracle)(anchor, key)
        own = trees.add(trees.subtract(here, there), g)
        return Move(*self.solver(oracle, key, x=x, g=own, step_size=step_size))


def svrp(step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Svrp:
    r"""SVRP: the prox of a random client, corrected by its gradient at an anchor whose exact gradient is known.

    .. math:: x_{k+1} \approx \mathrm{prox}_{\gamma f_\xi}\bigl(x_k - \gamma(\nabla f(w) - \nabla f_\xi(w))\bigr),
        \qquad w = x_k \text{ with probability } p, \text{ and in round } 0

    When the anchor moves, everyone is asked. The paper throws its coin after the step, for the next round. Here it is
    thrown before the step: the same method. Theory, for :math:`\mu`-strongly convex clients: :math:`\gamma =
    \mu/(2\delta^2)`, :math:`p = 1/n`, :math:`O((n + \delta^2/\mu^2)\log 1/\epsilon)` rounds; there is no theory for
    non-convex ones.

    Khaled, Jin: Faster federated optimization under second-order similarity, 2022, arXiv:2209.02257.

    >>> from fedspam.problems import progress
    >>> progress(svrp(step_size=2.0, probability=0.1, solver=Exact()), clients=10) < 0.001
    True
    """
    return Svrp(step_size, probability, solver)


def catalyzed_svrp(
    step_size: ScheduleLike, probability: ScheduleLike, pull: float, convexity: float, period: int,
    *, solver: LocalSolver = LBFGS(),
) -> Svrp:  # fmt: skip
    r"""SVRP inside an accelerating outer loop.

    For `period` rounds SVRP works on :math:`f + \frac\theta2\|\cdot - y_t\|^2`, from the last point and with a fresh
    anchor; then :math:`y_{t+1} = x_{t+1} + \beta(x_{t+1} - x_t)`. The quadratic is known to the server, which sends the
    center and the step size of the joint prox. Theory: :math:`\mu + \theta = \delta/\sqrt n`, :math:`O((n +
    n^{3/4}\sqrt{\delta/\mu})\log 1/\epsilon)` rounds.

    Arguments:
        pull, convexity: :math:`\theta` and :math:`\mu`.
        period: rounds for each outer step.

    Paper: as `svrp`.

    >>> from fedspam.problems import progress
    >>> progress(catalyzed_svrp(2.0, 0.1, pull=0.1, convexity=1.0, period=10, solver=Exact()), clients=10) < 0.001
    True
    """
    checks.whole("period", period, 1)
    return Svrp(step_size, probability, solver, Catalyst(pull, convexity, period), "catalyzed_svrp")


def _catalyzed_grid(scales: Scales) -> list[Mapping[str, Any]]:
    theta, n = scales.delta / scales.clients**0.5, scales.clients
    convexities = [theta * q for q in (0.01, 0.1, 1.0)]
    fixed = {"probability": (1 / n,), "pull": (theta,), "convexity": convexities, "period": (2 * n,)}
    return grid(step_size=prox_sizes, **fixed)(scales)


for _key, _name, _build, _more, _build_grid in (
    ("svrp", "SVRP", svrp, {}, lambda scales: coin_grid(scales._replace(cohort=1))),
    ("catalyzed_svrp", "SVRP, catalyzed", catalyzed_svrp, {"pull": 0.1, "convexity": 0.25, "period": 10},
     _catalyzed_grid),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={"step_size": 2.0, "probability": 0.1, "solver": Exact(), **_more},
        similarity="yes", partial="partly", nonsmooth="yes", nonconvex="no", estimator="SVRG", oracle="prox",
        down=Cost(3), coin="no", grid=_build_grid, reference="Khaled, Jin 2022, arXiv:2209.02257",
    ))  # fmt: skip
