"""S-DANE and its accelerated form: the prox around a stabilized center."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import step_grid
from fedspam.methods._method import RoundInfo, Stateless, sample_or_all
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.estimators import gradient
from fedspam.methods.schedules import Schedule, ScheduleLike, step_size_schedule
from fedspam.solvers import LBFGS, Certificate, Exact, LocalSolver


class StableState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    v: Params
    weight: Scalar  # A/B of the paper: how much x counts against v in the center; 0 without acceleration
    k: Any


class StableReply(NamedTuple):
    """What a client sends after its prox: its point, its gradient there, and what its solver reached."""

    x: Params
    gradient: Params
    certificate: Certificate


@struct
class StableDane(Stateless):
    """S-DANE and Acc-S-DANE. Use `s_dane` or `acc_s_dane` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    convexity: float | Scalar = number(0)
    solver: LocalSolver
    cohort_size: int | None = count(or_none=True)
    accelerated: bool = static(kw_only=True)
    name: str = static(kw_only=True)

    def init(self, params: Params, key: Key, fed: Federation) -> StableState:
        weight = jnp.zeros((), jnp.result_type(*jax.tree.leaves(params)))
        return StableState(params, params, weight, jnp.zeros((), jnp.int32))

    def round(self, state: StableState, key: Key, fed: Federation) -> tuple[StableState, RoundInfo]:
        gamma, mu, weight = self.step_size(state.k), self.convexity, state.weight
        a, center = center_of(state, gamma, self.accelerated)

        cohort = sample_or_all(self.cohort_size, key, fed)
        g = fed.mean(cohort, self.gradient, x=center)
        reply = fed.mean(cohort, self.prox, x=center, g=g, step_size=gamma)

        v = next_v(state.v, a, mu, reply.x, reply.gradient)
        if self.accelerated:
            weight = jnp.asarray((weight + a) / (1 + mu * a), weight.dtype)
        gradients = cohort.size * (2 + reply.certificate.gradients)
        info = RoundInfo(step_size=gamma, certificate=reply.certificate, gradients=gradients)
        return StableState(reply.x, v, weight, state.k + 1), info

    gradient = gradient

    @on_client
    def prox(self, oracle: Oracle, key: Key, *, x: Params, g: Params, step_size: Any) -> StableReply:
        y, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
        return StableReply(y, jax.grad(oracle)(y, key), certificate)


def center_of(state: Any, gamma: Any, accelerated: bool) -> tuple[Any, Params]:
    """The weight a of this step, and the center of its proxes: v, or a point between x and v."""
    if not accelerated:
        return gamma, state.v
    weight = state.weight
    a = 0.5 * (gamma + jnp.sqrt(gamma**2 + 4 * gamma * weight))  # a^2 / gamma = weight + a
    return a, trees.axpy(weight / (weight + a), state.x, trees.scale(a / (weight + a), state.v))


def next_v(v: Params, a: Any, convexity: Any, x: Params, gradient: Params) -> Params:
    """v after a step along the mean gradient at the clients' answers, whose mean is x."""
    moved = trees.axpy(convexity * a, x, trees.axpy(-a, gradient, v))
    return trees.divide(moved, 1 + convexity * a)


def s_dane(
    cohort_size: int | None, step_size: ScheduleLike, *, convexity: float = 0.0, solver: LocalSolver = LBFGS()
) -> StableDane:
    r"""S-DANE: as `dane`, but around a center v that follows the gradients at the clients' answers.

    .. math::
        x^i &\approx \arg\min_y f_i(y) + \langle\nabla f_S(v_k) - \nabla f_i(v_k), y\rangle
            + \tfrac{1}{2\gamma}\|y - v_k\|^2, \qquad x_{k+1} = \tfrac1B\sum_{i\in S} x^i \\
        v_{k+1} &= \frac{\mu\gamma\,x_{k+1} + v_k - \gamma\bar g}{1 + \mu\gamma}, \qquad
            \bar g = \tfrac1B\sum_{i\in S}\nabla f_i(x^i)

    Unlike DANE it needs only a constant local accuracy, :math:`\|\nabla\phi(x^i)\| \le \frac{1}{2\gamma}\|x^i - v\|`;
    the default solver's certificate is tighter. Convex f: :math:`\gamma \approx 1/(2\delta)`, :math:`O((\delta/\mu)\log
    1/\epsilon)` rounds, plus the sampling variance of a cohort that is not everyone.

    Arguments:
        step_size: :math:`1/\lambda`.
        convexity: :math:`\mu`, of f; 0 is always valid.

    Jiang, Rodomanov, Stich: Stabilized proximal-point methods for federated optimization, 2024, arXiv:2407.07084.

    >>> from fedspam.problems import progress
    >>> progress(s_dane(None, step_size=5.0, solver=Exact()), rounds=20, clients=10) < 0.001
    True
    """
    return StableDane(step_size, convexity, solver, cohort_size, accelerated=False, name="s_dane")


def acc_s_dane(
    cohort_size: int | None, step_size: ScheduleLike, *, convexity: float = 0.0, solver: LocalSolver = LBFGS()
) -> StableDane:
    r"""Acc-S-DANE: S-DANE with the center between x and v.

    .. math::
        \tfrac1\gamma a^2 &= A_k + a, \qquad c_k = \frac{A_kx_k + a v_k}{A_k + a}, \qquad A_0 = 0 \\
        v_{k+1} &= \frac{\mu a\,x_{k+1} + v_k - a\bar g}{1 + \mu a}, \qquad A_{k+1} = \frac{A_k + a}{1 + \mu a}

    where the clients' problems are those of `s_dane` around :math:`c_k`. The paper's A and B grow without bound where
    :math:`\mu > 0`; only their ratio matters, which is the A here. It takes :math:`O(\sqrt{\delta/\mu}\log 1/\epsilon)`
    rounds. Arguments and paper: as `s_dane`.

    >>> from fedspam.problems import progress
    >>> progress(acc_s_dane(None, step_size=5.0, convexity=1.0, solver=Exact()), rounds=20, clients=10) < 0.001
    True
    """
    return StableDane(step_size, convexity, solver, cohort_size, accelerated=True, name="acc_s_dane")


for _key, _name, _build in (("s_dane", "S-DANE", s_dane), ("acc_s_dane", "Acc-S-DANE", acc_s_dane)):
    register(_key, Entry(
        name=_name, build=_build, verified="code",
        example={"cohort_size": 4, "step_size": 0.5, "convexity": 0.25, "solver": Exact()}, similarity="yes",
        partial="partly", nonsmooth="yes", nonconvex="no", estimator="cohort gradient", oracle="a-prox, all", phases=2,
        up=Cost(3), down=Cost(2), grid=step_grid, reference="Jiang, Rodomanov, Stich 2024, arXiv:2407.07084",
    ))  # fmt: skip
