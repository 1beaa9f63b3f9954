"""SABER: an independent loop."""

import numpy as np
import pytest

from fedspam.methods import saber, saber_partial
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_saber_equals_an_independent_loop(play, population):
    cohorts, movers, many = (
        [[0, 1], [2, 3], [4, 0], [5, 1]],
        [1, 2, 5, 3],
        [[0, 1, 2, 3], [0] * 4, [1, 2, 4, 5], [0] * 4],
    )
    coins, gamma = np.array([1.0, 0, 1, 0]), 0.6
    full = play(saber(2, gamma, coins, **PROX), population, 4, cohort=cohorts, prox=movers)
    part = play(saber_partial(2, 4, gamma, coins, **PROX), population, 4, cohort=cohorts, many=many)
    for run, partial in ((full, False), (part, True)):
        x, previous, g = np.ones(D), np.ones(D), np.zeros(D)
        for k in range(4):
            change = gradient(population, x, cohorts[k]) - gradient(population, previous, cohorts[k])
            g = gradient(population, x, many[k] if partial else None) if coins[k] else g + change
            moving = cohorts[k] if partial else movers[k : k + 1]
            previous, x = x, np.mean([prox(population, i, x, g, gamma) for i in moving], axis=0)
        np.testing.assert_allclose(run.params, x, rtol=1e-12)
