"""ProxyProx: a round by hand, an independent loop, and a proxy that is not there."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.federation import ledger
from fedspam.methods import proxy_prox, svrs
from fedspam.problems import Quadratics, quadratics
from proximal import CLIENTS, KEY, PROX, D, gradient, prox

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_a_round_of_proxy_prox_worked_by_hand(play):
    """f_0 = y^2 / 2 and f_1 = 3 y^2 / 2 - 2 y, at x = 2: gradients 2 and 4, so the proxy moves by -3 / (h + 1)."""
    clients = Quadratics.of(np.array([[[1.0]], [[3.0]]]), np.array([[0.0], [2.0]]))
    run = play(proxy_prox(None, 1.0, proxy=1, **PROX), clients, 1, x=np.array([2.0]))
    np.testing.assert_allclose(run.params, [1.25], rtol=1e-15)


def test_proxy_prox_equals_an_independent_loop(play, population):
    cohorts, x = np.array([[0, 3], [3, 1], [4, 2]]), np.ones(D)
    for cohort in cohorts:
        x = prox(population, 5, x, gradient(population, x, cohort), 0.6)
    run = play(proxy_prox(2, 0.6, proxy=5, **PROX), population, 3, cohort=cohorts)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)


def test_proxy_prox_of_everyone_is_svrs_whose_anchor_always_moves(play, population):
    robust = play(proxy_prox(None, 0.6, **PROX), population, 4)
    np.testing.assert_allclose(robust.params, play(svrs(2, 0.6, 1.0, **PROX), population, 4).params, rtol=1e-12)


def test_a_proxy_that_is_not_there_is_refused(population):
    with pytest.raises(ValueError, match=r"asks client 6, but the clients are 0 to 5; name one of these"):
        ledger.plan(proxy_prox(None, 0.6, proxy=CLIENTS), jnp.ones(D), population)
    with pytest.raises(ValueError, match=r"proxy = -1 .* give the id of the client that you trust"):
        proxy_prox(None, 0.6, proxy=-1)
