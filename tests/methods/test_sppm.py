"""SPPM: SPAM that forgets, its bound, and where it contracts."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate, simulate_many, spam
from fedspam.methods import sppm
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, D

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_sppm_is_spam_that_forgets_bit_for_bit(play, population):
    alone = play(sppm(0.7, **PROX), population)
    forgetful = play(spam(0.7, 1.0, first="update", start="zero", **PROX), population)
    assert np.asarray(alone.params).tobytes() == np.asarray(forgetful.params).tobytes()


def test_sppm_stays_below_its_bound(population):
    gamma, mu = 0.5, float(np.asarray(population.eigenvalues).min())
    least = jnp.asarray(population.minimizer)
    probe = lambda x: {"square": jnp.sum((x - least) ** 2)}
    run = simulate_many(
        sppm(gamma, **PROX), population, jnp.ones(D), rounds=30, keys=range(300), probe=probe, record=()
    )
    square = run.probes["square"][0]
    contraction, floor = (
        (1 + gamma * mu) ** -2.0,
        gamma * float(population.sigma(least)) ** 2 / (2 * mu + gamma * mu**2),
    )
    bound = contraction ** np.arange(31) * square[0, 0] + floor
    error = square.std(0) / np.sqrt(300)
    assert (square.mean(0) <= bound + 3 * error).all()
    # and it is a ball, not the optimum, that it reaches
    assert square[:, -10:].mean() > 0.05 * floor


def test_sppm_contracts_where_all_clients_agree_on_the_optimum():
    population = quadratics(KEY, clients=5, dimension=D, delta=0.5, condition=3.0, noise=0.0)
    mu = float(np.asarray(population.eigenvalues).min())
    probe = lambda x: {"distance": jnp.linalg.norm(x - jnp.asarray(population.minimizer))}
    run = simulate(sppm(2.0, **PROX), population, jnp.ones(D), rounds=15, key=0, probe=probe)
    distance = run.probes["distance"]
    assert (distance[1:] <= distance[:-1] / (1 + 2.0 * mu) * (1 + 1e-9) + 1e-15).all()
