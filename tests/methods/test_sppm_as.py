"""SPPM-AS: the printed loop, and SPPM with one client."""

import jax
import numpy as np
import pytest

from fedspam.methods import sppm, sppm_as
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact
from rounds import CLIENTS, COHORTS, ETA, START, Clients, play, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=CLIENTS, dimension=4, delta=0.4, condition=4.0, curvature=0.5)


def test_sppm_as_is_the_printed_loop(population):
    c, x = Clients(population), START
    for cohort in COHORTS:
        y = x
        for _ in range(3):
            slope = np.mean([c.grad(i, y) for i in cohort], axis=0) + (y - x) / 0.7
            y = y - ETA * slope
        x = y
    state, infos = play(sppm_as(2, 0.7, ETA, exchanges=3), population)
    same(state.x, x)
    same(infos[-1].stationarity, np.linalg.norm(slope))
    assert int(infos[-1].gradients) == 3 * 2


def test_sppm_as_of_one_client_is_sppm_once_it_has_converged():
    """On f = |x - a|^2 / 2 a step of 1 / (1 + 1 / gamma) is the prox."""
    clients = Quadratics.of(np.tile(np.eye(4), (5, 1, 1)), np.arange(20.0).reshape(5, 4))
    cohorts = np.array([[0], [3], [4]])
    state, infos = play(sppm_as(1, 0.7, 1 / (1 + 1 / 0.7), exchanges=2), clients, cohorts=cohorts)
    same(state.x, play(sppm(0.7, solver=Exact()), clients, cohorts=cohorts)[0].x)
    np.testing.assert_allclose([info.stationarity for info in infos], 0, atol=1e-12)
