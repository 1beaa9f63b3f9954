"""LoCoDL: rounds in NumPy, Scaffnew without a codec, and its theorem."""

import jax
import numpy as np
import pytest

from coded import MU, OMEGA, RAND, TOP, D, N, Numbers, played, same
from fedspam.methods import locodl, scaffnew
from fedspam.problems import Quadratics, quadratics
from fedspam.theory import locodl_rate

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


def test_locodl_is_the_printed_loop(clients, c):
    eta, p, lam, omega = 0.3, 0.4, 0.2, 0.5
    run = played(locodl(eta, p, omega=omega, shared_curvature=lam), clients, codecs={"up": TOP})
    rho = chi = 1 / (1 + omega)
    x, u = np.ones((N, D)), np.zeros((N, D))
    y, v = np.ones(D), np.zeros(D)
    for steps in run.rows["steps"]:
        for _ in range(steps):
            x = np.stack([x[i] - eta * (c.grad(i, x[i]) - lam * x[i] - u[i]) for i in range(N)])
            y = y - eta * (lam * y - v)
        parts = np.stack([c.top(x[i] - y) for i in range(N)])
        d, rate = parts.sum(0) / (2 * N), p * chi / (eta * (1 + 2 * omega))
        last = x, u + rate * (-parts)  # the client adds the rest at the beginning of its next task
        x, u = (1 - rho) * x + rho * (y + d), u + rate * (d - parts)
        y, v = y + rho * d, v + rate * d
    assert run.rows["steps"].max() > 1
    same(run.params, y)
    same(run.state.v, v)
    same(run.memory.x, last[0])
    same(u.mean(0) + v, np.zeros(D))


def test_locodl_without_a_codec_is_scaffnew_with_copies_of_the_server(clients, c):
    lam = 0.2
    both = Quadratics.of(
        np.concatenate([c.h - lam * np.eye(D), np.tile(lam * np.eye(D), (N, 1, 1))]),
        np.concatenate([c.b, np.zeros((N, D))]),
    )
    run = played(locodl(0.3, 0.4, shared_curvature=lam), clients)
    other = played(scaffnew(0.3, 0.4), both)
    assert run.rows["steps"].tolist() == other.rows["steps"].tolist()
    same(run.params, other.params)


@pytest.mark.thorough
def test_locodl_has_the_rate_of_its_theorem(clients, c):
    """The expectation of Psi / rate^steps, which stops after some communications, is at most the first Psi."""
    lam, eta, p = 0.2, 0.4, 0.5
    low, high = np.linalg.eigvalsh(c.h).min() - lam, np.linalg.eigvalsh(c.h).max() - lam
    convexity = min(low, lam)
    method = locodl(eta, p, omega=OMEGA, mean_omega=OMEGA / N, shared_curvature=lam)
    rate = locodl_rate(high, convexity, eta, p, omega=OMEGA, mean_omega=OMEGA / N)
    assert rate < 1
    ends = np.stack([c.grad(i, c.best) - lam * c.best for i in range(N)])
    weight = eta * (1 + 2 * OMEGA) / (p**2 / (1 + OMEGA / N))

    def psi(x, u, y, v):
        points = np.sum((x - c.best) ** 2) + N * np.sum((y - c.best) ** 2)
        return points / eta + weight * (np.sum((u - ends) ** 2) + N * np.sum((v - lam * c.best) ** 2))

    first, found = psi(np.ones((N, D)), np.zeros((N, D)), np.ones(D), np.zeros(D)), []
    for key in range(8):
        run = played(method, clients, rounds=150, key=key, codecs={"up": RAND})
        m, average = run.memory, run.state.average
        x = m.x + float(method.mixing) * (average - m.x)
        u = m.u + float(method.dual_rate) * (average - m.known)
        found.append(psi(x, u, run.state.y, run.state.v) / rate ** run.rows["steps"].sum())
    assert np.mean(found) <= first
    assert np.linalg.norm(c.full(run.params)) < 1e-3 * np.linalg.norm(c.full(np.ones(D)))
