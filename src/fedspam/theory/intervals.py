"""Confidence intervals, from the spread of a cohort and from the random start of Lanczos."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike


class IntervalEstimate(NamedTuple):
    """An estimate with its confidence interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.4g} [{self.low:.4g}, {self.high:.4g}]"

    def covers(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def finite_population_factor(count: int, population: int | None) -> float:
    """The factor on the variance of a mean of `count` values drawn without replacement; 1 for an endless population."""
    return 1.0 if population is None else max(0.0, (population - count) / max(1, population - 1))


def mean_interval(values: ArrayLike, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    """The mean over a population from a cohort's values: Student's interval; of width 0 if the cohort is everyone."""
    values = np.asarray(values, np.float64)
    count, middle = _count(values, population), float(values.mean())
    width, factor = 0.0, finite_population_factor(count, population)
    if factor > 0:
        width = _student(confidence, count - 1) * float(values.std(ddof=1)) * math.sqrt(factor / count)
    return IntervalEstimate(middle, middle - width, middle + width)


def root_mean_interval(squares: ArrayLike, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    """The root of the mean of squares; the interval is symmetric in its logarithm, so it stays positive."""
    squares = np.asarray(squares, np.float64)
    middle, low, high = mean_interval(squares, confidence, population)
    if middle <= 0:
        return IntervalEstimate(0.0, 0.0, math.sqrt(max(0.0, high)))
    factor = math.exp((high - low) / (2 * middle) / 2)
    root = math.sqrt(middle)
    return IntervalEstimate(root, root / factor, root * factor)


def spread_interval(squares: ArrayLike, confidence: float = 0.95, population: int | None = None) -> IntervalEstimate:
    r"""The standard deviation :math:`\sigma` over a population from a cohort's :math:`\|g_i - \bar g\|^2`.

    :math:`\hat\sigma^2 = \frac1{B-1}\sum_i\|g_i - \bar g\|^2` is unbiased. Without client i it is
    :math:`\frac1{B-2}\bigl(\sum_j a_j - \frac{B}{B-1}a_i\bigr)`, so the jackknife of its logarithm needs only the
    squares :math:`a_i`, no gradients.

    >>> str(spread_interval([1.0, 2.0, 1.5, 0.5, 1.0, 1.5]))
    '1.225 [0.9282, 1.616]'
    """
    squares = np.asarray(squares, np.float64)
    count = _count(squares, population, least=3)
    total = float(squares.sum())
    if population == count:
        return IntervalEstimate(*(math.sqrt(total / count),) * 3)
    # the variance of a finite population has n in the denominator
    bessel = (count - 1) * (1.0 if population is None else population / (population - 1))
    sigma = math.sqrt(total / bessel)
    if total == 0:
        return IntervalEstimate(0.0, 0.0, 0.0)
    # at least a little, even if one client's square is the whole sum
    left = np.maximum(total - count / (count - 1) * squares, 1e-12 * total) / (count - 2)
    logs = np.log(left)
    variance = (
        (count - 1) / count * float(((logs - logs.mean()) ** 2).sum()) * finite_population_factor(count, population)
    )
    factor = math.exp(_student(confidence, count - 1) * math.sqrt(variance) / 2)
    return IntervalEstimate(sigma, sigma / factor, sigma * factor)


def missed(steps: int, dimension: int, failure: float) -> float:
    r"""By how much Lanczos may have missed an extreme eigenvalue, as a share of the spectrum's width.

    After k steps from a uniformly random start it misses more than :math:`\varepsilon` with probability at most
    :math:`1.648\sqrt d\,e^{-(2k-1)\sqrt\varepsilon}` (Kuczyński, Woźniakowski 1992, Theorem 4.2); nothing once
    :math:`k \ge d`.

    >>> round(missed(24, 100, 0.05), 4), missed(5, 5, 0.05)
    (0.0152, 0.0)
    """
    if steps >= dimension:
        return 0.0
    return (math.log(1.648 * math.sqrt(dimension) / failure) / (2 * steps - 1)) ** 2


def _student(confidence: float, freedom: float) -> float:
    """The two-sided quantile of Student's t."""
    from scipy import stats  # here, because importing it takes about a second

    return float(stats.t.ppf(0.5 + confidence / 2, freedom))


def _count(values: np.ndarray, population: int | None, least: int = 2) -> int:
    if values.ndim != 1 or (len(values) < least and population != len(values)):
        raise ValueError(f"{values.size} clients are too few for an interval; measure at least {least}")
    return len(values)
