r"""Numbers with their doubt: confidence intervals from the spread of a cohort, and from a random start of Lanczos."""

import math
from statistics import NormalDist
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam._internal import checks

Values = Float[np.ndarray, " clients"]


class IntervalEstimate(NamedTuple):
    """A number and the interval that holds the truth with the confidence asked for."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def student(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t, by its expansion around the normal one (good to 1 % from 5 degrees on).

    >>> round(student(0.95, 10), 2), round(student(0.95, 1e9), 2)
    (2.23, 1.96)
    """
    checks.between("confidence", confidence, 0, 1, open_low=True)
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def unseen(count: int, population: int | None) -> float:
    """The share of the variance that is left where `count` of a finite population were drawn without replacement."""
    return 1.0 if population is None else max(0.0, (population - count) / max(1, population - 1))


def mean_interval(values: Any, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    """The mean over a population from a cohort's values: Student's interval, 0 wide where everyone was asked."""
    values = np.asarray(values, np.float64)
    count, middle = _count(values, population), float(values.mean())
    width = 0.0
    if unseen(count, population) > 0:
        deviation = float(values.std(ddof=1)) * math.sqrt(unseen(count, population) / count)
        width = student(confidence, count - 1) * deviation
    return IntervalEstimate(middle, middle - width, middle + width)


def root_mean_interval(squares: Any, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    """The root of the mean of squares; the interval is symmetric for its logarithm, so that it stays positive."""
    squares = np.asarray(squares, np.float64)
    middle, low, high = mean_interval(squares, confidence, population)
    if middle <= 0:
        return IntervalEstimate(0.0, 0.0, math.sqrt(max(0.0, high)))
    factor = math.exp((high - low) / (2 * middle) / 2)
    root = math.sqrt(middle)
    return IntervalEstimate(root, root / factor, root * factor)


def spread_interval(squares: Any, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    r"""The standard deviation :math:`\sigma` over a population from a cohort's :math:`\|g_i - \bar g\|^2`.

    :math:`\hat\sigma^2 = \frac1{B-1}\sum_i\|g_i - \bar g\|^2` is unbiased. Leaving out one client leaves
    :math:`\frac1{B-2}\bigl(\sum_j a_j - \frac{B}{B-1}a_i\bigr)`, so that the jackknife of its logarithm needs the
    squares alone, never a gradient.

    >>> str(spread_interval([1.0, 2.0, 1.5, 0.5, 1.0, 1.5]))
    '1.225 [0.9285, 1.616]'
    """
    squares = np.asarray(squares, np.float64)
    count = _count(squares, population, least=3)
    total = float(squares.sum())
    if population == count:
        return IntervalEstimate(*(math.sqrt(total / count),) * 3)
    # of a finite population: its own variance has n in the denominator
    bessel = (count - 1) * (1.0 if population is None else population / (population - 1))
    sigma = math.sqrt(total / bessel)
    if total == 0:
        return IntervalEstimate(0.0, 0.0, 0.0)
    # a client whose square is all there is leaves nothing behind
    left = np.maximum(total - count / (count - 1) * squares, 1e-12 * total) / (count - 2)
    logs = np.log(left)
    variance = (count - 1) / count * float(((logs - logs.mean()) ** 2).sum()) * unseen(count, population)
    factor = math.exp(student(confidence, count - 1) * math.sqrt(variance) / 2)
    return IntervalEstimate(sigma, sigma / factor, sigma * factor)


def missed(steps: int, dimension: int, failure: float) -> float:
    r"""How much of an extreme eigenvalue Lanczos may have missed, as a share of the spectrum's width.

    After k steps from a uniformly random start it misses more than :math:`\varepsilon` with probability at most
    :math:`1.648\sqrt d\,e^{-(2k-1)\sqrt\varepsilon}` (Kuczyński, Woźniakowski 1992, Theorem 4.2); nothing once
    :math:`k \ge d`.

    >>> round(missed(24, 100, 0.05), 4), missed(5, 5, 0.05)
    (0.0152, 0.0)
    """
    if steps >= dimension:
        return 0.0
    return (math.log(1.648 * math.sqrt(dimension) / failure) / (2 * steps - 1)) ** 2


def _count(values: np.ndarray, population: int | None, least: int = 2) -> int:
    if values.ndim != 1 or (len(values) < least and population != len(values)):
        raise ValueError(f"{values.size} clients tell nothing of the others; ask at least {least}")
    return len(values)
