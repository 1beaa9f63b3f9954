"""The constants of a problem, and the conditions of the theorems on step sizes and fresh weights."""

from typing import Any, Literal, TypeAlias

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks
from fedspam._internal.trees import struct
from fedspam.clients import Population, repeats
from fedspam.methods.schedules import PAPER_FACTOR, effective_cohort

Version: TypeAlias = Literal["corrected", "paper", "appendix", "tight"]
VERSIONS: tuple[Version, ...] = ("corrected", "paper", "appendix", "tight")

MAIN = 15 / 16  # c of the Lyapunov function in the main text: enough for constant parameters
APPENDIX = 3.0  # c in the appendix: its proof needs 17/8, and also covers varying parameters


@struct
class Constants:
    r"""The constants of the paper's assumptions, given or measured (`fedspam.theory.measure`).

    Arguments:
        delta: :math:`\delta` of Assumption 2, the similarity of the clients' Hessians.
        sigma: :math:`\sigma` of Assumption 1; where it is unbounded, its largest value along the run.
        gap: :math:`F = f(x_0) - f_{\inf}`.
        error: :math:`\|g_0 - \nabla f(x_0)\|^2`, expected.
        smoothness: L of f; only SPAM-PPA needs it.
        weak_convexity: :math:`\rho` with :math:`\nabla^2 f \succeq -\rho I`, used instead of L if given.
    """

    delta: float
    sigma: float = 0.0
    gap: float = 0.0
    error: float = 0.0
    smoothness: float | None = None
    weak_convexity: float | None = None

    def __post_init__(self) -> None:
        for name in ("delta", "sigma", "gap", "error", "smoothness", "weak_convexity"):
            checks.between(name, getattr(self, name), 0, np.inf)


def lyapunov_weight(step_size: Any, fresh_weight: Any, factor: float = APPENDIX) -> Any:
    r""":math:`\alpha = c\gamma/(2p - p^2)`, by which the estimator's error enters :math:`V_k` (equation 8).

    >>> round(lyapunov_weight(0.25, 6 / 7), 4)
    0.7656
    """
    return factor * step_size / (fresh_weight * (2 - fresh_weight))


def least_fresh_weight(step_size: Any, delta: Any, cohort: Any = 1.0, factor: Any = PAPER_FACTOR) -> Any:
    r"""The least p that the theorems allow, :math:`Cr^2/(Cr^2 + B_\mathrm{eff})` with :math:`r = \gamma\delta`.

    >>> round(least_fresh_weight(0.25, 1.0), 4), round(least_fresh_weight(0.25, 1.0, cohort=10), 4)
    (0.8571, 0.375)
    """
    squared = factor * (step_size * delta) ** 2
    return squared / (squared + cohort)


def effective_cohort_of(population: Population, cohort_size: int, *, dependent: bool = False) -> float:
    """B_eff of the cohorts that a population draws: with or without replacement, or endless (`effective_cohort`).

    >>> from fedspam.problems import quadratics
    >>> effective_cohort_of(quadratics(0, clients=100, dimension=2), 10)
    11.0
    """
    return effective_cohort(cohort_size, population.size, replace=repeats(population), dependent=dependent)


def premises(
    constants: Constants, step_sizes: Any, fresh_weights: Any,
    *, cohort: float = 1.0, averaged: bool = False, factor: float = PAPER_FACTOR,
) -> list[str]:  # fmt: skip
    r"""The conditions of the corrected theorems that :math:`\gamma_k` and :math:`p_k` violate; [] if none.

    - :math:`\gamma_k \le 1/(4\delta)`; for SPAM-PPA (`averaged`) :math:`1/(4(\delta + \rho))`, where :math:`\rho` is
      the weak convexity of f, or L;
    - :math:`p_k \ge Cr_k^2/(Cr_k^2 + B_\mathrm{eff})`; C = 96 is the paper's, 17 the least for which the
      paper's own steps work with c = 3; `fedspam.theory.tight` proves more;
    - not in the paper: :math:`\gamma_k` must not increase, and it must decrease slowly,
      :math:`\gamma_k \le 4\gamma_{k+1}` and
      :math:`\alpha_{k+1}(1 - p_{k+1})^2 \le \alpha_k - \tfrac{17}{8}\gamma_k`.

    >>> premises(Constants(delta=1.0), 0.25, 0.9), premises(Constants(delta=1.0), 0.25, 0.5)
    ([], ['fresh_weight 0.5 in round 0 is below 0.857'])
    """
    gamma, p = sequences(step_sizes, fresh_weights)
    slack = 1 + 1e-9  # rounding
    rho = 0.0
    if averaged:
        rho = weak_convexity(constants)
    broken = []
    steepest = gamma * 4 * (constants.delta + rho)
    if (steepest > slack).any():
        k = int(np.argmax(steepest > slack))
        limit = "1/(4(delta + rho))" if averaged else "1/(4 delta)"
        broken.append(f"step size {gamma[k]:.3g} in round {k} exceeds {limit} = {gamma[k] / steepest[k]:.3g}")
    least = np.asarray(least_fresh_weight(gamma, constants.delta, cohort, factor))
    if (p * slack < least).any():
        k = int(np.argmax(p * slack < least))
        broken.append(f"fresh_weight {p[k]:.3g} in round {k} is below {least[k]:.3g}")
    if (gamma[1:] > gamma[:-1] * slack).any():
        broken.append(f"the step size increases in round {int(np.argmax(gamma[1:] > gamma[:-1] * slack)) + 1}")
    alpha = lyapunov_weight(gamma, p)
    fast = (gamma[:-1] > 4 * gamma[1:] * slack) | (
        alpha[1:] * (1 - p[1:]) ** 2 > (alpha[:-1] - 17 / 8 * gamma[:-1]) * slack
    )
    if fast.any():
        broken.append(f"the step size falls too fast in round {int(np.argmax(fast)) + 1}")
    return broken


def weak_convexity(constants: Constants) -> float:
    """rho of f, or L in its place."""
    for value in (constants.weak_convexity, constants.smoothness):
        if value is not None:
            return value
    raise ValueError("SPAM-PPA's step size depends on f: give its smoothness or its weak_convexity")


def sequences(step_sizes: Any, fresh_weights: Any) -> tuple[Float[np.ndarray, " K"], Float[np.ndarray, " K"]]:
    """Both as float64 vectors of equal length."""
    gamma, p = np.broadcast_arrays(*map(np.atleast_1d, (np.float64(step_sizes), np.float64(fresh_weights))))
    if gamma.ndim != 1 or not ((gamma > 0).all() and (p > 0).all() and (p <= 1).all()):
        raise ValueError(
            "step sizes must be positive and fresh weights in (0, 1]: numbers, or vectors with one value per round"
        )
    return gamma, p
