r"""The right-hand sides of the theorems, for every number of rounds at once.

Each theorem bounds a weighted mean of squared gradient norms,
:math:`\frac1{\Gamma_K}\sum_{k<K}\gamma_k\mathrm{E}\|\nabla f(x_{k+1})\|^2` with :math:`\Gamma_K = \sum_{k<K}\gamma_k`,
by a sum of four parts. The `version` chooses the constants: 'corrected' (proved), 'paper' (the main text), 'appendix',
or 'tight': the best that the paper's assumptions allow (`fedspam.theory.tight`), infinite where they allow none.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks
from fedspam.methods.schedules import PAPER_FACTOR
from fedspam.solvers._certificate import RELATIVE
from fedspam.theory import tight
from fedspam.theory.constants import (
    APPENDIX,
    MAIN,
    VERSIONS,
    Constants,
    Version,
    least_fresh_weight,
    lyapunov_weight,
    sequences,
    weak_convexity,
)

Curve = Float[np.ndarray, " K"]


class Bound(NamedTuple):
    """A theorem's right-hand side, one part per cause; entry K - 1 of each is for K rounds."""

    start: Curve  # f(x_0) - inf f: falls like 1/K
    estimator: Curve  # the error of g_0: falls like 1/K
    noise: Curve  # sigma: a floor if the fresh weight is constant
    inexactness: Curve  # epsilon: a floor

    @property
    def total(self) -> Curve:
        return self.start + self.estimator + self.noise + self.inexactness


def constant_bound(
    constants: Constants, step_size: float, fresh_weight: float, rounds: int,
    *, cohort: float = 1.0, version: Version = "corrected",
) -> Bound:  # fmt: skip
    r"""Theorem 3.2 (equation 9), exact prox and constant parameters; Corollary 3.3 is the same for a random iterate.

    .. math:: \frac1K\sum_{k=1}^K \mathrm{E}\|\nabla f(x_k)\|^2 \le \frac{32F}{\gamma K}
              + \frac{30\,e_0}{(2p-p^2)K} + \frac{60}{2-p}\,p\frac{\sigma^2}{B_\mathrm{eff}}

    The main text prints 32, 32 and 64, which is looser but true; the appendix prints 32, 30 and 192. The random
    iterate is one of :math:`x_1, \dots, x_K`, not :math:`x_{K+1}`.

    >>> bound = constant_bound(Constants(delta=1.0, sigma=0.1, gap=1.0), 0.25, 6 / 7, rounds=1000)
    >>> round(float(bound.start[-1]), 4), round(float(bound.noise[-1]), 4)
    (0.128, 0.45)
    """
    checks.one_of("version", version, VERSIONS)
    gamma, p = sequences(np.full(rounds, step_size), fresh_weight)
    if version == "tight":
        return _tight(constants, gamma, p, cohort)
    corrected = 32 * MAIN, 64 * MAIN / (2 - fresh_weight)
    error, noise = {"corrected": corrected, "paper": (32.0, 64.0), "appendix": (30.0, 192.0)}[version]
    count = np.arange(1, rounds + 1)
    return Bound(
        32 * constants.gap / (step_size * count),
        error * constants.error / (p * (2 - p) * count),
        np.full(rounds, noise * fresh_weight * constants.sigma**2 / cohort),
        np.zeros(rounds),
    )


