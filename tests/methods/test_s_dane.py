"""S-DANE and Acc-S-DANE: an independent loop."""

import numpy as np
import pytest

from fedspam.methods import acc_s_dane, s_dane
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


@pytest.mark.parametrize("accelerated", [False, True])
def test_s_dane_equals_an_independent_loop(play, population, accelerated):
    gamma, mu, cohorts = 0.6, 0.7, [[0, 1], [2, 3], [4, 0], [5, 1], [0, 3], [2, 4]]
    build = acc_s_dane if accelerated else s_dane
    run = play(build(2, gamma, convexity=mu, **PROX), population, cohort=cohorts)
    # with the A and B of the paper, whose ratio the method keeps
    x = v = np.ones(D)
    A, B = 0.0, 1.0
    for S in cohorts:
        if accelerated:
            a = (B + np.sqrt(B**2 + 4 * A * B / gamma)) * gamma / 2
            centre = (A * x + a * v) / (A + a)
        else:
            A, B, a, centre = 0.0, 1.0, gamma, v
        g = gradient(population, centre, S)
        moved = [prox(population, i, centre, g, gamma) for i in S]
        x, slope = (
            np.mean(moved, axis=0),
            np.mean([gradient(population, y, [i]) for i, y in zip(S, moved, strict=True)], axis=0),
        )
        v = (mu * a * x + B * v - a * slope) / (mu * a + B)
        A, B = A + a, B + mu * a
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
    np.testing.assert_allclose(run.state.v, v, rtol=1e-12)
