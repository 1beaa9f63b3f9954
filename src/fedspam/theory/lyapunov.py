r"""The Lyapunov function and its drift.

.. math:: V_k = f(x_k) - f_{\inf} + \frac{c\gamma_k}{2p_k - p_k^2}\|g_k - \nabla f(x_k)\|^2

The main text prints c = 15/16 (equation 8), the appendix c = 3. The printed proof needs c of at least 17/8. With
constant parameters 15/16 is nevertheless enough, with every cohort: ``fedspam theory --verify`` checks a proof.
"""

from typing import Any

from fedspam.theory.constants import APPENDIX, Version, lyapunov_weight


def lyapunov(gap: Any, error: Any, step_size: Any, fresh_weight: Any, factor: float = APPENDIX) -> Any:
    """V_k from f(x_k) - inf f and the estimator's squared error.

    >>> lyapunov(gap=1.0, error=4.0, step_size=0.5, fresh_weight=1.0, factor=0.5)
    2.0
    """
    return gap + lyapunov_weight(step_size, fresh_weight, factor) * error


def drift(
    value: Any,
    slope: Any,
    step_size: Any,
    fresh_weight: Any,
    sigma: Any,
    *,
    cohort: Any = 1.0,
    epsilon: Any = None,
    factor: float = APPENDIX,
    version: Version = "corrected",
) -> Any:
    r"""Proposition 3.1: an upper bound of :math:`\mathrm{E}V_{k+1}`, for constant parameters.

    .. math:: V_k - \frac{\gamma}{32}\|\nabla f(x_{k+1})\|^2 + \frac{2c}{2-p}\gamma p\frac{\sigma^2}{B_\mathrm{eff}}

    With an `epsilon` (0 for the relative test) 40 takes the place of 32 and :math:`\gamma\epsilon^2/8` is added; that
    needs c = 3. The main text prints :math:`2\gamma p\sigma^2`, the appendix :math:`6\gamma p\sigma^2`.
    """
    noise = {"corrected": 2 * factor / (2 - fresh_weight), "paper": 2.0, "appendix": 6.0}[version]
    rate, floor = (32, 0.0) if epsilon is None else (40, epsilon**2 / 8)
    return value - step_size * (slope / rate - noise * fresh_weight * sigma**2 / cohort - floor)
