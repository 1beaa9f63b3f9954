"""FedNova: moves are divided by the clients' numbers of steps before they are averaged."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, dynamic, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import LocalSteps, OwnTraining, check_local_steps, count_steps, descend
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule


class NormalizedMove(NamedTuple):
    """What a client sends: w d, w |a|, w, and its number of steps."""

    moved: Params
    length: Scalar
    weight: Scalar
    steps: Scalar


@struct
class FedNova(Stateless):
    """FedNova. Use `fednova` to build it."""

    local_rate: Schedule = dynamic(converter=positive_schedule)
    server_step_size: Schedule = dynamic(converter=positive_schedule)
    momentum: float | Scalar = number(0, 0.9999, remedy="0 is plain SGD, 0.9 is common")
    weight_decay: float | Scalar = number(0)
    cohort_size: int = count()
    local_steps: LocalSteps | OwnTraining = static(converter=check_local_steps)
    weighted: bool = static()
    name: str = static(default="fednova")

    def __post_init__(self) -> None:
        if isinstance(self.local_steps, OwnTraining) and self.local_steps.steps_key is None and self.momentum != 0:
            raise ValueError(
                f"momentum = {self.momentum} of the clients counts by their numbers of steps: let them report it, and "
                "give the name of that metric as steps_key; or leave momentum out"
            )

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=state.x, local_rate=self.local_rate(state.k))

        effective = reply.length / reply.weight
        far = self.server_step_size(state.k) * effective / reply.weight
        x = trees.axpy(far, reply.moved, state.x)
        return PointState(x, state.k + 1), RoundInfo(effective_steps=effective, gradients=cohort.size * reply.steps)

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, local_rate: Any) -> NormalizedMove:
        import optax  # here, since its import is slow

        optimizer = optax.chain(optax.add_decayed_weights(self.weight_decay), optax.trace(self.momentum))
        y = descend(oracle, key, x, steps=self.local_steps, local_rate=local_rate, optimizer=optimizer)

        dtype = jax.tree.leaves(x)[0].dtype
        steps, momentum = (
            jnp.asarray(number, dtype) for number in (count_steps(oracle, self.local_steps, key), self.momentum)
        )
        length = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
        weight = jnp.asarray(oracle.weight if self.weighted else 1, dtype)
        return NormalizedMove(trees.scale(weight / length, trees.subtract(y, x)), weight * length, weight, steps)


def fednova(
    cohort_size: int, local_steps: LocalSteps, local_rate: ScheduleLike,
    *, momentum: float = 0.0, weight_decay: float = 0.0, server_step_size: ScheduleLike = 1.0, weighted: bool = True,
) -> FedNova:  # fmt: skip
    r"""FedNova: normalized averaging, so that clients with more local steps do not pull the model to themselves.

    .. math::
        v_i &\leftarrow \rho v_i + \nabla f_i(y_i) + \lambda y_i, \qquad y_i \leftarrow y_i - \eta_k v_i
            \quad(\tau_i \text{ times, from } y_i = x_k,\ v_i = 0) \\
        d_i &= \frac{y_i - x_k}{\|a_i\|_1}, \qquad
            \|a_i\|_1 = \frac1{1-\rho}\Big(\tau_i - \frac{\rho(1-\rho^{\tau_i})}{1-\rho}\Big) \\
        x_{k+1} &= x_k + \eta_s\Big(\sum_{i\in S_k} p_i\|a_i\|_1\Big)\sum_{i\in S_k} p_i d_i, \qquad
            p_i = w_i\Big/\sum_{j\in S_k} w_j

    :math:`\|a_i\|_1` is what the momentum makes of :math:`\tau_i` equal gradients; without momentum it is
    :math:`\tau_i`. FedAvg with different :math:`\tau_i` minimizes :math:`\sum_i p_i\tau_i f_i` instead of :math:`\sum_i
    p_i f_i`, which FedNova mends. With equal :math:`\tau_i` it is FedAvg.

    Arguments:
        local_steps: :math:`\tau`, the same for all, or ``Epochs(2)``: two passes over each client's rows.
        momentum, weight_decay: :math:`\rho` in [0, 1), begun afresh in every round, and :math:`\lambda`.
        weighted: whether :math:`w_i` is the number of a client's examples, instead of 1.

    Wang, Liu, Liang, Joshi, Poor: Tackling the objective inconsistency problem in heterogeneous federated
    optimization, 2020, arXiv:2007.07481.

    >>> from fedspam.problems import progress
    >>> progress(fednova(10, 5, 0.05)) < 0.1
    True
    """
    return FedNova(local_rate, server_step_size, momentum, weight_decay, cohort_size, local_steps, weighted)


register("fednova", Entry(
    name="FedNova", build=fednova, verified="code", example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3},
    oracle="m steps", exact=False, grid=few_steps_grid,
    reference="Wang, Liu, Liang, Joshi, Poor 2020, arXiv:2007.07481",
))  # fmt: skip