def varying_bound(
    constants: Constants, step_sizes: Any, fresh_weights: Any, *, cohort: float = 1.0, version: Version = "corrected"
) -> Bound:
    r"""Theorem 3.5 (equation 10), exact prox and parameters that vary slowly (see `premises`).

    .. math:: \frac{32V_0}{\Gamma_K}
              + \frac{192}{\Gamma_K}\sum_{k<K}\frac{p_k\gamma_k}{2-p_k}\frac{\sigma^2}{B_\mathrm{eff}},
              \qquad c = 3 \text{ in } V_0

    The paper prints 2 instead of 192, which the proof does not give; and it allows any
    :math:`\gamma_k \le 1/(4\delta)`, for which the theorem is false.
    """
    checks.one_of("version", version, VERSIONS)
    gamma, p = sequences(step_sizes, fresh_weights)
    if version == "tight":
        return _tight(constants, gamma, p, cohort)
    if version == "corrected":
        return _telescoped(constants, gamma, p, 32, APPENDIX, 192 * p * gamma / (2 - p) / cohort)
    if version == "paper":
        return _telescoped(constants, gamma, p, 32, MAIN, 2 * p * gamma / cohort)
    old = 15 * (constants.delta * gamma) ** 2
    return _telescoped(constants, gamma, p, 32, APPENDIX, 2 * gamma * old / (old + 4) / cohort)


def inexact_bound(
    constants: Constants, step_sizes: Any, fresh_weights: Any,
    *, epsilon: Any = 0.0, cohort: float = 1.0, version: Version = "corrected",
) -> Bound:  # fmt: skip
    r"""Theorem 4.1 (equation 11), approximate prox.

    .. math:: \frac{40V_0}{\Gamma_K}
              + \frac{240}{\Gamma_K}\sum_{k<K}\frac{p_k\gamma_k}{2-p_k}\frac{\sigma^2}{B_\mathrm{eff}}
              + \frac{5}{\Gamma_K}\sum_{k<K}\gamma_k\epsilon_k^2, \qquad c = 3 \text{ in } V_0

    The paper prints :math:`2p_k\gamma_k^2\sigma^2`, whose units are wrong, and :math:`\epsilon^2/8`; both are false.
    Answers that pass the relative test have :math:`\epsilon_k = 0`.

    Arguments:
        epsilon: a number, or one per round, as in `Certificates.epsilons`.
    """
    checks.one_of("version", version, ("corrected", "paper", "tight"))
    gamma, p = sequences(step_sizes, fresh_weights)
    if version == "tight":
        return _tight(constants, gamma, p, cohort, epsilon, RELATIVE)
    if version == "paper":
        return _telescoped(constants, gamma, p, 40, MAIN, 2 * p * gamma**2 / cohort, epsilon, 1 / 8)
    return _telescoped(constants, gamma, p, 40, APPENDIX, 240 * p * gamma / (2 - p) / cohort, epsilon, 5)


def partial_bound(
    constants: Constants, step_sizes: Any, fresh_weights: Any,
    *, cohort: float = 1.0, epsilon: Any = 0.0, version: Version = "corrected",
) -> Bound:  # fmt: skip
    r"""Theorem 5.1, SPAM-PP: `inexact_bound` with a cohort.

    The paper prints :math:`240p_k\gamma_k\sigma^2/B` and :math:`7.5\epsilon^2`, for the fresh weights
    :math:`96r^2/(96r^2 + B^2)` (`printed_fresh_weight`), which need :math:`B_\mathrm{eff}` in place of :math:`B^2`.

    Arguments:
        cohort: :math:`B_\mathrm{eff}`; B for the printed form.
    """
    checks.one_of("version", version, ("corrected", "paper", "tight"))
    if version != "paper":
        return inexact_bound(constants, step_sizes, fresh_weights, epsilon=epsilon, cohort=cohort, version=version)
    gamma, p = sequences(step_sizes, fresh_weights)
    return _telescoped(constants, gamma, p, 40, APPENDIX, 240 * p * gamma / cohort, epsilon, 7.5)


