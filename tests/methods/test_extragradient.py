"""Accelerated extragradient: an independent loop."""

import numpy as np
import pytest

from fedspam.methods import acc_extragradient
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_extragradient_equals_an_independent_loop(play, population):
    gamma, mu = 0.6, 0.7
    run = play(acc_extragradient(gamma, convexity=mu, **PROX), population, 6)
    x = v = np.ones(D)
    A, B = 0.0, 1.0
    for _ in range(6):
        a = B * gamma / 4 + np.sqrt((B * gamma / 4) ** 2 + A * B * gamma / 2)
        assert 1 / gamma == pytest.approx((A + a) * B / (2 * a**2))  # the authors' rule for a
        centre = (A * x + a * v) / (A + a)
        x = prox(population, 0, centre, gradient(population, centre), gamma)
        v = (mu * a * x + B * v - a * gradient(population, x)) / (mu * a + B)
        A, B = A + a, B + mu * a
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
    np.testing.assert_allclose(run.state.v, v, rtol=1e-12)
