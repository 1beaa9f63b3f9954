"""SPPM: the stochastic proximal point method."""

from fedspam.methods._grids import server_step_grid
from fedspam.methods._registry import Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import OwnGradient
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


def sppm(step_size: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Factored:
    r"""The stochastic proximal point method: SPAM without the shift.

    .. math:: x_{k+1} = \mathrm{prox}_{\gamma_k f_{\xi_k}}(x_k)

    One client per round, d floats down and d up, no state on clients. For :math:`\mu`-strongly convex clients, with
    :math:`\sigma_*^2 = \mathbb E\|\nabla f_\xi(x_*)\|^2`,

    .. math:: \mathbb E\|x_k - x_*\|^2 \le (1 + \gamma\mu)^{-2k}\|x_0 - x_*\|^2
        + \frac{\gamma\sigma_*^2}{2\mu + \gamma\mu^2}

    so a constant step size reaches a ball only. (Proof: the prox contracts by :math:`1/(1+\gamma\mu)`, and
    :math:`x_* = \mathrm{prox}_{\gamma f_\xi}(x_* + \gamma\nabla f_\xi(x_*))`, whose mean is :math:`x_*`.)

    Arguments:
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule.
        solver: how a client answers the prox.

    Bertsekas 2011; Asi, Duchi 2019; the bound as in Khaled, Jin 2022, arXiv:2209.02257.

    >>> from fedspam.problems import progress
    >>> progress(sppm(step_size=0.3, solver=Exact())) < 0.1
    True
    """
    return Factored(OwnGradient(), solver, step_size, name="sppm")


register("sppm", Entry(
    name="SPPM", build=sppm, example={"step_size": 0.3, "solver": Exact()}, nonsmooth="yes", nonconvex="partly",
    oracle="prox", exact=False, grid=server_step_grid, reference="Bertsekas 2011; Khaled, Jin 2022, arXiv:2209.02257",
))  # fmt: skip
