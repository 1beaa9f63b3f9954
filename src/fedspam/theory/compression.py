r"""Step sizes and rates of the methods that correct for a codec: `ef21_pp`, `dasha_pp`, `locodl`, `olga`.

A codec states its :math:`\omega` or :math:`\alpha` for an array, ``RandK(0.1).omega(params)``; without one
:math:`\omega = 0` and :math:`\alpha = 1`. The smoothness L is that of f, `client_smoothness` the root mean square of
the clients' :math:`L_i` (None for L), `clients` is n and `cohort` B.
"""

import math
from typing import NamedTuple

from fedspam._internal import checks


def ef21_step_size(
    smoothness: float, alpha: float, *, share: float = 1.0, client_smoothness: float | None = None
) -> float:
    r"""The step size of `fedspam.methods.ef21_pp` for non-convex f.

    .. math:: \gamma = \frac{1}{L + \tilde L\sqrt{\beta/\theta}}, \qquad \theta = 1 - \sqrt{1 - q\alpha}, \quad
        \beta = \frac{1 - q\alpha}{\theta}

    Then the mean of :math:`\mathbb E\|\nabla f(x_k)\|^2` over K rounds is at most :math:`2F/(\gamma K) +
    \frac{1}{\theta K}\cdot\frac1n\sum_i\|\nabla f_i(x_0) - g_i\|^2`.

    Arguments:
        alpha: for an unbiased codec that is scaled down, 1/(1 + omega).
        share: q, the share of the clients in a cohort.

    Richtárik, Sokolov, Fatkhullin: EF21, 2021, arXiv:2106.05203, Theorem 1. A client that sends with probability q
    has an error as if its codec had :math:`q\alpha`.

    >>> ef21_step_size(1.0, alpha=1.0)  # gradient descent
    1.0
    """
    checks.positive("smoothness", smoothness)
    checks.between("alpha", alpha, 0, 1, open_low=True)
    checks.between("share", share, 0, 1, open_low=True)
    own = smoothness if client_smoothness is None else client_smoothness
    theta = 1 - math.sqrt(1 - share * alpha)
    return 1 / (smoothness + own * math.sqrt(1 - share * alpha) / theta)


def dasha_step_size(
    smoothness: float, omega: float, *, clients: int, cohort: int, client_smoothness: float | None = None
) -> float:
    r"""The step size of `fedspam.methods.dasha_pp` for non-convex f and whole gradients.

    .. math:: \gamma = \frac{1}{L + \hat L\sqrt{\frac{48\,\omega(2\omega+1)}{np_a^2} +
        \frac{16}{np_a^2}\bigl(1 - \frac{p_{aa}}{p_a}\bigr)}}, \qquad p_a = \frac Bn, \quad
        p_{aa} = \frac{B(B-1)}{n(n-1)}

    Then the mean of :math:`\mathbb E\|\nabla f(x_k)\|^2` over K rounds is at most :math:`2F/(\gamma K)`, if clients
    start from their gradients. The constants 48 and 16 are from memory; we could not check them against the paper.

    Tyurin, Richtárik 2022, arXiv:2205.15580, Theorem 2.

    >>> dasha_step_size(2.0, omega=0.0, clients=10, cohort=10)  # gradient descent
    0.5
    """
    checks.positive("smoothness", smoothness)
    checks.between("omega", omega, 0, math.inf)
    checks.whole("clients", clients, 1)
    checks.whole("cohort", cohort, 1)
    own = smoothness if client_smoothness is None else client_smoothness
    both = (cohort - 1) / max(1, clients - 1)  # p_aa / p_a
    spread = (48 * omega * (2 * omega + 1) + 16 * (1 - both)) * clients / cohort**2
    return 1 / (smoothness + own * math.sqrt(spread))


def locodl_rate(
    smoothness: float, convexity: float, local_rate: float, probability: float,
    *, omega: float = 0.0, mean_omega: float | None = None,
) -> float:  # fmt: skip
    r"""The factor by which `fedspam.methods.locodl` shrinks its Lyapunov function, per local step and in expectation.

    .. math:: \max\Bigl\{(1-\eta\mu)^2,\ (1-\eta L)^2,\ 1 - \frac{p^2}{(1+\omega_{av})(1+2\omega)}\Bigr\}

    Arguments:
        smoothness, convexity: L and :math:`\mu` of all :math:`\tilde f_i = f_i - \frac\lambda2\|x\|^2` and of the
            server's :math:`\frac\lambda2\|x\|^2`.
        local_rate, probability, omega, mean_omega: as `fedspam.methods.locodl`.

    Condat, Maranjyan, Richtárik 2024, arXiv:2403.04348, Theorem 3.1.

    >>> round(locodl_rate(1.0, 0.1, 1.0, 0.5), 2)
    0.81
    """
    mixing = 1 / (1 + (omega if mean_omega is None else mean_omega))
    dual = 1 - probability**2 * mixing / (1 + 2 * omega)
    return max((1 - local_rate * convexity) ** 2, (1 - local_rate * smoothness) ** 2, dual)


class OlgaParameters(NamedTuple):
    """Arguments of `fedspam.methods.olga`."""

    step_size: float
    probability: float
    mixing: float
    convexity: float
    length: float


def olga_parameters(
    delta: float, convexity: float, omega: float, probability: float, *, clients: int
) -> OlgaParameters:
    r"""The arguments of `fedspam.methods.olga` for :math:`\mu`-strongly convex f.

    .. math:: \theta = \min\Bigl\{\frac{\sqrt{pn}}{8\delta\sqrt\omega}, \frac{1}{2\delta}\Bigr\}, \qquad
        \tau = \frac14\min\bigl\{\sqrt{\mu\theta/p}, 1\bigr\}, \qquad \alpha = \frac{\theta}{8p\tau}

    Then :math:`\frac\alpha\tau(f(y) - f_*) + \frac{1+\mu\alpha}2\|z - x_*\|^2` shrinks by the factor
    :math:`\max\{1 - \tau, 1/(1 + \mu\alpha)\}` per epoch, in expectation. An epoch has 1/p rounds on average.

    Arguments:
        delta: the similarity of each client with f.
        probability: p; the paper takes the compressed size of a message over its plain size.

    Bylinkin, Beznosikov 2024, arXiv:2412.16414, Theorem 1 and Corollary 1.

    >>> olga_parameters(0.5, 1.0, 0.0, 1.0, clients=10)
    OlgaParameters(step_size=1.0, probability=1.0, mixing=0.25, convexity=1.0, length=0.5)
    """
    checks.positive("delta", delta)
    checks.positive("convexity", convexity)
    checks.between("omega", omega, 0, math.inf)
    checks.between("probability", probability, 0, 1, open_low=True)
    checks.whole("clients", clients, 1)
    theta = 1 / (2 * delta)
    if omega > 0:
        theta = min(theta, math.sqrt(probability * clients / omega) / (8 * delta))
    mixing = min(math.sqrt(convexity * theta / probability), 1) / 4
    return OlgaParameters(theta, probability, mixing, convexity, theta / (8 * probability * mixing))
