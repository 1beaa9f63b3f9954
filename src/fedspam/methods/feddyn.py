"""FedDyn: a prox on each client, shifted by the gradient that the client remembers."""

from typing import Any

from fedspam._internal import trees
from fedspam._internal.trees import Key, Params, count, static, struct
from fedspam.clients import Oracle
from fedspam.federation import Federation, on_client
from fedspam.methods._grids import prox_steps_grid
from fedspam.methods._local import Training, Update, training
from fedspam.methods._method import RoundInfo, TrackedState, Tracking, over_everyone
from fedspam.methods._registry import Entry, register
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import Exact, LocalSolver


@struct
class FedDyn(Tracking):
    """FedDyn. Use `feddyn` to build it."""

    training: Training
    cohort_size: int = count()
    name: str = static(default="feddyn")

    def round(self, state: TrackedState, key: Key, fed: Federation) -> tuple[TrackedState, RoundInfo]:
        numbers = self.training.numbers(state.k)
        gamma = numbers["step_size"]

        cohort = fed.sample(key, self.cohort_size)
        reply = fed.mean(cohort, self.train, x=state.x, **numbers)

        h = trees.axpy(-1 / gamma, over_everyone(reply.moved, fed, key), state.mean)  # the mean of all h_i
        x = trees.axpy(-gamma, h, trees.add(state.x, reply.moved))
        gradients = cohort.size * self.training.gradients(reply.certificate)
        info = RoundInfo(certificate=reply.certificate, gradients=gradients)
        return TrackedState(x, h, state.k + 1), info

    @on_client(stateful=True)
    def train(self, oracle: Oracle, key: Key, memory: Params, *, x: Params, **numbers: Any) -> tuple[Update, Params]:
        shift = trees.scale(-1, memory)
        y, certificate = self.training(oracle, key, x, shift, numbers)
        moved = trees.subtract(y, x)
        return Update(moved, certificate=certificate), trees.axpy(-1 / numbers["step_size"], moved, memory)


def feddyn(
    cohort_size: int, step_size: ScheduleLike,
    *, solver: LocalSolver | None = None, local_steps: int | None = None, local_rate: ScheduleLike | None = None,
) -> FedDyn:  # fmt: skip
    r"""FedDyn: the prox of FedProx with a linear term that grows until the clients agree on the optimum.

    .. math::
        y_i &\approx \arg\min_y f_i(y) - \langle h_i, y\rangle + \frac{1}{2\gamma}\|y - x_k\|^2, \qquad
        h_i \leftarrow h_i - (y_i - x_k)/\gamma \\
        h &\leftarrow h - \frac{1}{\gamma n}\sum_{i\in S_k}(y_i - x_k), \qquad
        x_{k+1} = \frac1B\sum_{i\in S_k} y_i - \gamma h

    Each client remembers :math:`h_i`, first 0, which after an exact answer is :math:`\nabla f_i(y_i)`; so the clients
    must be identifiable and take part again, and their number n must be known. The paper's :math:`\alpha` is
    :math:`1/\gamma`. On strongly convex quadratics its fixed point is the optimum. A large :math:`\gamma` with few
    clients per round makes h explode.

    Arguments:
        step_size: about 1/L.
        local_steps, local_rate: as `fedprox`, but along :math:`\nabla f_i(y) - h_i + (y - x_k)/\gamma_k`.

    Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama: Federated learning based on dynamic regularization, 2021,
    arXiv:2111.04263, Algorithm 1; the sum over the cohort is divided by n, as there and in the authors' code.

    >>> from fedspam.problems import progress
    >>> progress(feddyn(10, 0.3, solver=Exact()), rounds=60) < 0.01
    True
    """
    return FedDyn(training(step_size, local_steps, local_rate, solver), cohort_size)


register("feddyn", Entry(
    name="FedDyn", build=feddyn, verified="code", example={"cohort_size": 4, "step_size": 1.0, "solver": Exact()},
    stateless="no", estimator="dual", oracle="prox", grid=prox_steps_grid,
    reference="Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama 2021, arXiv:2111.04263",
))  # fmt: skip
