"""FedProx: clients minimize their own loss near the server's point, and the server averages."""

from fedspam.methods._grids import prox_steps_grid
from fedspam.methods._local import ClientOptimizer, LocalSteps, training
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedopt import Average, FedOpt
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import Exact, LocalSolver


def fedprox(
    cohort_size: int, step_size: ScheduleLike,
    *, solver: LocalSolver | None = None, local_steps: LocalSteps | None = None,
    local_rate: ScheduleLike | None = None, server_step_size: ScheduleLike = 1.0, weighted: bool = False,
    optimizer: ClientOptimizer = None,
) -> FedOpt:  # fmt: skip
    r"""FedProx: every client of the cohort approximately answers the prox of its own loss, the server averages.

    .. math:: y_i \approx \arg\min_y f_i(y) + \frac{1}{2\gamma_k}\|y - x_k\|^2, \qquad
        x_{k+1} = x_k + \eta_s\,\frac1B\sum_{i\in S_k}(y_i - x_k)

    The paper's :math:`\mu` is :math:`1/\gamma`, and it needs :math:`1/\gamma` large against L and the dissimilarity of
    the clients. With a constant step size the fixed point is not the optimum of f, but that of the mean Moreau envelope
    of the clients: on quadratics it solves :math:`\sum_i (H_i + I/\gamma)^{-1}\nabla f_i(x) = 0`.

    Arguments:
        local_steps: without a `solver`, m steps :math:`y \leftarrow y - \eta_k(\nabla f_i(y) + (y - x_k)/\gamma_k)`,
            each on its own minibatch, as the paper's experiments do; or ``Epochs(2)``, as in `fedavg`.
        weighted: average by the number of examples. The paper samples clients by it and averages evenly instead.
        optimizer: of the local steps, as in `fedavg`.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated optimization in heterogeneous networks, 2020,
    arXiv:1812.06127, Algorithm 2; without dissimilarity assumptions: Yuan, Li 2022, arXiv:2206.05187.

    >>> from fedspam.problems import progress
    >>> progress(fedprox(10, 1.0, local_steps=5, local_rate=0.08)) < 0.1
    True
    """
    trained = training(step_size, local_steps, local_rate, solver, optimizer)
    return FedOpt(trained, Average(server_step_size), cohort_size, weighted, name="fedprox")


register("fedprox", Entry(
    name="FedProx", build=fedprox, example={"cohort_size": 4, "step_size": 1.0, "solver": Exact()}, nonsmooth="yes",
    oracle="a-prox", exact=False, grid=prox_steps_grid,
    reference="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2020, arXiv:1812.06127",
))  # fmt: skip
