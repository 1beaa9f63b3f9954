"""Discrete Gaussian noise: the sampler has the exact probabilities, also where floats do not decide."""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam.flower.privacy import noise
from fedspam.flower.privacy.noise import discrete_gaussian

DRAWS = 200_000
UNLIKELY = 1e-6  # the probability that a test of a random sample fails although all is right


def probabilities(deviation, most):
    """The exact probabilities of -most, ..., most, to 40 digits: the rest of the sum is below e^-900."""
    with localcontext() as context:
        context.prec = 40
        variance = Decimal(deviation) ** 2
        weights = {k: (-Decimal(k * k) / (2 * variance)).exp() for k in range(-60 * most, 60 * most + 1)}
        total = sum(weights.values())
        return np.array([float(weights[k] / total) for k in range(-most, most + 1)])


@pytest.mark.parametrize("deviation", [0.3, 1.0, 2.75, 16.0])
def test_samples_have_the_exact_probabilities(deviation):
    """Pearson's chi-squared test, with a cell per number and one for each tail."""
    most = max(1, math.floor(3 * deviation))
    due = probabilities(deviation, most)
    found = np.clip(discrete_gaussian(deviation, DRAWS), -most - 1, most + 1)
    tail = (1 - due.sum()) / 2
    counts = np.bincount(found + most + 1, minlength=2 * most + 3)
    expected = DRAWS * np.array([tail, *due, tail])
    if expected[0] < 5:  # too few for a cell of its own
        counts, expected = counts[1:-1], expected[1:-1] + (counts[0] + counts[-1]) / len(due)
    statistic = np.sum((counts - expected) ** 2 / expected)
    assert statistic < chi2.isf(UNLIKELY, len(counts) - 1)


@pytest.mark.parametrize("deviation", [2.0**21, 3.7 * 2.0**32])
def test_large_deviations_are_normal(deviation):
    found = discrete_gaussian(deviation, DRAWS)
    assert kstest(found / deviation, norm.cdf).pvalue > UNLIKELY
    assert np.count_nonzero(found % 2) == pytest.approx(DRAWS / 2, abs=5 * math.sqrt(DRAWS) / 2)  # the last bit is free
    assert not np.any(found == discrete_gaussian(deviation, DRAWS))  # drawn anew


def test_exact_decisions_are_those_of_floats_where_these_suffice(monkeypatch):
    """The same words decide, with exact arithmetic for all of them."""
    random = np.random.default_rng(0)
    tape = random.integers(2**64, size=100_000, dtype=np.uint64)

    def replay():
        left = iter(np.split(tape, 200))
        monkeypatch.setattr(noise, "_words", lambda count: next(left)[:count])
        return discrete_gaussian(3.5, 100)

    with_floats = replay()
    monkeypatch.setattr(noise, "MARGIN", 2.0)
    np.testing.assert_array_equal(replay(), with_floats)


@pytest.mark.parametrize("exponent", [Fraction(1), Fraction(1, 3), Fraction(10, 7)])
def test_a_decision_that_64_bits_leave_open_draws_more(exponent):
    """The word of 64 bits below which exp(-exponent) lies: the answer is random, with the rest as its probability."""
    with localcontext() as context:
        context.prec = 60
        scaled = (-Decimal(exponent.numerator) / exponent.denominator).exp() * 2**64
    word, rest = int(scaled), float(scaled % 1)
    assert noise._decided(word - 1, exponent)
    assert not noise._decided(word + 1, exponent)
    found = np.mean([noise._decided(word, exponent) for _ in range(2000)])
    assert found == pytest.approx(rest, abs=5 * math.sqrt(0.25 / 2000))
