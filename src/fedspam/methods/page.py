"""PAGE and SARAH: server steps along a recursion that some rounds restart from the exact gradient."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Integer

from fedspam._internal import checks
from fedspam._internal.trees import struct
from fedspam.methods._grids import cohort_share, grid, over_smoothness
from fedspam.methods._registry import Cost, Entry, register
from fedspam.methods._template import Factored
from fedspam.methods.estimators import PAGE
from fedspam.methods.schedules import ScheduleLike


@struct
class Periodic:
    """1 in every `period`-th round, from round 0 on, and 0 between them."""

    period: int

    def __call__(self, k: Integer[Array, ""]) -> Any:
        return jnp.where(k % self.period == 0, 1.0, 0.0)


def page(cohort_size: int, step_size: ScheduleLike, probability: ScheduleLike, *, many: int | None = None) -> Factored:
    r"""PAGE: a coin decides whether a round asks everyone or a cohort.

    .. math::
        g_k &= \begin{cases} \nabla f(x_k) & \text{with probability } p, \text{ and in round } 0 \\
            g_{k-1} + \nabla f_S(x_k) - \nabla f_S(x_{k-1}) & \text{otherwise} \end{cases} \\
        x_{k+1} &= x_k - \gamma_k g_k

    Theory: :math:`\gamma \le 1/(L + \delta\sqrt{(1-p)/(pB)})`, :math:`p = B/(n+B)`; no noise floor.

    Arguments:
        probability: p, likewise, in [0, 1]; 1 is gradient descent.
        many: number of clients that stand for everyone; None for all. With fewer, each restart has an error
            :math:`\sigma^2` / many, and the population may be infinite.

    Li, Bao, Zhang, Richtárik: PAGE, 2021, arXiv:2008.10898.

    >>> from fedspam.problems import progress
    >>> progress(page(5, step_size=0.1, probability=0.2), rounds=100) < 0.01
    True
    """
    estimator = PAGE(probability, many)
    return Factored(estimator, None, step_size, movers="server", cohort_size=cohort_size, name="page")


def sarah(cohort_size: int, step_size: ScheduleLike, period: int) -> Factored:
    r"""SARAH: every m-th round asks everyone, the others a cohort.

    .. math::
        g_k &= \begin{cases} \nabla f(x_k) & \text{if } m \text{ divides } k \\
            g_{k-1} + \nabla f_S(x_k) - \nabla f_S(x_{k-1}) & \text{otherwise} \end{cases} \\
        x_{k+1} &= x_k - \gamma_k g_k

    The paper's theory restarts from a random iterate of the last m; here, as in practice, the method continues from the
    last one. Theory: :math:`\gamma \le 2/(L(1 + \sqrt{1 + 4m}))`.

    Arguments:
        period: m.

    Nguyen, Liu, Scheinberg, Takáč: SARAH, 2017, arXiv:1703.00102.

    >>> from fedspam.problems import progress
    >>> progress(sarah(5, step_size=0.1, period=5), rounds=100) < 0.01
    True
    """
    checks.whole("period", period, 1)
    estimator = PAGE(Periodic(period))
    return Factored(estimator, None, step_size, movers="server", cohort_size=cohort_size, name="sarah")


_sizes = over_smoothness(0.1, 0.3, 1.0, 1.8)
_page_grid = grid(step_size=_sizes, probability=cohort_share(0.5, 1, 2))
_sarah_grid = grid(
    step_size=_sizes, period=lambda scales: [max(1, round(c * scales.clients / scales.cohort)) for c in (0.5, 1, 2)]
)

for _key, _name, _build, _example, _grid, _reference in (
    ("page", "PAGE", page, {"probability": 0.3}, _page_grid, "Li, Bao, Zhang, Richtárik 2021, arXiv:2008.10898"),
    ("sarah", "SARAH", sarah, {"period": 4}, _sarah_grid,
     "Nguyen, Liu, Scheinberg, Takáč 2017, arXiv:1703.00102"),
):  # fmt: skip
    register(_key, Entry(
        name=_name, build=_build, example={"cohort_size": 4, "step_size": 0.5, **_example}, similarity="partly",
        partial="partly", estimator=_name, down=Cost(2), coin="no", grid=_grid, reference=_reference,
    ))  # fmt: skip
