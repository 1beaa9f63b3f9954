"""The template behind most methods: estimator x client oracle x who."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam import _check
from fedspam._tree import Params, static, struct
from fedspam.algorithms._algorithm import Start
from fedspam.estimators import Estimate, Estimator
from fedspam.federation import Cohort, Federation, on_client
from fedspam.population import Oracle
from fedspam.prox import Certificate, LocalSolver
from fedspam.schedules import Schedule

WHO = ("one", "fresh", "average", "everyone", "delegate")


class FactoredState(NamedTuple):
    x: Params
    x_prev: Params
    estimate: Estimate
    k: Any  # rounds that counted; the index of the schedules


class Move(NamedTuple):
    x: Params
    certificate: Certificate


class FactoredInfo(NamedTuple):
    step_size: Any
    certificate: Certificate
    gradients: Any  # client gradients evaluated in this round


@struct
class Factored:
    """A method made of three parts.

    Arguments:
        estimator: how the server's g_k is made from an exchange with the cohort.
        solver: what the moving clients do with phi, given x_k, g_k and the step size.
        who: which clients move: 'one' of the cohort, a 'fresh' one, the 'average' of the cohort, 'everyone',
            or a fixed 'delegate', client 0.
        cohort_size: clients asked for the estimate.
        step_size: the gamma_k of phi.
        start: how g_0 is made.
    """

    estimator: Estimator
    solver: LocalSolver
    step_size: Schedule
    start: Start
    who: str = static()
    cohort_size: int = static()

    def __post_init__(self) -> None:
        _check.one_of("who", self.who, WHO)
        _check.whole("cohort_size", self.cohort_size, 1)

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> FactoredState:
        g = self.start(params, key, fed)
        return FactoredState(x=params, x_prev=params, estimate=Estimate(g), k=jnp.zeros((), jnp.int32))

    def round(self, state: FactoredState, key: Key[Array, ""], fed: Federation) -> tuple[FactoredState, FactoredInfo]:
        gamma = self.step_size(state.k)

        cohort = fed.sample(key, self.cohort_size)
        estimate, gradients = self.estimator.update(
            state.estimate, cohort, fed, k=state.k, x=state.x, x_prev=state.x_prev
        )
        movers = self._movers(cohort, key, fed)
        move = fed.mean(movers, self.prox, x=state.x, g=estimate.g, step_size=gamma)

        state = FactoredState(x=move.x, x_prev=state.x, estimate=estimate, k=state.k + 1)
        return state, FactoredInfo(gamma, move.certificate, gradients + movers.size * move.certificate.gradients)

    @on_client
    def prox(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, g: Params, step_size: Any) -> Move:
        return Move(*self.solver(oracle, key, x=x, g=g, step_size=step_size))

    def _movers(self, cohort: Cohort, key: Key[Array, ""], fed: Federation) -> Cohort:
        match self.who:
            case "one":
                return cohort.one(key)
            case "fresh":
                return fed.sample(key, 1, role="prox")
            case "average":
                return cohort
            case "everyone":
                return fed.everyone(key)
            case _:
                return fed.client(0, key)

    def params(self, state: FactoredState) -> Params:
        return state.x

    def client_state(self, params: Params) -> tuple[()]:
        return ()
