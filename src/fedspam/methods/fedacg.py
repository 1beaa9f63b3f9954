"""FedACG: clients start where the server's momentum will lead, and are held near there."""

from typing import Any

import jax.numpy as jnp

from fedspam._internal import checks, trees
from fedspam._internal.trees import Key, Params, Scalar, count, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import OwnTraining, Steps
from fedspam.methods._method import OptimizerState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import ScheduleLike, step_size_schedule


@struct
class FedACG(Stateless):
    """FedACG. Use `fedacg` to build it."""

    training: Steps
    momentum: float | Scalar = number(0, 1, remedy="0 is FedProx, 0.85 is the paper's")
    cohort_size: int = count()
    name: str = static(default="fedacg")

    def __post_init__(self) -> None:
        if not isinstance(self.training.local_steps, OwnTraining):
            checks.whole("local_steps", self.training.local_steps, 1)

    def init(self, params: Params, key: Key, fed: Federation) -> OptimizerState:
        return OptimizerState(x=params, memory=trees.zeros_like(params), k=jnp.zeros((), jnp.int32))

    def round(self, state: OptimizerState, key: Key, fed: Federation) -> tuple[OptimizerState, RoundInfo]:
        ahead = trees.axpy(self.momentum, state.memory, state.x)

        cohort = fed.sample(key, self.cohort_size)
        moved = fed.mean(cohort, self.train, x=ahead, **self.training.numbers(state.k))

        m = trees.axpy(self.momentum, state.memory, moved)
        state = OptimizerState(trees.add(state.x, m), m, state.k + 1)
        return state, RoundInfo(gradients=cohort.size * self.training.gradients(()))

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, **numbers: Any) -> Params:
        return trees.subtract(self.training(oracle, key, x, None, numbers).y, x)


def fedacg(
    cohort_size: int, local_steps: int, local_rate: ScheduleLike,
    *, momentum: float = 0.85, step_size: ScheduleLike = 100.0,
) -> FedACG:  # fmt: skip
    r"""FedACG: local steps from a point that looks ahead along the server's momentum, with a prox to that point.

    .. math::
        z_k &= x_k + \lambda m_k, \qquad
        y \leftarrow y - \eta_k\big(\nabla f_i(y) + (y - z_k)/\gamma_k\big) \quad\text{from } y = z_k \\
        m_{k+1} &= \lambda m_k + \frac1B\sum_{i\in S_k}(y_i - z_k), \qquad x_{k+1} = x_k + m_{k+1}, \qquad m_0 = 0

    It is `fedavgm` with Nesterov's momentum in place of Polyak's, and a prox. Only :math:`z_k` is sent to clients. The
    paper's :math:`\beta` is :math:`1/\gamma`.

    Arguments:
        momentum: :math:`\lambda` in [0, 1]; 0 is FedProx. A move counts :math:`1/(1-\lambda)` times.
        step_size: :math:`\gamma_k`; infinite for no prox. The paper's is 10 to 1000.

    Kim, Kim, Han: Communication-efficient federated learning with accelerated client gradient, 2024, arXiv:2201.03172,
    Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(fedacg(10, 5, 0.02)) < 0.1
    True
    """
    steps = Steps(local_rate, step_size_schedule(step_size), local_steps)
    return FedACG(steps, momentum, cohort_size=cohort_size)


register("fedacg", Entry(
    name="FedACG", build=fedacg, verified="code", oracle="m steps", exact=False, grid=few_steps_grid,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.1, "momentum": 0.5},
    reference="Kim, Kim, Han 2024, arXiv:2201.03172",
))  # fmt: skip
