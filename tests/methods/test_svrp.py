"""SVRP, alone and catalyzed: three rounds by hand, an independent loop, and identities."""

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate
from fedspam.methods import Factored, catalyzed_svrp, svrp
from fedspam.methods.estimators import SVRG
from fedspam.methods.schedules import Constant, Values
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from proximal import CLIENTS, KEY, PROX, D, gradient

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(KEY, clients=CLIENTS, dimension=D, delta=0.4, condition=3.0, noise=1.0)


def test_three_rounds_of_svrp_by_hand():
    """f_0 = x^2, f_1 = x^2/2 - x, so f_0' = 2x, f_1' = x - 1, f' = (3x - 1)/2; x_0 = 1, gamma = 1/2."""
    pair = Quadratics.of([[[2.0]], [[1.0]]], [[0.0], [1.0]])
    method = svrp(0.5, probability=np.array([0.0, 0.0, 1.0]), **PROX)
    run = simulate(method, pair, jnp.ones(1), rounds=3, key=0, replay={"cohort": [0, 1, 0]})
    # round 0: w = 1, f'(w) = 1; 2y + (1 - 2) + 2 (y - 1) = 0, y = 3/4
    # round 1: w = 1; (y - 1) + (1 - 0) + 2 (y - 3/4) = 0, y = 1/2
    # round 2: w = 1/2, f'(w) = 1/4; 2y + (1/4 - 1) + 2 (y - 1/2) = 0, y = 7/16
    np.testing.assert_allclose(run.params, [7 / 16], rtol=1e-15)
    np.testing.assert_allclose(run.state.anchor, [[0.5], [0.25]], rtol=1e-15)
    # 3d down and d up for the client; d and d for both when the anchor moves
    np.testing.assert_array_equal(run.rows["floats_down"], [5, 3, 5])
    np.testing.assert_array_equal(run.rows["floats_up"], [3, 1, 3])


def test_svrp_is_the_svrg_estimate_of_the_client_that_moves(play, population):
    ids, coins = [3, 1, 4, 1, 5, 0], jnp.array([1.0, 0, 0, 1, 0, 0])
    # two trips instead of one; where the anchor moves, the estimate is exact and so is SVRP's
    two = Factored(SVRG(Values(coins)), Exact(), Constant(0.6), movers="one", cohort_size=1)
    one = play(svrp(0.6, coins, **PROX), population, cohort=ids)
    np.testing.assert_allclose(play(two, population, cohort=ids).params, one.params, rtol=1e-12)


def test_catalyzed_svrp_equals_an_independent_loop(play, population):
    gamma, theta, mu, period = 0.6, 0.5, 0.8, 2
    ids, coins = [3, 1, 4, 1, 5, 0], [0.0, 0, 0, 1, 0, 0]
    run = play(catalyzed_svrp(gamma, np.array(coins), theta, mu, period, **PROX), population, cohort=ids)
    root = np.sqrt(mu / (mu + theta))
    beta = (1 - root) / (1 + root)
    x = centre = outer = np.ones(D)
    for k, i in enumerate(ids):
        if k % period == 0 and k > 0:
            centre, outer = x + beta * (x - outer), x
        if k % period == 0 or coins[k]:
            w = x
        # SVRP on f + theta/2 |x - centre|^2: the control variates of the square cancel
        H, b = np.asarray(population.hessians[i]), np.asarray(population.linears[i])
        shift = gradient(population, w) - gradient(population, w, [i])
        x = np.linalg.solve(H + (theta + 1 / gamma) * np.eye(D), b - shift + theta * centre + x / gamma)
    np.testing.assert_allclose(run.params, x, rtol=1e-12)
