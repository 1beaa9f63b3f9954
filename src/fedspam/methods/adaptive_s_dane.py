"""S-DANE and Acc-S-DANE that find the step size by a line search over rounds."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, number, positive, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import step_grid
from fedspam.methods._method import RoundInfo, Stateful
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.estimators import gradient
from fedspam.methods.s_dane import center_of, next_v
from fedspam.solvers import LBFGS, Certificate, Exact, LocalSolver

ROUNDING = 32  # units of the last place by which gradients and points may be wrong


class LineSearchState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    v: Params
    weight: Scalar  # A/B of the paper: how much x counts against v in the center; 0 without acceleration
    step_size: Scalar


class SearchReply(NamedTuple):
    """After its prox a client sends its point, its gradient there, their product, and what its solver reached."""

    x: Params
    gradient: Params
    product: Scalar
    lengths: Scalar  # the product of the two lengths, which the product of the vectors never exceeds
    certificate: Certificate


class CheckReply(NamedTuple):
    """At the mean point a client sends its gradient, and the product of that with the step to its own point."""

    gradient: Params
    product: Scalar
    lengths: Scalar


@struct
class SearchingDane(Stateful):
    """S-DANE and Acc-S-DANE with a line search. Use `adaptive_s_dane` or `adaptive_acc_s_dane` to build it."""

    step_size: float | Scalar = positive()
    convexity: float | Scalar = number(0)
    solver: LocalSolver
    accelerated: bool = static(kw_only=True)
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key, fed: Federation) -> LineSearchState:
        weight = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        return LineSearchState(params, params, weight, jnp.asarray(self.step_size, weight.dtype))

    def round(self, state: LineSearchState, key: Key, fed: Federation) -> tuple[LineSearchState, RoundInfo]:
        gamma, weight, mu = state.step_size, state.weight, jnp.asarray(self.convexity, state.weight.dtype)
        a, center = center_of(state, gamma, self.accelerated)

        everyone = fed.everyone(key)
        g = fed.mean(everyone, self.gradient, x=center)
        reply = fed.mean(everyone, self.prox, x=center, g=g, step_size=gamma)
        check = fed.mean(everyone, self.check, x=center, mean=reply.x)

        # mean <grad f_i(x_i) - grad f_i(mean) + grad f(mean), center - x_i>, part by part
        gained = reply.product - check.product + trees.dot(check.gradient, trees.subtract(center, reply.x))
        needed = 0.5 * gamma * trees.squared_norm(reply.gradient)
        # What rounding leaves of the test. The gradients of single clients do not vanish at the optimum, and neither do
        # their errors: those of products are units of the lengths, however small the products and their sum are. The
        # errors of points are units of the center.
        unit = ROUNDING * jnp.finfo(weight.dtype).eps
        by_gradients = unit * (reply.lengths + check.lengths + needed)
        by_points = unit * trees.norm(center) * trees.norm(reply.gradient)
        passed = gained >= needed - by_gradients - by_points

        moved = LineSearchState(reply.x, next_v(state.v, a, mu, reply.x, reply.gradient), weight, gamma)
        if self.accelerated:
            moved = moved._replace(weight=(weight + a) / (1 + mu * a))
        # a test that rounding decides is not a reason for a larger step; a step too short for the points is one
        moved = moved._replace(step_size=jnp.where(needed > by_gradients, 2 * gamma, gamma))
        state = trees.where(passed, moved, state._replace(step_size=gamma / 2))
        gradients, passed = everyone.size * (3 + reply.certificate.gradients), passed.astype(weight.dtype)
        return state, RoundInfo(step_size=gamma, passed=passed, certificate=reply.certificate, gradients=gradients)

    gradient = gradient

    @on_client(stateful=True)
    def prox(
        self, oracle: Oracle, key: Key, memory: Params, *, x: Params, g: Params, step_size: Any
    ) -> tuple[SearchReply, Params]:
        y, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
        own, step = jax.grad(oracle)(y, key), trees.subtract(x, y)
        return SearchReply(y, own, trees.dot(own, step), trees.norm(own) * trees.norm(step), certificate), y

    @on_client(stateful=True)
    def check(self, oracle: Oracle, key: Key, memory: Params, *, x: Params, mean: Params) -> tuple[CheckReply, Params]:
        there, step = jax.grad(oracle)(mean, key), trees.subtract(x, memory)
        return CheckReply(there, trees.dot(there, step), trees.norm(there) * trees.norm(step)), memory


def adaptive_s_dane(step_size: float = 1.0, *, convexity: float = 0.0, solver: LocalSolver = LBFGS()) -> SearchingDane:
    r"""S-DANE with a line search: as `s_dane` with everyone, but no similarity needs to be known.

    .. math:: \frac1n\sum_i\langle\nabla f_i(x^i) - \nabla f_i(\bar x) + \nabla f(\bar x), v_k - x^i\rangle
        \ge \frac{\gamma_k}{2}\,\|\bar g\|^2, \qquad
        \bar x = \frac1n\sum_i x^i, \quad \bar g = \frac1n\sum_i\nabla f_i(x^i)

    is what the theory needs of a step. A round tries one step size: if the test holds, the round moves as S-DANE does
    and the next step size is :math:`2\gamma_k`; otherwise nothing moves and it is :math:`\gamma_k/2`. Near
    :math:`1/\delta` every second round is lost. Between the last two exchanges a client remembers :math:`x^i`. The
    gradients must be whole and everyone must take part: with noise the test tells nothing.

    Arguments:
        step_size: :math:`\gamma_0`; one that is too large costs some rounds.
        convexity: :math:`\mu`, of f; 0 is always valid.

    Jiang, Rodomanov, Stich: Stabilized proximal-point methods for federated optimization, 2024, arXiv:2407.07084,
    the adaptive variant; the test is that of the authors' code.

    >>> from fedspam.problems import progress
    >>> progress(adaptive_s_dane(1e3, solver=Exact()), rounds=40, clients=10) < 0.001
    True
    """
    return SearchingDane(step_size, convexity, solver, accelerated=False, name="adaptive_s_dane")


def adaptive_acc_s_dane(
    step_size: float = 1.0, *, convexity: float = 0.0, solver: LocalSolver = LBFGS()
) -> SearchingDane:
    r"""Acc-S-DANE with a line search: as `acc_s_dane` with everyone and the test of `adaptive_s_dane`.

    .. math:: \frac1n\sum_i\langle\nabla f_i(x^i) - \nabla f_i(\bar x) + \nabla f(\bar x), c_k - x^i\rangle
        \ge \frac{\gamma_k}{2}\,\|\bar g\|^2

    where the proxes are around :math:`c_k`, which lies between :math:`x_k` and :math:`v_k`. Where the test fails, the
    weights of both stay, too. Arguments and paper: as `adaptive_s_dane`.

    >>> from fedspam.problems import progress
    >>> progress(adaptive_acc_s_dane(1e3, solver=Exact()), rounds=40, clients=10) < 0.01
    True
    """
    return SearchingDane(step_size, convexity, solver, accelerated=True, name="adaptive_acc_s_dane")


for _key, _name, _build in (
    ("adaptive_s_dane", "S-DANE, adaptive", adaptive_s_dane),
    ("adaptive_acc_s_dane", "Acc-S-DANE, adaptive", adaptive_acc_s_dane),
):
    register(_key, Entry(
        name=_name, build=_build, verified="code", example={"step_size": 4.0, "convexity": 0.25, "solver": Exact()},
        similarity="yes", partial="no", stateless="no", nonsmooth="yes", nonconvex="no", estimator="exact",
        oracle="a-prox, all", phases=3, up=Cost(4), down=Cost(3), grid=step_grid,
        reference="Jiang, Rodomanov, Stich 2024, arXiv:2407.07084",
    ))  # fmt: skip
