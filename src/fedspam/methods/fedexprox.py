"""FedExProx: FedProx whose server extrapolates the mean of the proxes."""

from fedspam.methods._grids import prox_steps_grid
from fedspam.methods._local import training
from fedspam.methods._registry import Entry, register
from fedspam.methods.fedexp import Extrapolated
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import Exact, LocalSolver


def fedexprox(
    cohort_size: int,
    step_size: ScheduleLike,
    *,
    solver: LocalSolver | None = None,
    local_steps: int | None = None,
    local_rate: ScheduleLike | None = None,
    damping: float = 0.0,
) -> Extrapolated:
    r"""FedExProx with gradient diversity (GraDS): as `fedprox`, but the server goes as far as the proxes disagree.

    .. math:: x_{k+1} = x_k + \alpha_k\,\frac1B\sum_{i\in S_k}(y_i - x_k), \qquad
        \alpha_k = \frac{\frac1B\sum_{i\in S_k}\|y_i - x_k\|^2}{\|\frac1B\sum_{i\in S_k}(y_i - x_k)\|^2 + \epsilon}
        \ge 1, \qquad y_i \approx \arg\min_y f_i(y) + \frac{1}{2\gamma_k}\|y - x_k\|^2

    :math:`(x_k - y_i)/\gamma` is the gradient of the Moreau envelope of :math:`f_i`, so this is gradient descent on the
    mean envelope with a step that adapts to it. A constant :math:`\alpha` is ``fedprox(server_step_size=...)``. One
    exchange, d floats down and d and a number up for each client, no state on clients. The theory is that of smooth
    convex losses with a common minimizer. Without one, give a positive :math:`\epsilon`, which the paper does not need:
    the mean move vanishes where the mean envelope is least, and the moves do not. :math:`\alpha_k` is then at least 1
    by definition.

    Arguments:
        cohort_size: B.
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule.
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


register("fedexprox", Entry(
    name="FedExProx", build=fedexprox, nonconvex="no", oracle="a-prox", exact=False,
    example={"cohort_size": 4, "step_size": 1.0, "solver": Exact(), "damping": 1e-3}, grid=prox_steps_grid,
    reference="Li, Acharya, Richtárik 2024, arXiv:2405.13766; "
    "Anyszka, Gruntkowska, Tyurin, Richtárik 2024, arXiv:2410.01410",
))  # fmt: skip
