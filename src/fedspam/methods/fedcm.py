"""FedCM, also called FedAvg-M: local steps along a mixture of the client's gradient and the server's last direction."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import current_x, no_memory
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import RateInfo, descend, positive_schedule
from fedspam.methods._registry import Cost, Method, register
from fedspam.methods.schedules import Schedule, ScheduleLike


class FedCMState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    g: Params  # the mean direction of the last round
    k: Any  # rounds that counted; the index of the schedules


@struct
class FedCM:
    """FedCM. Use `fedcm` to build it."""

    local_rate: Schedule
    server_step_size: Schedule
    fresh_weight: float | Scalar
    cohort_size: int = static()
    local_steps: int = static()
    name: str = static(default="fedcm")

    def __post_init__(self) -> None:
        checks.whole("cohort_size", self.cohort_size, 1)
        checks.whole("local_steps", self.local_steps, 1)
        checks.between("fresh_weight", self.fresh_weight, 0, 1, open_low=True, remedy="1 is FedAvg, 0.1 is common")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> FedCMState:
        return FedCMState(x=params, g=trees.zeros_like(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: FedCMState, key: Key[Array, ""], fed: Federation) -> tuple[FedCMState, RateInfo]:
        eta = self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        moved = fed.mean(cohort, self.train, x=state.x, g=state.g, local_rate=eta)

        g = trees.divide(moved, -self.local_steps * eta)
        x = trees.axpy(self.server_step_size(state.k), moved, state.x)
        return FedCMState(x, g, state.k + 1), RateInfo(eta, cohort.size * self.local_steps)

    @on_client
    def train(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, g: Params, local_rate: Any) -> Params:
        # beta grad + (1 - beta) g = beta (grad + shift)
        beta = self.fresh_weight
        shift = trees.scale((1 - beta) / beta, g)
        y = descend(oracle, key, x, steps=self.local_steps, local_rate=beta * local_rate, shift=shift)
        return trees.subtract(y, x)

    params, client_state = current_x, no_memory


def fedcm(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    *,
    fresh_weight: float = 0.1,
    server_step_size: ScheduleLike = 1.0,
) -> FedCM:
    r"""FedCM, also called FedAvg-M: FedAvg whose local steps go along the server's direction, too.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\beta\nabla f_i(y_i) + (1-\beta)\,g_k\big)
            \quad\text{(m times, from } x_k) \\
        g_{k+1} &= \frac{1}{m\eta_k B}\sum_{i\in S_k}(x_k - y_i), \qquad
        x_{k+1} = x_k - \eta_s m\eta_k\,g_{k+1}, \qquad g_0 = 0

    One exchange, 2d floats down and d up for each client, no state on clients, one vector more on the server. The part
    :math:`1-\beta` of a step is the same for all clients, so they drift apart :math:`\beta` times as fast. If all
    clients take part, it converges without a bound on their dissimilarity, with a constant rate (Cheng et al.).

    Arguments:
        cohort_size: B.
        local_steps: m, each on a minibatch of its own.
        local_rate: :math:`\eta_k`: a number, one value per round, or a schedule.
        fresh_weight: :math:`\beta` in (0, 1], the weight of the fresh gradient; 1 is FedAvg.
        server_step_size: :math:`\eta_s`; Cheng et al.'s :math:`\gamma` is :math:`\eta_s m\eta`.

    Xu, Wang, Wang, Yao: FedCM: Federated learning with client-level momentum, 2021, arXiv:2106.10874; Cheng, Huang, Wu,
    Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504, FedAvg-M.

    >>> from fedspam.problems import progress
    >>> progress(fedcm(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    return FedCM(
        local_rate=positive_schedule(local_rate, "local_rate"),
        server_step_size=positive_schedule(server_step_size, "server_step_size"),
        fresh_weight=fresh_weight,
        cohort_size=cohort_size,
        local_steps=local_steps,
    )


register("fedcm", Method(
    name="FedCM, FedAvg-M", build=fedcm, oracle="m steps", estimator="momentum", down=Cost(2), grid=few_steps_grid,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "fresh_weight": 0.3}, exact=False,
    reference="Xu, Wang, Wang, Yao 2021, arXiv:2106.10874; Cheng, Huang, Wu, Yuan 2024, arXiv:2306.16504",
))  # fmt: skip
