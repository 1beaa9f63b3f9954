"""Delta-SGD: the printed loop, and FedAvg where its rate may not grow."""

import jax
import numpy as np
import pytest

from fedspam.methods import delta_sgd, fedavg
from fedspam.problems import quadratics
from rounds import COHORTS, START, Clients, reached, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


def test_delta_sgd_is_the_printed_loop(population):
    c, x, rates = Clients(population), START, set()
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            eta, theta, previous, y = 0.5, 1.0, x, x - 0.5 * c.grad(i, x)
            for _ in range(3):
                change = np.linalg.norm(c.grad(i, y) - c.grad(i, previous))
                measured = 1.5 * np.linalg.norm(y - previous) / (2 * change)
                new = min(measured, np.sqrt(1 + 0.2 * theta) * eta)
                rates.add(new == measured)
                previous, y, eta, theta = y, y - new * c.grad(i, y), new, new / eta
            ends.append(y)
        x = np.mean(ends, axis=0)
    found, infos = reached(delta_sgd(2, 4, 0.5, amplification=1.5, growth=0.2), population)
    same(found, x)
    assert rates == {True, False}  # the curvature and the growth each decided some steps
    assert int(infos[0].gradients) == 2 * 7


def test_delta_sgd_that_may_not_grow_is_fedavg(population):
    """With a rate far below the inverse curvature, the growth alone decides."""
    same(reached(delta_sgd(2, 4, 1e-3, growth=0.0), population)[0], reached(fedavg(2, 4, 1e-3), population)[0])
