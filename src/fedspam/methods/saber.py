"""SABER: a prox corrected by PAGE, whose coin decides which rounds ask everyone.

Unverified: its equations are those of public reviews and of arXiv:2512.05327, which compares with it.
"""

from fedspam.methods._grids import COIN_AXES, coin_grid, grid
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import PAGE
from fedspam.methods.schedules import ScheduleLike
from fedspam.solvers import LBFGS, Exact, LocalSolver


def saber(
    cohort_size: int, step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()
) -> Factored:
    r"""SABER as it is analyzed: a coin asks everyone or a cohort for the estimate, one client moves.

    .. math:: x_{k+1} \in \text{a-prox}(x_k, g_k, \gamma_k, \xi_k)

    where :math:`g_k` is the estimate of `page`. There is no noise floor, but some rounds need all clients. Theory
    (derived from descent and PAGE's error, as the paper's own constants are not public): :math:`\gamma \le
    \min\{1/(4\delta), \sqrt{pB/(24(1-p))}/\delta\}`, :math:`p = B/n`.

    Mishchenko, Li, Fan, Venieris: Federated learning under second-order data heterogeneity, 2023,
    OpenReview jkhVrIllKg.

    >>> from fedspam.problems import progress
    >>> progress(saber(5, step_size=1.0, probability=0.25, solver=Exact()), rounds=40) < 0.01
    True
    """
    return Factored(PAGE(probability), solver, step_size, movers="one", cohort_size=cohort_size, name="saber")


def saber_partial(
    cohort_size: int, many: int, step_size: ScheduleLike, probability: ScheduleLike, *, solver: LocalSolver = LBFGS()
) -> Factored:
    r"""SABER as its paper runs it: `many` clients stand for all, and the proxes of the cohort are averaged.

    .. math:: x_{k+1} = \frac1B\sum_{i\in S_k} x^i, \qquad x^i \in \text{a-prox}(x_k, g_k, \gamma_k, i)

    A heuristic: each restart brings an error :math:`\sigma^2` / many, and the average needs :math:`f(\frac1B\sum x^i)
    \le \frac1B\sum f(x^i)`.

    Arguments:
        many: number of clients that stand for everyone.

    >>> from fedspam.problems import progress
    >>> progress(saber_partial(5, 15, step_size=1.0, probability=0.25, solver=Exact()), rounds=40) < 0.1
    True
    """
    estimator = PAGE(probability, many)
    return Factored(estimator, solver, step_size, movers="average", cohort_size=cohort_size, name="saber_partial")


_partial_grid = grid(**COIN_AXES, many=lambda scales: (max(scales.cohort, scales.clients // 2),))

for _key, _name, _build, _more, _oracle, _up, _down in (
    ("saber", "SABER", saber, {}, "prox, one client", Cost(1, 1), Cost(2, 2)),
    ("saber_partial", "SABER, partial", saber_partial, {"many": 8}, "a-prox, all", Cost(2), Cost(4)),
):
    register(_key, Entry(
        name=_name, build=_build, verified="no", similarity="yes", partial="partly" if _build is saber else "yes",
        nonsmooth="yes", example={"cohort_size": 4, "step_size": 1.0, "probability": 0.3, "solver": Exact(), **_more},
        nonconvex="yes" if _build is saber else "partly", estimator="PAGE", oracle=_oracle, phases=2, up=_up,
        down=_down, coin="no", exact=_build is saber, grid=coin_grid if _build is saber else _partial_grid,
        reference="Mishchenko, Li, Fan, Venieris 2023, OpenReview jkhVrIllKg",
    ))  # fmt: skip
