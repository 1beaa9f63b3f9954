"""FedExP and FedExProx: the server goes farther than the mean of the clients' moves, the more the moves differ."""

from typing import Any

import jax.numpy as jnp

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, Scalar, count, number, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import few_steps_grid, prox_steps_grid
from fedspam.methods._local import Steps, Training, Update, training
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import Exact, LocalSolver


@struct
class Extrapolated(Stateless):
    r"""Clients train on their own loss, the server extrapolates their mean move. `fedexp` and `fedexprox` build it.

    The factor of the mean move is at least 1: `share` times the mean square of the moves over the square of their mean.
    """

    training: Training
    damping: float | Scalar = number(0)  # epsilon
    share: float | Scalar
    cohort_size: int = count()
    name: str = static(kw_only=True)

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=state.x, **self.training.numbers(state.k))

        square = trees.squared_norm(reply.moved) + jnp.asarray(self.damping, reply.square.dtype)
        square = jnp.maximum(square, jnp.finfo(square.dtype).tiny)  # where no client moves
        alpha = jnp.maximum(1, jnp.asarray(self.share, square.dtype) * reply.square / square)
        state = PointState(trees.axpy(alpha, reply.moved, state.x), state.k + 1)
        gradients = cohort.size * self.training.gradients(reply.certificate)
        return state, RoundInfo(extrapolation=alpha, certificate=reply.certificate, gradients=gradients)

    @on_client
    def train(self, oracle: Oracle, key: Key, *, x: Params, **numbers: Any) -> Update:
        y, certificate = self.training(oracle, key, x, None, numbers)
        moved = trees.subtract(y, x)
        return Update(moved, square=trees.squared_norm(moved), certificate=certificate)


def fedexp(cohort_size: int, local_steps: int, local_rate: ScheduleLike, *, damping: float = 1e-3) -> Extrapolated:
    r"""FedExP: FedAvg whose server step is as long as the disagreement of the clients allows.

    .. math:: x_{k+1} = x_k + \eta_k\,\bar\Delta_k, \qquad \eta_k = \max\Big\{1,\
        \frac{\sum_{i\in S_k}\|\Delta_i\|^2}{2B(\|\bar\Delta_k\|^2 + \epsilon)}\Big\}, \qquad
        \bar\Delta_k = \frac1B\sum_{i\in S_k}\Delta_i

    where :math:`\Delta_i = y_i - x_k` is the move of m local steps :math:`y \leftarrow y - \eta\nabla f_i(y)`. Equal
    moves are averaged; orthogonal ones are half added. The step is that of projections onto the clients' sets of
    solutions: it is meant for models that can fit all clients. Where no model can, :math:`\bar\Delta` vanishes at the
    optimum and the moves do not, and :math:`\epsilon` must bound the step. (The paper reports the mean of the last two
    iterates, which damps the oscillation.)

    Arguments:
        damping: :math:`\epsilon`, on the scale of squared moves; the paper tunes it between 0.001 and 0.1.

    Jhunjhunwala, Wang, Joshi: FedExP: Speeding up federated averaging via extrapolation, 2023, arXiv:2301.09604,
    Algorithm 1.

    >>> from fedspam.problems import progress
    >>> progress(fedexp(10, 5, 0.08, damping=0.1)) < 0.1
    True
    """
    steps = Steps(local_rate, local_steps=local_steps)
    return Extrapolated(steps, damping, share=0.5, cohort_size=cohort_size, name="fedexp")


def fedexprox(
    cohort_size: int, step_size: ScheduleLike,
    *, solver: LocalSolver | None = None, local_steps: int | None = None, local_rate: ScheduleLike | None = None,
    damping: float = 0.0,
) -> Extrapolated:  # fmt: skip
    r"""FedExProx with gradient diversity (GraDS): as `fedprox`, but the server goes as far as the proxes disagree.

    .. math:: x_{k+1} = x_k + \alpha_k\,\frac1B\sum_{i\in S_k}(y_i - x_k), \qquad
        \alpha_k = \frac{\frac1B\sum_{i\in S_k}\|y_i - x_k\|^2}{\|\frac1B\sum_{i\in S_k}(y_i - x_k)\|^2 + \epsilon}
        \ge 1, \qquad y_i \approx \arg\min_y f_i(y) + \frac{1}{2\gamma_k}\|y - x_k\|^2

    :math:`(x_k - y_i)/\gamma` is the gradient of the Moreau envelope of :math:`f_i`, so this is gradient descent on the
    mean envelope with a step that adapts to it. A constant :math:`\alpha` is ``fedprox(server_step_size=...)``. The
    theory is that of smooth convex losses with a common minimizer. Without one, give a positive :math:`\epsilon`, which
    the paper does not need: the mean move vanishes where the mean envelope is least, and the moves do not.

    Arguments:
        solver, local_steps, local_rate: as `fedprox`.
        damping: :math:`\epsilon`, on the scale of squared moves.

    Li, Acharya, Richtárik: The power of extrapolation in federated learning, 2024, arXiv:2405.13766, Algorithm 1;
    Anyszka, Gruntkowska, Tyurin, Richtárik: Tighter performance theory of FedExProx, 2024, arXiv:2410.01410.

    >>> from fedspam.problems import progress
    >>> progress(fedexprox(10, 0.3, solver=Exact(), damping=0.1)) < 0.1
    True
    """
    trained = training(step_size, local_steps, local_rate, solver)
    return Extrapolated(trained, damping, share=1.0, cohort_size=cohort_size, name="fedexprox")


register("fedexp", Entry(
    name="FedExP", build=fedexp, partial="no", oracle="m steps", exact=False, grid=few_steps_grid,
    example={"cohort_size": 4, "local_steps": 3, "local_rate": 0.3, "damping": 1e-3},
    reference="Jhunjhunwala, Wang, Joshi 2023, arXiv:2301.09604",
))  # fmt: skip

register("fedexprox", Entry(
    name="FedExProx", build=fedexprox, nonconvex="no", oracle="a-prox", exact=False,
    example={"cohort_size": 4, "step_size": 1.0, "solver": Exact(), "damping": 1e-3}, grid=prox_steps_grid,
    reference="Li, Acharya, Richtárik 2024, arXiv:2405.13766; "
    "Anyszka, Gruntkowska, Tyurin, Richtárik 2024, arXiv:2410.01410",
))  # fmt: skip
