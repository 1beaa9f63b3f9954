r"""The lemmas of the appendix as functions: each gives its right-hand side.

The arguments are numbers of a test or a run: :math:`e = \|g_k - \nabla f(x_k)\|^2`,
:math:`D^2 = \|x_{k+1} - x_k\|^2`, :math:`s = \|\nabla f(x_{k+1})\|^2`. `descent` and `progress` hold for every client
that moves, chosen in any way, and every g; `estimation` needs clients that are independent of
:math:`(x_{k+1}, x_k, g_k)`.
"""

from typing import Any

from fedspam.theory.constants import Version


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
