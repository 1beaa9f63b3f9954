"""CE-LSGD and BVR-L-SGD: many clients make the estimate, one of them takes recursive steps.

CE-LSGD is unverified: its pseudocode was not at hand.
"""

import math

from fedspam._internal.trees import struct
from fedspam.methods._grids import local_grid, recursive_grid
from fedspam.methods._local import gradient, surrogate_steps
from fedspam.methods._method import StartLike, start_from
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import MVR, CohortGradient
from fedspam.methods.schedules import ScheduleLike


@struct
class Snapshot(CohortGradient):
    """The gradient of the cohort's whole losses, also where clients draw minibatches. No memory of past rounds."""

    gradient = gradient


def ce_lsgd(
    cohort_size: int | None, local_steps: int, local_rate: float, fresh_weight: ScheduleLike,
    *, minibatch: bool = False, start: StartLike = "cohort", first: str = "given",
) -> Factored:  # fmt: skip
    r"""CE-LSGD: the estimate of SPAM-PP, then m recursive steps on one client of the cohort.

    .. math::
        g_k &= (1-p_k)\,g_{k-1} + \frac1B\sum_{i\in S_k}\bigl(\nabla f_i(x_k) - (1-p_k)\nabla f_i(x_{k-1})\bigr) \\
        w_{j+1} &= w_j - \eta v_j, \quad v_{j+1} = v_j + \nabla f_\xi(w_{j+1}) - \nabla f_\xi(w_j), \quad
        w_0 = x_k,\ v_0 = g_k, \qquad x_{k+1} = w_m

    With whole local gradients :math:`v_j = \nabla f_\xi(w_j) - \nabla f_\xi(x_k) + g_k`: SPAM-PP with m gradient steps
    in place of the prox and :math:`\gamma = \infty`. With :math:`\eta \lesssim \min\{1/L, 1/(m\delta)\}` and :math:`m
    \approx L/\delta` it takes :math:`O(\delta F/\epsilon + \zeta^2/(B\epsilon) + \delta\zeta F/(B\epsilon^{3/2}))`
    rounds, the order of the lower bound.

    The paper has two versions: a fresh cohort every round with whole local gradients; and all clients,
    ``cohort_size=None``, with ``minibatch=True``, where the estimate sees minibatches wherever the population has them.
    That one client of the cohort takes the local steps is our reading; the published rate and number of steps agree
    with it.

    Arguments:
        local_steps: m. One step is server MVR.
        minibatch: whether :math:`v_{j+1}` sees a minibatch, the same at both points, not the client's whole loss.
        start, first: as in `spam_pp`. If all clients are asked, the exchanges of the start have one client each.

    Patel, Wang, Woodworth, Bullins, Srebro: Towards optimal communication complexity in distributed non-convex
    optimization, 2022, NeurIPS.

    >>> from fedspam.problems import progress
    >>> progress(ce_lsgd(10, 10, 0.09, 0.2)) < 0.1
    True
    """
    estimator, start = MVR(fresh_weight, first=first), start_from(start, cohort_size or 1)
    solver = surrogate_steps(local_steps, local_rate, minibatch, recursive=True)
    return Factored(estimator, solver, math.inf, start, cohort_size=cohort_size, name="ce_lsgd")


def bvr_l_sgd(cohort_size: int | None, local_steps: int, local_rate: float, *, minibatch: bool = False) -> Factored:
    r"""BVR-L-SGD: the gradient of all clients' whole losses, then m recursive steps on one of them.

    .. math:: g_k = \frac1n\sum_i \nabla f_i(x_k), \qquad
        w_{j+1} = w_j - \eta v_j, \quad v_{j+1} = v_j + \nabla f_\xi(w_{j+1}) - \nabla f_\xi(w_j), \quad
        w_0 = x_k,\ v_0 = g_k, \qquad x_{k+1} = w_m

    In the paper all workers take local steps and the model of a random one is kept. The choice does not depend on the
    models, so only that client steps here: the same iterates at less cost. The big batch of every round is the whole of
    the clients' losses.

    The theory asks all clients, ``cohort_size=None``. The other arguments are those of `ce_lsgd`.

    Murata, Suzuki: Bias-variance reduced local SGD for less heterogeneous federated learning, 2021, arXiv:2102.03198.

    >>> from fedspam.problems import progress
    >>> progress(bvr_l_sgd(None, 10, 0.09), rounds=30) < 1e-3
    True
    """
    solver = surrogate_steps(local_steps, local_rate, minibatch, recursive=True)
    return Factored(Snapshot(), solver, math.inf, cohort_size=cohort_size, name="bvr_l_sgd")


register("ce_lsgd", Entry(
    name="CE-LSGD", build=ce_lsgd, example={"cohort_size": 4, "local_steps": 5, "local_rate": 0.3, "fresh_weight": 0.2},
    similarity="yes", verified="no", estimator="MVR", oracle="m SARAH steps, one client", phases=2, up=Cost(1, 1),
    down=Cost(2, 1), grid=recursive_grid, reference="Patel, Wang, Woodworth, Bullins, Srebro 2022, NeurIPS",
))  # fmt: skip

register("bvr_l_sgd", Entry(
    name="BVR-L-SGD", build=bvr_l_sgd, example={"cohort_size": None, "local_steps": 5, "local_rate": 0.3},
    similarity="yes", partial="no", estimator="big batch", oracle="m SARAH steps, one client", phases=2, up=Cost(1, 1),
    down=Cost(1, 1), grid=local_grid, reference="Murata, Suzuki 2021, arXiv:2102.03198",
))  # fmt: skip
