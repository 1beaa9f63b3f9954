r"""Exact samples of the discrete Gaussian distribution, whose probabilities are proportional to
:math:`\exp(-k^2 / 2\sigma^2)` for whole numbers k.

Noise in floating point leaks in its last bits: some results are possible with one value and not with another. A whole
number has no such bits. The algorithm is rejection from a discrete Laplace distribution, with all decisions exact: a
decision is made with floats where they suffice, which is almost always, and otherwise with as many digits as it takes.

Canonne, Kamath, Steinke: The discrete Gaussian for differential privacy, NeurIPS 2020.
"""

import math
import secrets
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np

from . import masks

MARGIN = 2.0**-40  # far more than the error of a probability in float64


def discrete_gaussian(deviation: float, count: int) -> np.ndarray:
    r"""Independent whole numbers with the parameter :math:`\sigma` = `deviation`, from a fresh seed of the operating
    system.

    >>> discrete_gaussian(2.0**20, 3).dtype
    dtype('int64')
    """
    scale, variance = math.floor(deviation) + 1, Fraction(deviation) ** 2
    found, left = [np.zeros(0, np.int64)], count
    while left > 0:
        drawn = np.abs(proposed := _laplace(scale, left + 8))
        taken = _below_exp(
            np.square((drawn - deviation**2 / scale) / deviation) / 2,
            lambda place, drawn=drawn: (int(drawn[place]) - variance / scale) ** 2 / (2 * variance),
        )
        found.append(proposed[taken])
        left -= int(np.count_nonzero(taken))
    return np.concatenate(found)[:count]


def _laplace(scale: int, count: int) -> np.ndarray:
    """At most `count` whole numbers with probabilities proportional to exp(-|k| / scale)."""
    low = _uniform(scale, count)
    low = low[_below_exp(low / scale, lambda place, low=low: Fraction(int(low[place]), scale))]
    size, going = low, np.arange(len(low))
    while len(going):  # the number of successes before the first failure, each with probability 1 / e
        going = going[_below_exp(np.ones(len(going)), lambda place: Fraction(1))]
        size[going] += scale
    negative = _uniform(2, len(size)) == 1
    return np.where(negative, -size, size)[~(negative & (size == 0))]


def _uniform(below: int, count: int) -> np.ndarray:
    """Whole numbers from 0 on, below this one, all with the same probability."""
    bits, found = max((below - 1).bit_length(), 1), np.zeros(0, np.uint64)
    while len(found) < count:
        words = _words(count) >> np.uint64(64 - bits)
        found = np.concatenate([found, words[words < below]])
    return found[:count].astype(np.int64)


def _below_exp(exponents: np.ndarray, exact: Callable[[int], Fraction]) -> np.ndarray:
    """True with probability exp(-exponent) each. `exact` returns the exponent at a place without rounding."""
    words, chances = _words(len(exponents)), np.exp(-exponents)
    drawn = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    found = drawn < chances
    for place in np.flatnonzero(np.abs(drawn - chances) < MARGIN):
        found[place] = _decided(int(words[place]), exact(int(place)))
    return found


def _decided(word: int, exponent: Fraction) -> bool:
    """Whether a uniform number whose first 64 bits are `word` is below exp(-exponent); draws more bits if needed."""
    bits, digits = 64, 30
    while True:
        with localcontext() as context:
            context.prec = digits
            chance = (-Decimal(exponent.numerator) / exponent.denominator).exp()
            drawn, error = Decimal(word) / 2**bits, Decimal(10) ** (3 - digits)
            if drawn + Decimal(1) / 2**bits + error < chance:
                return True
            if drawn - error > chance:
                return False
        word, bits, digits = word << 64 | secrets.randbits(64), bits + 64, digits + 20


def _words(count: int) -> np.ndarray:
    return masks.stream(secrets.token_bytes(masks.SEED), count)
