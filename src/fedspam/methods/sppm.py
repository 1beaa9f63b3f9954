"""SPPM, the stochastic proximal point method, and SPPM-AS: the prox of a cohort, answered in several exchanges."""

from fedspam._internal import trees
from fedspam._internal.trees import Key, count, dynamic, static, struct
from fedspam.federation import Federation
from fedspam.methods._grids import grid, over_smoothness, server_step_grid, with_prox_rate
from fedspam.methods._local import gradient
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import OwnGradient
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule, step_size_schedule
from fedspam.solvers import LBFGS, Exact, LocalSolver


def sppm(step_size: ScheduleLike, *, solver: LocalSolver = LBFGS()) -> Factored:
    r"""The stochastic proximal point method: SPAM without the shift.

    .. math:: x_{k+1} = \mathrm{prox}_{\gamma_k f_{\xi_k}}(x_k)

    One client per round. For :math:`\mu`-strongly convex clients, with :math:`\sigma_*^2 = \mathbb E\|\nabla
    f_\xi(x_*)\|^2`,

    .. math:: \mathbb E\|x_k - x_*\|^2 \le (1 + \gamma\mu)^{-2k}\|x_0 - x_*\|^2
        + \frac{\gamma\sigma_*^2}{2\mu + \gamma\mu^2}

    so a constant step size reaches a ball only. (Proof: the prox contracts by :math:`1/(1+\gamma\mu)`, and
    :math:`x_* = \mathrm{prox}_{\gamma f_\xi}(x_* + \gamma\nabla f_\xi(x_*))`, whose mean is :math:`x_*`.)

    Bertsekas 2011; Asi, Duchi 2019; the bound as in Khaled, Jin 2022, arXiv:2209.02257.

    >>> from fedspam.problems import progress
    >>> progress(sppm(step_size=0.3, solver=Exact())) < 0.1
    True
    """
    return Factored(OwnGradient(), solver, step_size, name="sppm")


@struct
class CohortProx(Stateless):
    """SPPM-AS. Use `sppm_as` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    local_rate: Schedule = dynamic(converter=positive_schedule)
    cohort_size: int = count()
    exchanges: int = count()
    name: str = static(default="sppm_as")

    def round(self, state: PointState, key: Key, fed: Federation) -> tuple[PointState, RoundInfo]:
        x, gamma, eta = state.x, self.step_size(state.k), self.local_rate(state.k)

        cohort = fed.sample(key, self.cohort_size)
        y, slope = x, trees.zeros_like(x)
        for _ in range(self.exchanges):
            slope = trees.add(fed.mean(cohort, self.gradient, x=y), trees.divide(trees.subtract(y, x), gamma))
            y = trees.axpy(-eta, slope, y)
        info = RoundInfo(stationarity=trees.norm(slope), gradients=cohort.size * self.exchanges)
        return PointState(y, state.k + 1), info

    gradient = gradient


def sppm_as(cohort_size: int, step_size: ScheduleLike, local_rate: ScheduleLike, *, exchanges: int = 10) -> CohortProx:
    r"""SPPM-AS, or cohort squeeze: a cohort answers the prox of its common loss in K exchanges, then the next is drawn.

    .. math::
        x_{k+1} \approx \mathrm{prox}_{\gamma_k f_{S_k}}(x_k), \qquad f_S = \frac1B\sum_{i\in S} f_i: \qquad
        y \leftarrow y - \eta_k\big(\nabla f_{S_k}(y) + (y - x_k)/\gamma_k\big) \quad\text{(K times, from } x_k)

    Clients send gradients of their whole loss, and the server takes the steps. With an exact prox and
    :math:`\mu`-strongly convex clients, :math:`\mathbb E\|x_k - x_*\|^2` contracts by :math:`(1+\gamma\mu)^{-2}` per
    round, up to :math:`\gamma\sigma_*^2/(2\mu+\gamma\mu^2)`, where :math:`\sigma_*^2 = \mathbb E\|\nabla f_S(x_*)\|^2`
    shrinks as the cohort grows (the bound of `sppm`, with the cohort in place of a client). Cohorts are drawn uniformly
    here; the paper has other samplings. One client and many exchanges make it `sppm`.

    Arguments:
        local_rate: :math:`\eta_k`, below :math:`2/(L + 1/\gamma)`.
        exchanges: K, called local communication rounds there.

    Yi, Kharisov, Sokolov, Richtárik: Cohort squeeze: beyond a single communication round per cohort in cross-device
    federated learning, 2024, arXiv:2406.01115.

    >>> from fedspam.problems import progress
    >>> progress(sppm_as(10, 0.5, 0.1, exchanges=5)) < 0.1
    True
    """
    return CohortProx(step_size, local_rate, cohort_size, exchanges)


register("sppm", Entry(
    name="SPPM", build=sppm, example={"step_size": 0.3, "solver": Exact()}, nonsmooth="yes", nonconvex="partly",
    oracle="prox", exact=False, grid=server_step_grid, reference="Bertsekas 2011; Khaled, Jin 2022, arXiv:2209.02257",
))  # fmt: skip

register("sppm_as", Entry(
    name="SPPM-AS", build=sppm_as, example={"cohort_size": 4, "step_size": 2.0, "local_rate": 0.5, "exchanges": 3},
    nonsmooth="partly", nonconvex="no", oracle="K gradients", phases=3, up=Cost(3), down=Cost(3), exact=False,
    grid=with_prox_rate(grid(step_size=over_smoothness(0.3, 1.0, 3.0, 10.0), exchanges=(2, 5, 10))),
    reference="Yi, Kharisov, Sokolov, Richtárik 2024, arXiv:2406.01115",
))  # fmt: skip
