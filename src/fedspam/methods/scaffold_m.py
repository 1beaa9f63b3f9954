"""SCAFFOLD-M: SCAFFOLD whose local steps also go along the server's last direction."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam._internal import checks, trees
from fedspam._internal.trees import Params, Scalar, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._algorithm import current_x
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import RateInfo, descend, positive_schedule
from fedspam.methods._registry import Cost, Method, register
from fedspam.methods.schedules import Schedule, ScheduleLike


class ScaffoldMState(NamedTuple):
    """What the server keeps between rounds."""

    x: Params
    control: Params  # c, the mean of all clients' c_i
    g: Params  # the mean direction of the last round
    k: Any  # rounds that counted; the index of the schedules


@struct
class ScaffoldM:
    """SCAFFOLD-M. Use `scaffold_m` to build it."""

    local_rate: Schedule
    server_step_size: Schedule
    fresh_weight: float | Scalar
    cohort_size: int = static()
    local_steps: int = static()
    name: str = static(default="scaffold_m")

    def __post_init__(self) -> None:
        checks.whole("cohort_size", self.cohort_size, 1)
        checks.whole("local_steps", self.local_steps, 1)
        checks.between("fresh_weight", self.fresh_weight, 0, 1, open_low=True, remedy="1 is SCAFFOLD, 0.1 is common")

    def init(self, params: Params, key: Key[Array, ""], fed: Federation) -> ScaffoldMState:
        zero = trees.zeros_like(params)
        return ScaffoldMState(x=params, control=zero, g=zero, k=jnp.zeros((), jnp.int32))

    def round(self, state: ScaffoldMState, key: Key[Array, ""], fed: Federation) -> tuple[ScaffoldMState, RateInfo]:
        x, c, g, eta = state.x, state.control, state.g, self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        moved = fed.mean(cohort, self.train, x=x, control=c, g=g, local_rate=eta)

        # c stays the mean of all c_i, also where replies are lost
        changed = self._changed(c, g, moved, eta)
        c = trees.add(c, trees.divide(trees.scale(fed.accepted, changed), fed.everyone(key).size))
        g = trees.divide(moved, -self.local_steps * eta)
        x = trees.axpy(self.server_step_size(state.k), moved, x)
        return ScaffoldMState(x, c, g, state.k + 1), RateInfo(eta, cohort.size * self.local_steps)

    @on_client(stateful=True)
    def train(
        self,
        oracle: Oracle,
        key: Key[Array, ""],
        memory: Params,
        *,
        x: Params,
        control: Params,
        g: Params,
        local_rate: Any,
    ) -> tuple[Params, Params]:
        # beta (grad - c_i + c) + (1 - beta) g = beta (grad + shift)
        beta = self.fresh_weight
        shift = trees.axpy((1 - beta) / beta, g, trees.subtract(control, memory))
        y = descend(oracle, key, x, steps=self.local_steps, local_rate=beta * local_rate, shift=shift)
        moved = trees.subtract(y, x)
        return moved, trees.add(memory, self._changed(control, g, moved, local_rate))

    def _changed(self, control: Params, g: Params, moved: Params, local_rate: Any) -> Params:
        """c_i⁺ - c_i = -c + ((x - y_i) / (m eta) - (1 - beta) g) / beta, and likewise its mean over the cohort."""
        beta = self.fresh_weight
        direction = trees.axpy(beta - 1, g, trees.scale(-1 / (self.local_steps * local_rate), moved))
        return trees.subtract(trees.divide(direction, beta), control)

    params = current_x

    def client_state(self, params: Params) -> Params:
        return trees.zeros_like(params)


def scaffold_m(
    cohort_size: int,
    local_steps: int,
    local_rate: ScheduleLike,
    *,
    fresh_weight: float = 0.1,
    server_step_size: ScheduleLike = 1.0,
) -> ScaffoldM:
    r"""SCAFFOLD-M: the controls of SCAFFOLD and the momentum of `fedcm`.

    .. math::
        y_i &\leftarrow y_i - \eta_k\,\big(\beta\,(\nabla f_i(y_i) - c_i + c) + (1-\beta)\,g_k\big)
            \quad\text{(m times, from } x_k) \\
        c_i^+ &= \text{the mean of the m gradients}
            = c_i - c + \frac1\beta\Big(\frac{x_k - y_i}{m\eta_k} - (1-\beta)g_k\Big) \\
        g_{k+1} &= \frac{1}{m\eta_k B}\sum_{i\in S_k}(x_k - y_i), \qquad
        x_{k+1} = x_k - \eta_s m\eta_k\,g_{k+1}, \qquad c \leftarrow c + \frac1n\sum_{i\in S_k}(c_i^+ - c_i)

    One exchange, 3d floats down and d up for each client; the server derives the mean of :math:`c_i^+ - c_i`. Each
    client remembers :math:`c_i`, first 0, so the clients must be identifiable and take part again, and their number n
    must be known. (The paper begins with :math:`c_i` and :math:`g_0` from one gradient of every client.)

    Arguments:
        cohort_size, local_steps, local_rate, server_step_size: as `fedcm`.
        fresh_weight: :math:`\beta` in (0, 1]; 1 is SCAFFOLD.

    Cheng, Huang, Wu, Yuan: Momentum benefits non-IID federated learning simply and provably, 2024, arXiv:2306.16504,
    SCAFFOLD-M.

    >>> from fedspam.problems import progress
    >>> progress(scaffold_m(10, 5, 0.05), rounds=100) < 0.1
    True
    """
    return ScaffoldM(
        local_rate=positive_schedule(local_rate, "local_rate"),
        server_step_size=positive_schedule(server_step_size, "server_step_size"),
        fresh_weight=fresh_weight,
        cohort_size=cohort_size,
        local_steps=local_steps,
    )


register("scaffold_m", Method(
    name="SCAFFOLD-M", build=scaffold_m, oracle="m steps", estimator="SAG, momentum", stateless="no", down=Cost(3),
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "fresh_weight": 0.3}, grid=few_steps_grid,
    reference="Cheng, Huang, Wu, Yuan 2024, arXiv:2306.16504",
))  # fmt: skip
