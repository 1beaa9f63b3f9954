"""SPPM-AS, or cohort squeeze: the prox of a whole cohort's loss, answered in several exchanges with the same cohort."""

from jaxtyping import Array, Key

from fedspam._internal import trees
from fedspam._internal.trees import count, dynamic, static, struct
from fedspam.federation import Federation
from fedspam.methods._grids import grid, over_smoothness, with_prox_rate
from fedspam.methods._local import gradient
from fedspam.methods._method import PointState, RoundInfo, Stateless
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods.schedules import Schedule, ScheduleLike, positive_schedule, step_size_schedule


@struct
class CohortProx(Stateless):
    """SPPM-AS. Use `sppm_as` to build it."""

    step_size: Schedule = dynamic(converter=step_size_schedule)
    local_rate: Schedule = dynamic(converter=positive_schedule)
    cohort_size: int = count()
    exchanges: int = count()
    name: str = static(default="sppm_as")

    def round(self, state: PointState, key: Key[Array, ""], fed: Federation) -> tuple[PointState, RoundInfo]:
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

    K exchanges per round, each d floats down and d up for each client, no state on clients. Clients send gradients of
    their whole loss, and the server takes the steps. With an exact prox and :math:`\mu`-strongly convex clients,
    :math:`\mathbb E\|x_k - x_*\|^2` contracts by :math:`(1+\gamma\mu)^{-2}` per round, up to
    :math:`\gamma\sigma_*^2/(2\mu+\gamma\mu^2)`, where :math:`\sigma_*^2 = \mathbb E\|\nabla f_S(x_*)\|^2` shrinks as
    the cohort grows (the bound of `sppm`, with the cohort in place of a client). Cohorts are drawn uniformly here; the
    paper has other samplings. One client and many exchanges make it `sppm`.

    Arguments:
        cohort_size: B.
        step_size: :math:`\gamma_k`: a number, one value per round, or a schedule.
        local_rate: :math:`\eta_k`, below :math:`2/(L + 1/\gamma)`.
        exchanges: K, called local communication rounds there.

    Yi, Kharisov, Sokolov, Richtárik: Cohort squeeze: beyond a single communication round per cohort in cross-device
    federated learning, 2024, arXiv:2406.01115.

    >>> from fedspam.problems import progress
    >>> progress(sppm_as(10, 0.5, 0.1, exchanges=5)) < 0.1
    True
    """
    return CohortProx(step_size, local_rate, cohort_size, exchanges)


register("sppm_as", Entry(
    name="SPPM-AS", build=sppm_as, example={"cohort_size": 4, "step_size": 2.0, "local_rate": 0.5, "exchanges": 3},
    nonsmooth="partly", nonconvex="no", oracle="K gradients", phases=3, up=Cost(3), down=Cost(3), exact=False,
    grid=with_prox_rate(grid(step_size=over_smoothness(0.3, 1.0, 3.0, 10.0), exchanges=(2, 5, 10))),
    reference="Yi, Kharisov, Sokolov, Richtárik 2024, arXiv:2406.01115",
))  # fmt: skip
