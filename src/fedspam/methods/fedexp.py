"""FedExP: the server goes farther than the mean of the clients' moves, the more the moves differ."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Key

from fedspam._internal import trees
from fedspam._internal.trees import Params, Scalar, count, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid
from fedspam.methods._local import Steps, Training
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import ScheduleLike


class MeasuredMove(NamedTuple):
    """What a client sends: the move of its model, the squared length of it, and what its solver reached."""

    moved: Params
    square: Scalar
    certificate: Any


@struct
class Extrapolated(Stateless):
    r"""Clients train on their own loss, the server extrapolates their mean move. `fedexp` and `fedexprox` build it.

    .. math:: x_{k+1} = x_k + \alpha_k\,\bar\Delta_k, \qquad \alpha_k = \max\Big\{1,\
        c\,\frac{\frac1B\sum_{i\in S_k}\|\Delta_i\|^2}{\|\bar\Delta_k\|^2 + \epsilon}\Big\}, \qquad
        \Delta_i = y_i - x_k

    Arguments:
        training: what a client does: `Steps` or `Prox`.
        damping: :math:`\epsilon`.
        share: c.
        cohort_size: clients per round.
        name: key of the method in `METHODS`.
    """

    training: Training
    damping: float | Scalar = number(0)
    share: float | Scalar
    cohort_size: int = count()
    name: str = static(kw_only=True)

    def round(self, state: PointState, key: Key[Array, ""], fed: Federation) -> tuple[PointState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=state.x, **self.training.numbers(state.k))

        square = trees.squared_norm(reply.moved) + jnp.asarray(self.damping, reply.square.dtype)
        square = jnp.maximum(square, jnp.finfo(square.dtype).tiny)  # where nobody moves
        alpha = jnp.maximum(1, jnp.asarray(self.share, square.dtype) * reply.square / square)
        state = PointState(trees.axpy(alpha, reply.moved, state.x), state.k + 1)
        gradients = cohort.size * self.training.gradients(reply.certificate)
        return state, RoundInfo(extrapolation=alpha, certificate=reply.certificate, gradients=gradients)

    @on_client
    def train(self, oracle: Oracle, key: Key[Array, ""], *, x: Params, **numbers: Any) -> MeasuredMove:
        y, certificate = self.training(oracle, key, x, None, numbers)
        moved = trees.subtract(y, x)
        return MeasuredMove(moved, trees.squared_norm(moved), certificate)


def fedexp(cohort_size: int, local_steps: int, local_rate: ScheduleLike, *, damping: float = 1e-3) -> Extrapolated:
    r"""FedExP: FedAvg whose server step is as long as the disagreement of the clients allows.

    .. math:: x_{k+1} = x_k + \eta_k\,\bar\Delta_k, \qquad \eta_k = \max\Big\{1,\
        \frac{\sum_{i\in S_k}\|\Delta_i\|^2}{2B(\|\bar\Delta_k\|^2 + \epsilon)}\Big\}, \qquad
        \bar\Delta_k = \frac1B\sum_{i\in S_k}\Delta_i

    where :math:`\Delta_i = y_i - x_k` is the move of m local steps :math:`y \leftarrow y - \eta\nabla f_i(y)`. Equal
    moves are averaged; orthogonal ones are half added. One exchange, d floats down and d and a number up for each
    client, no state on clients. The step is that of projections onto the clients' sets of solutions: it is meant for
    models that can fit all clients. Where no model can, :math:`\bar\Delta` vanishes at the optimum and the moves do
    not, and :math:`\epsilon` must bound the step. (The paper reports the mean of the last two iterates, which damps the
    oscillation; here `params` is the last one.)

    Arguments:
        cohort_size: B.
        local_steps: m, each on a minibatch of its own.
        local_rate: the rate of the local steps: a number, one value per round, or a schedule.
        damping: :math:`\epsilon`, on the scale of squared moves; the paper tunes it between 0.001 and 0.1.

    Jhunjhunwala, Wang, Joshi: FedExP: Speeding up federated averaging via extrapolation, 2023, arXiv:2301.09604,
    Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(fedexp(10, 5, 0.08, damping=0.1)) < 0.1
    True
    """
    steps = Steps(local_rate, local_steps=local_steps)
    return Extrapolated(steps, damping, share=0.5, cohort_size=cohort_size, name="fedexp")


register("fedexp", Entry(
    name="FedExP", build=fedexp, partial="no", oracle="m steps", exact=False, grid=few_steps_grid,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "damping": 1e-3},
    reference="Jhunjhunwala, Wang, Joshi 2023, arXiv:2301.09604",
))  # fmt: skip
