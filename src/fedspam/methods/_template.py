"""The template of most methods: estimator x local solver x movers."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import PyTree

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, choice, count, dynamic, static, struct
from fedspam.federation import Federation
from fedspam.methods._method import MOVERS, RoundInfo, Start, Stateless, Zero, prox, sample_or_all, select_movers
from fedspam.methods.estimators import Estimate, Estimator, Iterate
from fedspam.methods.schedules import Schedule, step_size_schedule
from fedspam.solvers import LocalSolver


class FactoredState(NamedTuple):
    """What the server of a factored method keeps between rounds."""

    x: Params
    x_prev: Params
    estimate: Estimate
    k: Any  # rounds that counted; the index of the schedules


@struct
class Factored(Stateless):
    r"""A method made of three parts: an estimator, a local solver, and the choice of who moves.

    That is 'one' of the cohort, a 'fresh' client, a 'second' cohort, the 'average' of the cohort, 'everyone', a fixed
    'delegate', client 0, or the 'server' itself, :math:`x_{k+1} = x_k - \gamma_k g_k`.
    """

    estimator: Estimator  # how the server makes g_k from an exchange with the cohort
    solver: LocalSolver | None  # how the movers minimize phi around x_k and g_k; None where the server moves
    step_size: Schedule = dynamic(converter=step_size_schedule)  # of phi, or of the server's step
    start: Start = Zero()  # how g_0 is made
    movers: str = choice(*MOVERS, "server", default="one")
    cohort_size: int | None = count(or_none=True, default=1)  # clients asked for the estimate; None for all of them
    name: str = static(default="factored")  # key of the method in `METHODS`

    def __post_init__(self) -> None:
        if self.solver is None and self.movers != "server":
            raise ValueError(f"movers = {self.movers!r} needs a solver, but solver is None; give one, such as LBFGS()")

    def init(self, params: Params, key: Key, fed: Federation) -> FactoredState:
        estimate = self.estimator.begin(params, self.start(params, key, fed))
        return FactoredState(x=params, x_prev=params, estimate=estimate, k=jnp.zeros((), jnp.int32))

    def round(self, state: FactoredState, key: Key, fed: Federation) -> tuple[FactoredState, RoundInfo]:
        gamma = self.step_size(state.k)

        cohort = sample_or_all(self.cohort_size, key, fed)
        now = Iterate(state.k, state.x, state.x_prev)
        estimate, gradients = self.estimator.update(state.estimate, cohort, fed, now)
        if self.movers == "server":
            x, certificate = trees.axpy(-gamma, estimate.g, state.x), ()
        else:
            movers = select_movers(self.movers, cohort, key, fed)
            x, certificate = fed.mean(movers, self.prox, x=state.x, g=estimate.g, step_size=gamma)
            gradients = gradients + movers.size * certificate.gradients

        state = FactoredState(x=x, x_prev=state.x, estimate=estimate, k=state.k + 1)
        return state, RoundInfo(step_size=gamma, certificate=certificate, gradients=gradients)

    prox = prox

    def client_state(self, params: Params) -> PyTree:
        return self.estimator.client_state(params)
