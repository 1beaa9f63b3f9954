"""Ditto: FedAvg and personal steps."""

import jax
import numpy as np
import pytest

from fedspam.methods import ditto, fedavg
from fedspam.problems import quadratics
from rounds import CLIENTS, COHORTS, ETA, START, Clients, played, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=CLIENTS, dimension=4, delta=0.4, condition=4.0, curvature=0.5)


@pytest.fixture(scope="module")
def averaged(population):
    """FedAvg with three steps, to which several methods reduce."""
    return played(fedavg(2, 3, ETA), population).params


@pytest.mark.parametrize("pull", [0.0, 0.4])
def test_ditto_is_fedavg_and_personal_steps(population, averaged, pull):
    c, x, personal = Clients(population), START, np.tile(START, (CLIENTS, 1))
    for cohort in COHORTS:
        for i in cohort:
            for _ in range(2):
                v = personal[i]
                personal[i] = v - 0.1 * (c.grad(i, v) + pull * (v - x))
        x = np.mean([c.descended(i, x, 3, ETA) for i in cohort], axis=0)
    run = played(ditto(2, 3, ETA, pull=pull, personal_steps=2, personal_rate=0.1), population)
    np.testing.assert_array_equal(run.params, averaged)
    same(run.memory, personal)
    assert run.rows["gradients"].tolist() == [2 * (3 + 2)] * 3
