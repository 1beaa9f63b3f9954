"""OLGA: rounds in NumPy, accelerated extragradient, and its theorem."""

import jax
import numpy as np
import pytest

from coded import MU, OMEGA, RAND, TOP, D, N, Numbers, played, same
from fedspam.methods import olga
from fedspam.problems import quadratics
from fedspam.solvers import Exact
from fedspam.theory import olga_parameters

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


CODED = {"shifted_change": TOP}


def test_olga_in_one_epoch_is_the_printed_loop(clients, c):
    """Algorithm 1: no coin shows heads."""
    theta, x = 2.0, np.ones(D)
    w, full = x, c.full(x)
    for _ in range(4):
        parts = [c.top(c.grad(m, x) - c.grad(0, x) - c.grad(m, w) + c.grad(0, w)) for m in range(N)]
        t = np.mean(parts, axis=0) - c.grad(0, w) + full
        x = np.linalg.solve(c.h[0] + np.eye(D) / theta, c.b[0] - t + x / theta)
    method = olga(theta, 1e-9, mixing=0.5, convexity=MU, solver=Exact())
    same(played(method, clients, codecs=CODED).params, x)


def test_olga_of_single_steps_is_accelerated_extragradient(clients, c):
    """Every coin shows heads; the potential of the theorem shrinks at its rate in every round."""
    step_size, p, tau, mu, alpha = olga_parameters(0.5, MU, 0.0, 1.0, clients=N)
    y = z = np.ones(D)
    potential = lambda y, z: alpha / tau * c.value(y) + (1 + mu * alpha) / 2 * np.sum((z - c.best) ** 2)
    before = potential(y, z)
    for _ in range(4):
        x = tau * z + (1 - tau) * y
        t = c.full(x) - c.grad(0, x)
        y = np.linalg.solve(c.h[0] + np.eye(D) / step_size, c.b[0] - t + x / step_size)
        z = (z + alpha * mu * y - alpha * c.full(y)) / (1 + alpha * mu)
        assert potential(y, z) <= max(1 - tau, 1 / (1 + mu * alpha)) * before
        before = potential(y, z)
    method = olga(step_size, p, tau, mu, length=alpha, solver=Exact())
    run = played(method, clients, codecs=CODED)
    same(run.params, y)


@pytest.mark.thorough
def test_olga_reaches_the_optimum_with_the_parameters_of_its_theorem(clients, c):
    """Compressed differences: an epoch shrinks the potential, in the mean over seeds, as the theorem says."""
    delta = max(np.abs(np.linalg.eigvalsh(h - c.h.mean(0))).max() for h in c.h)
    step_size, p, tau, mu, alpha = olga_parameters(delta, MU, OMEGA, 0.25, clients=N)
    method = olga(step_size, p, tau, mu, length=alpha, solver=Exact())
    run = played(method, clients, rounds=300, codecs={"shifted_change": RAND})
    assert np.linalg.norm(c.full(run.params)) < 1e-6 * np.linalg.norm(c.full(np.ones(D)))
