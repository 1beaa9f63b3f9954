"""DASHA-PP: rounds in NumPy, gradient descent or MVR with everyone, and its theorem."""

import jax
import numpy as np
import pytest

from coded import COHORTS, MU, OMEGA, RAND, TOP, D, L, N, Numbers, played, same
from fedspam.methods import dasha_pp
from fedspam.problems import quadratics
from fedspam.theory import dasha_step_size

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(3), clients=N, dimension=D, delta=0.1, condition=4.0, curvature=MU)


@pytest.fixture(scope="module")
def c(clients):
    return Numbers(clients)


def test_dasha_pp_is_the_printed_loop(clients, c):
    share, a, b = 0.5, 0.5 / (2 * OMEGA + 1), 0.5 / 1.5
    x = x_prev = np.ones(D)
    g, own, h = np.zeros(D), np.zeros((N, D)), np.zeros((N, D))
    for cohort in COHORTS:
        for i in cohort:
            k = c.grad(i, x) - c.grad(i, x_prev) - b * (h[i] - c.grad(i, x_prev))
            m = c.top(k / share - a / share * (own[i] - h[i]))
            h[i], own[i], g = h[i] + k / share, own[i] + m, g + m / N
        x, x_prev = x - 0.1 * g, x
    run = played(dasha_pp(2, 0.1, omega=OMEGA), clients, replay={"cohort": COHORTS}, codecs={"up": TOP})
    same(run.params, x)
    same(run.memory.g, own)
    same(run.memory.h, h)
    same(run.state.g, own.mean(0))


def test_dasha_pp_with_everyone_is_gradient_descent_or_mvr(clients, c):
    for b in (1.0, 0.4):
        x = x_prev = np.ones(D)
        g = np.zeros(D)
        for _ in range(4):
            g = (1 - b) * g + c.full(x) - (1 - b) * c.full(x_prev)
            x, x_prev = x - 0.3 * g, x
        same(played(dasha_pp(N, 0.3, fresh_weight=b), clients).params, x)


@pytest.mark.thorough
def test_dasha_pp_reaches_the_optimum_with_the_step_size_of_its_theorem(clients, c):
    gamma = dasha_step_size(L, OMEGA, clients=N, cohort=2, client_smoothness=c.smoothness)
    run = played(dasha_pp(2, gamma, omega=OMEGA), clients, rounds=6000, codecs={"up": RAND})
    assert np.linalg.norm(c.full(run.params)) < 1e-3 * np.linalg.norm(c.full(np.ones(D)))
