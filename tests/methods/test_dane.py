"""DANE and FedDANE: SPAM-PPA that forgets, or with everyone, and one method under three names."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import spam_pp, spam_ppa
from fedspam._internal import prng
from fedspam.methods import dane, dane_plus, feddane, saber, svrp
from fedspam.problems import quadratics
from proximal import CLIENTS, KEY, PROX, ROUNDS, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_feddane_with_one_cohort_is_spam_ppa_that_forgets(play, population):
    rng = np.random.default_rng(3)
    cohorts = np.stack([rng.permutation(CLIENTS)[:3] for _ in range(ROUNDS)])
    one = play(feddane(3, 0.6, second_cohort=False, **PROX), population, cohort=cohorts)
    other = play(spam_ppa(3, 0.6, 1.0, first="update", **PROX), population, cohort=cohorts)
    np.testing.assert_allclose(one.params, other.params, rtol=1e-13)


def test_feddane_moves_the_second_cohort(play, population):
    run = play(feddane(2, 0.6, **PROX), population, 1, cohort=[[0, 1]], second=[[4, 5]])
    g = gradient(population, np.ones(D), [0, 1])
    np.testing.assert_allclose(
        run.params, np.mean([prox(population, i, np.ones(D), g, 0.6) for i in (4, 5)], axis=0), rtol=1e-13
    )


def test_dane_is_spam_ppa_with_everyone(play, population):
    start = population.gradient(jnp.ones(D))
    everyone = play(spam_ppa(CLIENTS, 0.6, 0.3, start=start, **PROX), population)
    np.testing.assert_allclose(play(dane(0.6, **PROX), population).params, everyone.params, rtol=1e-12)


def test_an_exact_gradient_and_one_random_client_are_the_same_method_under_three_names(play, population):
    # SPAM-PP with everyone, SABER with p = 1, DANE+: once their random client is the same
    keys = [jax.random.fold_in(jax.random.key(0), k) for k in range(ROUNDS)]
    movers = [int(prng.index(prng.fold_name(key, "one"), CLIENTS)) for key in keys]
    assert len(set(movers)) > 2
    x = np.ones(D)
    for mover in movers:
        x = prox(population, mover, x, gradient(population, x), 0.6)
    start = population.gradient(jnp.ones(D))
    replay = {"cohort": np.tile(np.arange(CLIENTS), (ROUNDS, 1)), "prox": movers}
    spam_everyone = play(spam_pp(CLIENTS, 0.6, 0.3, start=start, **PROX), population, **replay)
    saber_full = play(saber(CLIENTS, 0.6, 1.0, **PROX), population, **replay)
    np.testing.assert_allclose(play(dane_plus(0.6, **PROX), population).params, x, rtol=1e-12)
    np.testing.assert_allclose(spam_everyone.params, x, rtol=1e-12)
    np.testing.assert_allclose(saber_full.params, x, rtol=1e-12)


def test_svrp_that_always_moves_its_anchor_is_dane_plus(play, population):
    movers = [3, 1, 4, 1, 5, 0]
    x = np.ones(D)
    for mover in movers:
        x = prox(population, mover, x, gradient(population, x), 0.6)
    np.testing.assert_allclose(play(svrp(0.6, 1.0, **PROX), population, cohort=movers).params, x, rtol=1e-12)
