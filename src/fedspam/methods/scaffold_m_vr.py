"""SCAFFOLD-M-VR: SCAFFOLD-M whose server direction is corrected by how each client's gradient has changed since."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import current_x
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import RateInfo, positive_schedule
from fedspam.methods._registry import Cost, Method, register
from fedspam.methods.scaffold import ScaffoldReply
from fedspam.methods.schedules import Schedule, ScheduleLike


class ScaffoldMVRState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    x_prev: Params
    control: Params  # c, the mean of all clients' c_i
    g: Params  # the mean direction of the last round
    k: Any  # rounds that counted; the index of the schedules


@struct
class ScaffoldMVR:
    """SCAFFOLD-M-VR. Use `scaffold_m_vr` to build it."""

    local_rate: Schedule
    server_step_size: Schedule
    fresh_weight: float | Scalar
    cohort_size: int = static()
    local_steps: int = static()
    name: str = static(default="scaffold_m_vr")

    def __post_init__(self) -> None:
        checks.whole("cohort_size", self.cohort_size, 1)
        checks.whole("local_steps", self.local_steps, 1)
        checks.between("fresh_weight", self.fresh_weight, 0, 1, open_low=True, remedy="1 is SCAFFOLD, 0.1 is common")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> ScaffoldMVRState:
        zero = trees.zeros_like(params)
        return ScaffoldMVRState(x=params, x_prev=params, control=zero, g=zero, k=jnp.zeros((), jnp.int32))

    def round(self, state: ScaffoldMVRState, key: Key[Array, ""], fed: Federation) -> tuple[ScaffoldMVRState, RateInfo]:
        x, c, eta = state.x, state.control, self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=x, x_prev=state.x_prev, control=c, g=state.g, local_rate=eta)

        # c stays the mean of all c_i, also where replies are lost
        c = trees.add(c, trees.divide(trees.scale(fed.accepted, reply.control), fed.everyone(key).size))
        g = trees.divide(reply.moved, -self.local_steps * eta)
        state = ScaffoldMVRState(trees.axpy(self.server_step_size(state.k), reply.moved, x), x, c, g, state.k + 1)
        return state, RateInfo(eta, 2 * cohort.size * self.local_steps)

    @on_client(stateful=True)
    def train(
        self,
        oracle: Oracle,
        key: Key[Array, ""],
        memory: Params,
        *,
        x: Params,
        x_prev: Params,
        control: Params,
        g: Params,
        local_rate: Any,
    ) -> tuple[ScaffoldReply, Params]:
        beta = self.fresh_weight
        # what all steps share: beta (c - c_i) + (1 - beta) g
        shift = trees.axpy(1 - beta, g, trees.scale(beta, trees.subtract(control, memory)))

        def step(j: Any, now: tuple[Params, Params]) -> tuple[Params, Params]:
            y, total = now
            here, there = (jax.grad(oracle)(point, jax.random.fold_in(key, j)) for point in (y, x_prev))
            direction = trees.add(trees.axpy(beta - 1, there, here), shift)
            return trees.axpy(-local_rate, direction, y), trees.add(total, here)

        y, total = lax.fori_loop(0, self.local_steps, step, (x, trees.zeros_like(x)))
        new = trees.divide(total, self.local_steps)
        return ScaffoldReply(trees.subtract(y, x), trees.subtract(new, memory)), new

    params = current_x

    def client_state(self, params: Params) -> Params:
        return trees.zeros_like(params)


def scaffold_m_vr(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    *,
    fresh_weight: float = 0.1,
    server_step_size: ScheduleLike = 1.0,
) -> ScaffoldMVR:
    r"""SCAFFOLD-M-VR: `scaffold_m` with variance reduction, by the recursion of `mvr` in every local step.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\nabla f_i(y_i; \zeta) - \beta\,(c_i - c)
            + (1-\beta)\,(g_k - \nabla f_i(x_{k-1}; \zeta))\big) \quad\text{(m times, from } x_k) \\
        c_i^+ &= \text{the mean of the m gradients } \nabla f_i(y_i; \zeta) \\
        g_{k+1} &= \frac{1}{m\eta_k B}\sum_{i\in S_k}(x_k - y_i), \qquad
        x_{k+1} = x_k - \eta_s m\eta_k\,g_{k+1}, \qquad c \leftarrow c + \frac1n\sum_{i\in S_k}(c_i^+ - c_i)

    with :math:`g_0 = 0`, :math:`c_i = c = 0` and :math:`x_{-1} = x_0` at first. Both gradients of a step are on the
    same minibatch :math:`\zeta`, so it costs two. One exchange, 4d floats down and 2d up for each client: unlike that
    of `scaffold_m`, the server cannot derive :math:`c_i^+ - c_i` from the move. Each client remembers :math:`c_i`, so
    the clients must be identifiable and take part again, and their number n must be known. Without controls it is
    `fedcm_vr`; its fixed point is the optimum, with :math:`c_i = \nabla f_i(x^*)`, where that of `fedcm_vr` is not.

    The full text of the paper was not at hand; its abstract, which announces a variance-reduced SCAFFOLD, was. This is
    `scaffold_m` with its momentum carried to the present point, as `fedcm_vr` carries that of `fedcm`:
    :math:`\beta(\nabla f_i(y_i) - c_i + c) + (1-\beta)(g_k + \nabla f_i(y_i) - \nabla f_i(x_{k-1}))`. The paper may
    begin with other :math:`c_i` and :math:`g_0`.

    Arguments:
        cohort_size, local_rate, server_step_size: as `fedcm`.
        local_steps: m, each with two gradients on a minibatch of its own.
        fresh_weight: :math:`\beta` in (0, 1]; 1 is SCAFFOLD.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    SCAFFOLD-M-VR.

    >>> from fedspam.problems import progress
    >>> progress(scaffold_m_vr(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    return ScaffoldMVR(
        local_rate=positive_schedule(local_rate, "local_rate"),
        server_step_size=positive_schedule(server_step_size, "server_step_size"),
        fresh_weight=fresh_weight,
        cohort_size=cohort_size,
        local_steps=local_steps,
    )


register("scaffold_m_vr", Method(
    name="SCAFFOLD-M-VR", build=scaffold_m_vr, oracle="m steps", estimator="SAG, MVR", stateless="no", up=Cost(2),
    down=Cost(4), example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "fresh_weight": 0.3},
    grid=few_steps_grid, reference="Cheng, Huang, Wu, Yuan 2024, arXiv:2306.16504",
))  # fmt: skip
