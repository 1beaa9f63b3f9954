"""MVR: the server steps along the estimate of SPAM."""

from fedspam.methods._grids import FRESH_WEIGHTS, grid, over_smoothness
from fedspam.methods._method import StartLike, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import MVR
from fedspam.methods.schedules import ScheduleLike


def mvr(
    cohort_size: int, step_size: ScheduleLike, fresh_weight: ScheduleLike,
    *, start: StartLike = "cohort", scale: float | None = None, first: str = "given",
) -> Factored:  # fmt: skip
    r"""MVR (STORM with given parameters) on the server: what SPAM-PP is without its prox.

    .. math::
        g_k &= (1-p_k)\,g_{k-1} + \frac1B\sum_{i\in S_k}\bigl(\nabla f_i(x_k) - (1-p_k)\nabla f_i(x_{k-1})\bigr) \\
        x_{k+1} &= x_k - \gamma_k g_k

    With :math:`\gamma \le 1/(L + \delta\sqrt{2/(pB)})` the mean of :math:`\mathbb E\|\nabla f(x_k)\|^2` over K rounds
    is at most :math:`2F/(\gamma K) + e_0/(pK) + 2p\sigma^2/B`: similarity helps the estimator, but the step size is
    still limited by L. (The bound is derived, from descent with weight :math:`\gamma/2p` on the estimator's error; the
    original theorem assumes smooth :math:`f_\xi` instead of similarity.)

    Arguments:
        fresh_weight: :math:`p_k`, likewise, in (0, 1]. 1 is SGD, towards 0 it is SARAH without restarts.
        start, scale, first: as `spam_pp`.

    Cutkosky, Orabona: Momentum-based variance reduction in non-convex SGD, 2019, arXiv:1905.10018.

    >>> from fedspam.problems import progress
    >>> progress(mvr(10, step_size=0.1, fresh_weight=0.2), rounds=100, clients=50) < 0.1
    True
    """
    estimator, start = MVR(fresh_weight, scale, first), start_from(start, cohort_size)
    return Factored(estimator, None, step_size, start, movers="server", cohort_size=cohort_size, name="mvr")


register("mvr", Entry(
    name="MVR", build=mvr, example={"cohort_size": 4, "step_size": 0.5, "fresh_weight": 0.2}, similarity="partly",
    estimator="MVR", down=Cost(2), grid=grid(step_size=over_smoothness(0.1, 0.3, 1.0, 1.8), fresh_weight=FRESH_WEIGHTS),
    reference="Cutkosky, Orabona 2019, arXiv:1905.10018",
))  # fmt: skip
