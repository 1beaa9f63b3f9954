r"""The right-hand sides of the theorems, for every number of rounds at once.

Each theorem bounds a weighted mean of squared gradient norms,
:math:`\frac1{\Gamma_K}\sum_{k<K}\gamma_k\mathrm{E}\|\nabla f(x_{k+1})\|^2` with :math:`\Gamma_K = \sum_{k<K}\gamma_k`,
by a sum of four parts. The `version` chooses the constants: 'corrected' (proved), 'paper' (the main text) or
'appendix'.
"""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks
from fedspam.methods.schedules import PAPER_FACTOR
from fedspam.theory.constants import (
    APPENDIX,
    MAIN,
    VERSIONS,
    Constants,
    Version,
    least_fresh_weight,
    lyapunov_weight,
    sequences,
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
    constants: Constants,
    step_size: float,
    fresh_weight: float,
    rounds: int,
    *,
    cohort: float = 1.0,
    version: Version = "corrected",
) -> Bound:
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
    p = fresh_weight
    error, noise = {
        "corrected": (32 * MAIN, 64 * MAIN / (2 - p)),
        "paper": (32.0, 64.0),
        "appendix": (30.0, 192.0),
    }[version]
    _, p = sequences(np.full(rounds, step_size), p)
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
    if version == "corrected":
        return _telescoped(constants, gamma, p, 32, APPENDIX, 192 * p * gamma / (2 - p) / cohort)
    if version == "paper":
        return _telescoped(constants, gamma, p, 32, MAIN, 2 * p * gamma / cohort)
    old = 15 * (constants.delta * gamma) ** 2
    return _telescoped(constants, gamma, p, 32, APPENDIX, 2 * gamma * old / (old + 4) / cohort)


def inexact_bound(
    constants: Constants,
    step_sizes: Any,
    fresh_weights: Any,
    *,
    epsilon: Any = 0.0,
    cohort: float = 1.0,
    version: Version = "corrected",
) -> Bound:
    r"""Theorem 4.1 (equation 11), approximate prox.

    .. math:: \frac{40V_0}{\Gamma_K}
              + \frac{240}{\Gamma_K}\sum_{k<K}\frac{p_k\gamma_k}{2-p_k}\frac{\sigma^2}{B_\mathrm{eff}}
              + \frac{5}{\Gamma_K}\sum_{k<K}\gamma_k\epsilon_k^2, \qquad c = 3 \text{ in } V_0

    The paper prints :math:`2p_k\gamma_k^2\sigma^2`, whose units are wrong, and :math:`\epsilon^2/8`; both are false.
    Answers that pass the relative test have :math:`\epsilon_k = 0`.

    Arguments:
        epsilon: a number, or one per round, as in `Certificates.epsilons`.
    """
    checks.one_of("version", version, ("corrected", "paper"))
    gamma, p = sequences(step_sizes, fresh_weights)
    if version == "paper":
        return _telescoped(constants, gamma, p, 40, MAIN, 2 * p * gamma**2 / cohort, epsilon, 1 / 8)
    return _telescoped(constants, gamma, p, 40, APPENDIX, 240 * p * gamma / (2 - p) / cohort, epsilon, 5)


def partial_bound(
    constants: Constants,
    step_sizes: Any,
    fresh_weights: Any,
    *,
    cohort: float = 1.0,
    epsilon: Any = 0.0,
    version: Version = "corrected",
) -> Bound:
    r"""Theorem 5.1, SPAM-PP: `inexact_bound` with a cohort.

    The paper prints :math:`240p_k\gamma_k\sigma^2/B` and :math:`7.5\epsilon^2`, for the fresh weights
    :math:`96r^2/(96r^2 + B^2)` (`printed_fresh_weight`), which need :math:`B_\mathrm{eff}` in place of :math:`B^2`.

    Arguments:
        cohort: :math:`B_\mathrm{eff}`; B for the printed form.
    """
    checks.one_of("version", version, ("corrected", "paper"))
    if version == "corrected":
        return inexact_bound(constants, step_sizes, fresh_weights, epsilon=epsilon, cohort=cohort)
    gamma, p = sequences(step_sizes, fresh_weights)
    return _telescoped(constants, gamma, p, 40, APPENDIX, 240 * p * gamma / cohort, epsilon, 7.5)


def averaged_bound(constants: Constants, step_sizes: Any, fresh_weights: Any, **options: Any) -> Bound:
    r"""Theorem D.1, SPAM-PPA: the bound of SPAM-PP, on the gradients at the clients' own points
    :math:`x_{k+1}^\xi`, not at the server's mean.

    It needs :math:`\gamma \le 1/(4(\delta + L))`, where the weak convexity of f may replace L
    (``premises(..., averaged=True)``). The options are those of `partial_bound`.
    """
    return partial_bound(constants, step_sizes, fresh_weights, **options)


def printed_fresh_weight(step_size: Any, delta: float, cohort: int = 1) -> Any:
    r"""The fresh weight as Theorem 5.1 prints it, :math:`96r^2/(96r^2 + B^2)`: too small for :math:`B \ge 6`."""
    return least_fresh_weight(step_size, delta, cohort**2, PAPER_FACTOR)


def _telescoped(
    constants: Constants,
    gamma: Curve,
    p: Curve,
    rate: float,
    factor: float,
    noise: Curve,
    epsilon: Any = 0.0,
    floor: float = 0.0,
) -> Bound:
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
