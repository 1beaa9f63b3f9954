"""FedAvg-M-VR: FedCM whose server direction is corrected by how each client's gradient has changed since."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import current_x, mvr_difference, no_memory
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import RateInfo, positive_schedule
from fedspam.methods._registry import Cost, Method, register
from fedspam.methods.schedules import Schedule, ScheduleLike


class FedCMVRState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    x_prev: Params
    g: Params  # the mean direction of the last round
    k: Any  # rounds that counted; the index of the schedules


@struct
class FedCMVR:
    """FedAvg-M-VR. Use `fedcm_vr` to build it."""

    local_rate: Schedule
    server_step_size: Schedule
    fresh_weight: float | Scalar
    cohort_size: int = static()
    local_steps: int = static()
    name: str = static(default="fedcm_vr")

    def __post_init__(self) -> None:
        checks.whole("cohort_size", self.cohort_size, 1)
        checks.whole("local_steps", self.local_steps, 1)
        checks.between("fresh_weight", self.fresh_weight, 0, 1, open_low=True, remedy="1 is FedAvg, 0.1 is common")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> FedCMVRState:
        return FedCMVRState(x=params, x_prev=params, g=trees.zeros_like(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: FedCMVRState, key: Key[Array, ""], fed: Federation) -> tuple[FedCMVRState, RateInfo]:
        eta = self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        moved = fed.mean(cohort, self.train, x=state.x, x_prev=state.x_prev, g=state.g, local_rate=eta)

        g = trees.divide(moved, -self.local_steps * eta)
        x = trees.axpy(self.server_step_size(state.k), moved, state.x)
        return FedCMVRState(x, state.x, g, state.k + 1), RateInfo(eta, 2 * cohort.size * self.local_steps)

    @on_client
    def train(
        self, oracle: Oracle, key: Key[Array, ""], *, x: Params, x_prev: Params, g: Params, local_rate: Any
    ) -> Params:
        beta = self.fresh_weight

        def step(j: Any, y: Params) -> Params:
            difference = mvr_difference(oracle, jax.random.fold_in(key, j), y, x_prev, beta)
            return trees.axpy(-local_rate, trees.axpy(1 - beta, g, difference), y)

        return trees.subtract(lax.fori_loop(0, self.local_steps, step, x), x)

    params, client_state = current_x, no_memory


def fedcm_vr(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    *,
    fresh_weight: float = 0.1,
    server_step_size: ScheduleLike = 1.0,
) -> FedCMVR:
    r"""FedAvg-M-VR: `fedcm` with variance reduction, by the recursion of `mvr` in every local step.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\nabla f_i(y_i; \zeta) + (1-\beta)\,(g_k - \nabla f_i(x_{k-1}; \zeta))\big)
            \quad\text{(m times, from } x_k) \\
        g_{k+1} &= \frac{1}{m\eta_k B}\sum_{i\in S_k}(x_k - y_i), \qquad
        x_{k+1} = x_k - \eta_s m\eta_k\,g_{k+1}, \qquad g_0 = 0,\ x_{-1} = x_0

    Both gradients of a step are on the same minibatch :math:`\zeta`, so it costs two. One exchange, 3d floats down and
    d up for each client, no state on clients, two vectors more on the server. With one local step on whole gradients it
    is `mvr` from :math:`g_0 = 0`.

    The full text of the paper was not at hand: this is `fedcm` with its direction replaced by that of STORM, and the
    paper may begin with another :math:`g_0`.

    Arguments:
        cohort_size, local_rate, server_step_size: as `fedcm`.
        local_steps: m, each with two gradients on a minibatch of its own.
        fresh_weight: :math:`\beta` in (0, 1]; 1 is FedAvg.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    FedAvg-M-VR.

    >>> from fedspam.problems import progress
    >>> progress(fedcm_vr(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    return FedCMVR(
        local_rate=positive_schedule(local_rate, "local_rate"),
        server_step_size=positive_schedule(server_step_size, "server_step_size"),
        fresh_weight=fresh_weight,
        cohort_size=cohort_size,
        local_steps=local_steps,
    )


register("fedcm_vr", Method(
    name="FedAvg-M-VR", build=fedcm_vr, oracle="m steps", estimator="MVR", down=Cost(3), grid=few_steps_grid,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "fresh_weight": 0.3}, exact=False,
    reference="Cheng, Huang, Wu, Yuan 2024, arXiv:2306.16504",
))  # fmt: skip
