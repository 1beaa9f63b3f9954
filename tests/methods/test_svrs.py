"""AccSVRS: an independent loop, and SVRS without its acceleration."""

import jax
import numpy as np
import pytest

from fedspam._internal import prng
from fedspam.methods import acc_svrs, svrs
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_accsvrs_without_its_acceleration_is_svrs(play, population):
    # tau = 1, mu = 0, alpha = gamma/p: z is where the epoch ended
    plain = play(svrs(2, 0.5, 0.4, **PROX), population, 12)
    restarted = play(acc_svrs(2, 0.5, 0.4, mixing=1.0, convexity=0.0, length=0.5 / 0.4, **PROX), population, 12)
    np.testing.assert_allclose(restarted.params, plain.params, rtol=1e-12)


def test_accsvrs_equals_an_independent_loop(play, population):
    gamma, p, tau, mu, cohort = 0.5, 0.5, 0.3, 0.7, [3, 1, 4, 1, 5, 0, 2, 2]
    alpha = gamma / (2 * p * tau)
    coins = [bool(k == 0 or _flip(k, p)) for k in range(8)]
    assert 2 < sum(coins) < 8
    run = play(acc_svrs(1, gamma, p, tau, mu, **PROX), population, 8, cohort=cohort)
    x = z = w = np.ones(D)
    for k, i in enumerate(cohort):
        if coins[k]:
            G = p * (w - x) / gamma
            z = (z + 0.5 * mu * alpha * x - alpha * G) / (1 + 0.5 * mu * alpha)
            x = w = tau * z + (1 - tau) * x
        x = prox(
            population,
            0,
            x,
            gradient(population, w) + gradient(population, x, [i]) - gradient(population, w, [i]),
            gamma,
        )
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def _flip(k, p):
    key = prng.fold_name(jax.random.fold_in(jax.random.key(0), k), "coin")
    return bool(jax.random.bernoulli(key, p))
