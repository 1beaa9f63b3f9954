"""SPAM: one client, one exchange, a prox corrected by momentum variance reduction (Algorithm 1)."""

import dataclasses
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, choice, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import prox_grid
from fedspam.methods._method import RoundInfo, SpamState, Start, StartLike, Stateless, mvr_difference, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.schedules import (
    Constant,
    Schedule,
    ScheduleLike,
    cube_root,
    first_fresh_weight,
    fresh_weight_schedule,
    step_size_schedule,
)
from fedspam.solvers import LBFGS, Certificate, Exact, GradientDescent, LocalSolver


class SpamReply(NamedTuple):
    """What the client sends back: the new point, the new estimate, and what its solver reached."""

    x: Params
    g: Params
    certificate: Certificate


@struct
class SpamParameters(Stateless):
    """What SPAM, SPAM-PP and SPAM-PPA have in common: their numbers, and how g begins."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    fresh_weight: Schedule = dynamic(converter=fresh_weight_schedule)
    solver: LocalSolver
    start: Start
    scale: float | Scalar | None = number(0, 1, remedy="1 is MVR, 0 is SGD with momentum", default=None)
    first: str = choice("given", "update", default="given")
    name: str = static(default="spam")

    def init(self, params: Params, key: Key, fed: Federation) -> SpamState:
        g = self.start(params, key, fed)
        return SpamState(x=params, x_prev=params, g=g, k=jnp.zeros((), jnp.int32))


@struct
class Spam(SpamParameters):
    r"""SPAM and SPAM-inexact (Algorithm 1). Use `spam` to build it.

    .. math::
        g_k &= \nabla f_{\xi_k}(x_k) + (1-p_k)\,(g_{k-1} - \nabla f_{\xi_k}(x_{k-1})) \\
        x_{k+1} &= \mathrm{prox}_{\gamma_k f_{\xi_k}}(x_k + \gamma_k(\nabla f_{\xi_k}(x_k) - g_k))

    The printed algorithm sends :math:`x_{k+1}` alone; the next client needs :math:`g_k` too, so it is sent and charged.
    """

    def round(self, state: SpamState, key: Key, fed: Federation) -> tuple[SpamState, RoundInfo]:
        gamma = self.step_size(state.k)
        p = first_fresh_weight(self.fresh_weight, self.first, state.k)

        client = fed.sample(key, 1)
        reply = fed.mean(
            client, self.update, x=state.x, x_prev=state.x_prev, g=state.g, step_size=gamma, fresh_weight=p
        )

        gradients = 2 + reply.certificate.gradients
        info = RoundInfo(step_size=gamma, fresh_weight=p, certificate=reply.certificate, gradients=gradients)
        return SpamState(x=reply.x, x_prev=state.x, g=reply.g, k=state.k + 1), info

    @on_client
    def update(
        self, oracle: Oracle, key: Key, *, x: Params, x_prev: Params, g: Params, step_size: Any, fresh_weight: Any
    ) -> SpamReply:
        difference = mvr_difference(oracle, key, x, x_prev, fresh_weight, self.scale)
        g = trees.axpy(1 - fresh_weight, g, difference)
        x, certificate = self.solver(oracle, key, x=x, g=g, step_size=step_size)
        return SpamReply(x, g, certificate)


def spam(
    step_size: ScheduleLike, fresh_weight: ScheduleLike,
    *, solver: LocalSolver = LBFGS(), start: StartLike = "client", scale: float | None = None, first: str = "given",
) -> Spam:  # fmt: skip
    r"""SPAM: the stochastic proximal point method with momentum variance reduction.

    One client per round. With an exact solver it is SPAM, with any other SPAM-inexact.

    Arguments:
        step_size: the theorems need :math:`\gamma_k \le 1/(4\delta)`.
        start: how :math:`g_0` is made: 'client' (one gradient), 'zero', a number of exchanges, or the gradient itself.
        scale: s of MARS, in [0, 1]: weight of the gradient difference in the estimate (see `MVR`); None is s = 1.
        first: 'given' keeps :math:`g_0` in round 0, 'update' runs the printed loop from there.

    Karagulyan, Shulgin, Sadiev, Richtárik: SPAM, 2024, arXiv:2405.20127, Algorithm 1.

    >>> import jax, jax.numpy as jnp
    >>> from fedspam import simulate, spam
    >>> from fedspam.problems import quadratics
    >>> from fedspam.solvers import Exact
    >>> clients = quadratics(jax.random.key(0), clients=10, dimension=5, delta=0.1)
    >>> method = spam(step_size=0.5, fresh_weight=0.1, solver=Exact())
    >>> run = simulate(method, clients, jnp.ones(5), rounds=200, key=1)
    >>> bool(jnp.linalg.norm(clients.gradient(run.params)) < 0.1 * jnp.linalg.norm(clients.gradient(jnp.ones(5))))
    True
    """
    method = Spam(step_size, fresh_weight, solver, start_from(start, 1), scale, first)
    constant = isinstance(method.step_size, Constant) and isinstance(method.fresh_weight, Constant)
    name = ("spam" if constant else "spam_varying") if isinstance(solver, Exact) else "spam_inexact"
    return dataclasses.replace(method, name=name)


for _key, _name, _oracle, _example in (
    ("spam", "SPAM", "prox", {"step_size": 1.0, "fresh_weight": 0.2, "solver": Exact()}),
    ("spam_varying", "SPAM, varying", "prox", {**cube_root(delta=0.1)._asdict(), "solver": Exact()}),
    ("spam_inexact", "SPAM-inexact", "a-prox",
     {"step_size": 1.0, "fresh_weight": 0.2, "solver": GradientDescent(steps=3)}),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=spam, example=_example, similarity="yes", nonsmooth="yes", estimator="MVR", oracle=_oracle,
        up=Cost(2), down=Cost(3), grid=prox_grid,
        reference="Karagulyan, Shulgin, Sadiev, Richtárik 2024, arXiv:2405.20127",
    ))  # fmt: skip
