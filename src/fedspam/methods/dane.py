"""DANE, DANE+ and FedDANE: the prox around a fresh gradient, without memory."""

from fedspam.methods._grids import step_grid
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import CohortGradient
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


def dane(step_size: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Factored:
    r"""DANE: everyone's gradient, everyone's prox, and their average.

    .. math:: x_{k+1} = \frac1n\sum_{i=1}^n \arg\min_y\Bigl\{f_i(y) + \langle\nabla f(x_k) - \nabla f_i(x_k), y\rangle
        + \tfrac{1}{2\gamma_k}\|y - x_k\|^2\Bigr\}

    The paper's :math:`\mu` is :math:`1/\gamma`, its factor :math:`\eta` on the gradient is 1. With :math:`\gamma
    \approx 1/\delta` it takes :math:`O((\delta/\mu)\log 1/\epsilon)` rounds on :math:`\mu`-strongly convex f. Averaging
    needs convexity; `dane_plus` does not.

    Shamir, Srebro, Zhang: Communication-efficient distributed optimization using an approximate Newton-type method,
    2014, arXiv:1312.7853.

    >>> from fedspam.problems import progress
    >>> progress(dane(step_size=10.0, solver=Exact()), rounds=10, clients=10) < 0.001
    True
    """
    return Factored(CohortGradient(), solver, step_size, movers="average", cohort_size=None, name="dane")


def dane_plus(step_size: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Factored:
    r"""DANE+: everyone's gradient, and the prox of one random client.

    .. math:: x_{k+1} \in \text{a-prox}(x_k, \nabla f(x_k), \gamma_k, \xi_k)

    The paper lets all clients solve and keeps one random answer; here only that client solves: the same iterates at
    less cost. Non-convex f: :math:`O(\delta F/\epsilon)` rounds with :math:`\gamma \approx 1/\delta`.

    Jiang, Rodomanov, Stich: Federated optimization with doubly regularized drift correction, 2024, arXiv:2404.08447.

    >>> from fedspam.problems import progress
    >>> progress(dane_plus(step_size=10.0, solver=Exact()), rounds=10, clients=10) < 0.001
    True
    """
    return Factored(CohortGradient(), solver, step_size, movers="one", cohort_size=None, name="dane_plus")


def feddane(
    cohort_size: int, step_size: ScheduleLike, *, solver: LocalSolver = LBFGS(), second_cohort: bool = True
) -> Factored:
    r"""FedDANE: DANE where one cohort gives the gradient and a second one moves.

    .. math:: x_{k+1} = \frac1B\sum_{i\in S'_k} x^i, \qquad x^i \in \text{a-prox}(x_k, \nabla f_{S_k}(x_k), \gamma_k, i)

    The gradient has no memory (the fresh weight is 1), so its error leaves a floor. With one cohort each client takes
    2d floats down and 2d up.

    Arguments:
        second_cohort: whether the movers are a second cohort, as in the paper.

    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: FedDANE, 2019, arXiv:2001.01920.

    >>> from fedspam.problems import progress
    >>> progress(feddane(10, step_size=1.0, solver=Exact()), rounds=30) < 0.1
    True
    """
    movers = "second" if second_cohort else "average"
    return Factored(CohortGradient(), solver, step_size, movers=movers, cohort_size=cohort_size, name="feddane")


for _key, _name, _build, _oracle, _up, _down, _reference in (
    ("dane", "DANE", dane, "prox, all", Cost(2), Cost(2), "Shamir, Srebro, Zhang 2014, arXiv:1312.7853"),
    ("dane_plus", "DANE+", dane_plus, "prox, one client", Cost(1, 1), Cost(1, 1),
     "Jiang, Rodomanov, Stich 2024, arXiv:2404.08447"),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={"step_size": 5.0, "solver": Exact()}, similarity="yes", partial="no",
        nonsmooth="yes", nonconvex="yes" if _build is dane_plus else "no",
        verified="code" if _build is dane_plus else "text", estimator="exact", oracle=_oracle, phases=2,
        up=_up, down=_down, grid=step_grid, reference=_reference,
    ))  # fmt: skip

register("feddane", Entry(
    name="FedDANE", build=feddane, example={"cohort_size": 4, "step_size": 0.5, "solver": Exact()}, similarity="partly",
    estimator="cohort gradient", oracle="a-prox, second cohort", phases=2, up=Cost(2), down=Cost(3), grid=step_grid,
    reference="Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith 2019, arXiv:2001.01920",
))  # fmt: skip