def averaged_bound(
    constants: Constants, step_sizes: Any, fresh_weights: Any,
    *, cohort: float = 1.0, epsilon: Any = 0.0, version: Version = "corrected",
) -> Bound:  # fmt: skip
    r"""Theorem D.1, SPAM-PPA: the bound of SPAM-PP, on the gradients at the clients' own points
    :math:`x_{k+1}^\xi`, not at the server's mean.

    It needs :math:`\gamma \le 1/(4(\delta + L))`, where the weak convexity of f may replace L
    (``premises(..., averaged=True)``). The tight form needs only :math:`\gamma(\delta + \rho) < 1` and
    :math:`2s < 1 - \gamma\delta`.
    """
    if version == "tight":
        gamma, p = sequences(step_sizes, fresh_weights)
        return _tight(constants, gamma, p, cohort, epsilon, RELATIVE, weak_convexity(constants))
    return partial_bound(constants, step_sizes, fresh_weights, cohort=cohort, epsilon=epsilon, version=version)


def printed_fresh_weight(step_size: Any, delta: float, cohort: int = 1) -> Any:
    r"""The fresh weight as Theorem 5.1 prints it, :math:`96r^2/(96r^2 + B^2)`: too small for :math:`B \ge 6`."""
    return least_fresh_weight(step_size, delta, cohort**2, PAPER_FACTOR)


def _telescoped(
    constants: Constants, gamma: Curve, p: Curve, rate: float, factor: float, noise: Curve, epsilon: Any = 0.0,
    floor: float = 0.0,
) -> Bound:  # fmt: skip
    """rate * V_0 over the sum of step sizes, plus the weighted means of what each round adds."""
    total = np.cumsum(gamma)
    inexact = np.cumsum(gamma * np.float64(epsilon) ** 2)
    weight = lyapunov_weight(gamma[0], p[0], factor)
    return Bound(
        rate * constants.gap / total,
        rate * weight * constants.error / total,
        np.cumsum(noise) * constants.sigma**2 / total,
        floor * inexact / total,
    )


def _tight(
    constants: Constants, gamma: Curve, p: Curve, cohort: float, epsilon: Any = 0.0, relative: float = 0.0,
    weak: float | None = None,
) -> Bound:  # fmt: skip
    r"""For each number of rounds the least over c of

    .. math:: \Bigl(\sqrt{\tfrac{R}{\Gamma}\bigl(F + a_0e_0 + \textstyle\sum 2a_{k+1}p_{k+1}^2\sigma^2/B\bigr)}
              + \sqrt{\tfrac1\Gamma\textstyle\sum\gamma_k\epsilon_k^2}\Bigr)^2, \qquad
              a_k = \frac{c\gamma_k}{2p_k - p_k^2}

    where R is the largest rate of a round so far, whose weight in units of its step size is
    :math:`(a_k - a_{k+1}(1 - p_{k+1})^2)/\gamma_k`.
    """
    total, ratio = np.cumsum(gamma), gamma * constants.delta
    inexact = np.cumsum(gamma * np.float64(epsilon) ** 2) / total
    next_p = np.append(p[1:], p[-1])
    kept = (1 - next_p) ** 2
    alpha = gamma / (p * (2 - p))
    after = np.append(alpha[1:], alpha[-1])
    share = (alpha - after * kept) / gamma
    share, spread = np.where(share > 0, share, np.nan), 2 * after * kept * ratio**2 / (cohort * gamma)
    best = np.full((3, len(gamma)), np.inf)
    for c in np.geomspace(0.5, 50, 120):
        at = ratio, spread / share, c * share
        found = tight.proved(*at, relative) if weak is None else tight.averaged_rate(*at, gamma * weak, relative)
        rate = np.maximum.accumulate(np.where(np.isnan(found), np.inf, found)) / total
        if not np.isfinite(rate[0]):
            continue
        noise = np.cumsum(2 * c * after * next_p**2) * constants.sigma**2 / cohort
        with np.errstate(invalid="ignore"):  # an infinite rate times no noise
            parts = rate * np.stack([0 * noise + constants.gap, 0 * noise + c * alpha[0] * constants.error, noise])
        best = np.where(parts.sum(0) < best.sum(0), parts, best)
    cross = np.sqrt(np.where(inexact > 0, best.sum(0), 0) * inexact)
    return Bound(best[0], best[1], best[2], inexact + 2 * cross)
