r"""The Lyapunov function and the lemmas of the appendix as functions: each lemma gives its right-hand side.

The arguments are numbers of a test or a run: :math:`e = \|g_k - \nabla f(x_k)\|^2`,
:math:`D^2 = \|x_{k+1} - x_k\|^2`, :math:`s = \|\nabla f(x_{k+1})\|^2`. `descent` and `progress` hold for every client
that moves, chosen in any way, and every g; `estimation` needs clients that are independent of
:math:`(x_{k+1}, x_k, g_k)`.
"""

from typing import Any

from fedspam.theory.constants import APPENDIX, Version, lyapunov_weight


def descent(value: Any, step: Any, error: Any, step_size: Any) -> Any:
    r"""Lemma A.1 (equation 12): for :math:`\gamma \le 1/(4\delta)`,

    .. math:: f(x_{k+1}) \le f(x_k) - \frac{D^2}{4\gamma} + 2\gamma e.

    For SPAM-PPA (Lemma D.2) `step` is the mean over the clients that moved, and :math:`\gamma \le 1/(4(\delta + L))`.
    """
    return value - step / (4 * step_size) + 2 * step_size * error


def estimation(
    error: Any, step: Any, fresh_weight: Any, delta: Any, sigma: Any, cohort: Any = 1.0, version: Version = "corrected"
) -> Any:
    r"""Lemma A.2 (equation 13) and its form for cohorts (equation 16): the expected error of the next estimate.

    .. math:: \mathrm{E}\,e_{k+1} \le (1-p)^2 e_k + \frac{2(1-p)^2\delta^2D^2 + 2p^2\sigma^2}{B_\mathrm{eff}}

    The paper prints :math:`\delta^2/B^2` for cohorts, which independent clients violate. `delta` may be the one in mean
    square.

    Arguments:
        cohort: :math:`B_\mathrm{eff}`; B for the printed form.
    """
    similar = cohort if version == "corrected" else cohort**2
    kept = (1 - fresh_weight) ** 2
    return kept * error + 2 * kept * delta**2 * step / similar + 2 * fresh_weight**2 * sigma**2 / cohort


def progress(slope: Any, error: Any, step_size: Any) -> Any:
    r"""Lemma A.3 (equation 14), exact prox: :math:`D^2 \ge \gamma^2(s/4 - e)`."""
    return step_size**2 * (slope / 4 - error)


def inexact_progress(slope: Any, error: Any, step_size: Any, epsilon: Any) -> Any:
    r"""Lemma A.4 (equation 15): :math:`D^2 \ge \gamma^2(s/5 - e - \epsilon^2)` where
    :math:`\|\nabla\phi(x_{k+1})\| \le \epsilon`.

    Lemma D.3 is the same at the local points of SPAM-PPA; it prints :math:`\gamma\epsilon^2`, whose units are wrong.
    """
    return step_size**2 * (slope / 5 - error - epsilon**2)


def relative_progress(slope: Any, error: Any, step_size: Any) -> Any:
    r"""Not in the paper: :math:`D^2 \ge \gamma^2(s/5 - \tfrac45 e)` where
    :math:`\|\nabla\phi(x_{k+1})\| \le \tfrac{\sqrt3}{4}D/\gamma`.

    From :math:`(1 + r^2 + \theta^2)D^2 \ge \gamma^2(s/4 - e)` with :math:`r \le 1/4`, :math:`\theta^2 = 3/16`. A client
    that stops by this relative test needs no :math:`\epsilon`, and the bounds have no floor.
    """
    return step_size**2 * (slope / 5 - 0.8 * error)


def averaged_similarity(delta: Any, cohort: Any, version: Version = "corrected") -> Any:
    r"""The similarity of a cohort's mean to f.

    The paper prints :math:`\delta/B` "by convexity" (before equation 16). Convexity gives :math:`\delta`, which B
    copies of the client that deviates most attain; in mean square over independent clients it is
    :math:`\delta/\sqrt{B_\mathrm{eff}}`.
    """
    return delta if version == "corrected" else delta / cohort


def lyapunov(gap: Any, error: Any, step_size: Any, fresh_weight: Any, factor: float = APPENDIX) -> Any:
    r"""The Lyapunov function, from f(x_k) - inf f and the estimator's squared error:

    .. math:: V_k = f(x_k) - f_{\inf} + \frac{c\gamma_k}{2p_k - p_k^2}\|g_k - \nabla f(x_k)\|^2

    The main text prints c = 15/16 (equation 8), the appendix c = 3. The printed proof needs c of at least 17/8. With
    constant parameters 15/16 is nevertheless enough, with every cohort: ``fedspam theory --verify`` checks a proof.

    >>> lyapunov(gap=1.0, error=4.0, step_size=0.5, fresh_weight=1.0, factor=0.5)
    2.0
    """
    return gap + lyapunov_weight(step_size, fresh_weight, factor) * error


def drift(
    value: Any, slope: Any, step_size: Any, fresh_weight: Any, sigma: Any,
    *, cohort: Any = 1.0, epsilon: Any = None, factor: float = APPENDIX, version: Version = "corrected",
) -> Any:  # fmt: skip
    r"""Proposition 3.1: an upper bound of :math:`\mathrm{E}V_{k+1}`, for constant parameters.

    .. math:: V_k - \frac{\gamma}{32}\|\nabla f(x_{k+1})\|^2 + \frac{2c}{2-p}\gamma p\frac{\sigma^2}{B_\mathrm{eff}}

    With an `epsilon` (0 for the relative test) 40 takes the place of 32 and :math:`\gamma\epsilon^2/8` is added; that
    needs c = 3. The main text prints :math:`2\gamma p\sigma^2`, the appendix :math:`6\gamma p\sigma^2`.
    """
    noise = {"corrected": 2 * factor / (2 - fresh_weight), "paper": 2.0, "appendix": 6.0}[version]
    rate, floor = (32, 0.0) if epsilon is None else (40, epsilon**2 / 8)
    return value - step_size * (slope / rate - noise * fresh_weight * sigma**2 / cohort - floor)
