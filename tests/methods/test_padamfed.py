"""PAdaMFed: the printed loop, with and without variance reduction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate
from fedspam.methods import padamfed
from fedspam.problems import quadratics
from rounds import COHORTS, START, Clients, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


@pytest.mark.parametrize("reduced", [False, True])
def test_padamfed_is_the_printed_loop(population, reduced):
    c, x, steps, rounds = Clients(population), START, 3, 40
    method = padamfed(2, steps, rounds, variance_reduction=reduced)
    beta = min(1, (6 ** (1 / 3) / 40 ** (2 / 3)) if reduced else (6 / 40) ** 0.5)
    gamma, eta = beta if reduced else 6**0.25 / 40**0.75, 1 / (steps * rounds)
    controls, momentum, x_prev = np.zeros((6, 4)), np.zeros(4), x
    for cohort in COHORTS:
        mean, old, directions, moves = controls.mean(0), controls.copy(), [], []
        for i in cohort:
            y, seen = x, []
            for _ in range(steps):
                seen.append(c.grad(i, y))
                d = beta * (seen[-1] - old[i] + mean) + (1 - beta) * momentum
                if reduced:
                    d = seen[-1] - beta * (old[i] - mean) + (1 - beta) * (momentum - c.grad(i, x_prev))
                directions.append(d)
                y = y - eta * d / np.linalg.norm(d)
            controls[i] = np.mean(seen, axis=0)
            moves.append(x - y)
        momentum = np.mean(directions, axis=0)
        x, x_prev = x - gamma / (eta * steps) * np.mean(moves, axis=0), x
    run = simulate(method, population, jnp.asarray(START), rounds=3, key=0, replay={"cohort": COHORTS})
    same(run.params, x)
    same(run.state.g, momentum)
    same(run.memory, controls)
    same(run.state.control, controls.mean(0))
    assert run.rows["gradients"].tolist() == [2 * steps * (1 + reduced)] * 3
