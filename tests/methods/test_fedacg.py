"""FedACG: the printed loop, and FedProx and FedAvg without its parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.methods import fedacg, fedavg, fedprox
from fedspam.problems import quadratics
from rounds import COHORTS, START, Clients, reached, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


def test_fedacg_is_the_printed_loop(population):
    c, x, m = Clients(population), START, np.zeros(4)
    for cohort in COHORTS:
        ahead = x + 0.6 * m
        m = 0.6 * m + np.mean([c.descended(i, ahead, 3, 0.2, pull=1 / 5) - ahead for i in cohort], axis=0)
        x = x + m
    found, infos = reached(fedacg(2, 3, 0.2, momentum=0.6, step_size=5.0), population)
    same(found, x)
    assert int(infos[0].gradients) == 6


def test_fedacg_without_momentum_is_fedprox_and_without_a_prox_fedavg(population):
    same(
        reached(fedacg(2, 3, 0.2, momentum=0.0, step_size=0.7), population)[0],
        reached(fedprox(2, 0.7, local_steps=3, local_rate=0.2), population)[0],
    )
    same(
        reached(fedacg(2, 3, 0.2, momentum=0.0, step_size=jnp.inf), population)[0],
        reached(fedavg(2, 3, 0.2), population)[0],
    )
