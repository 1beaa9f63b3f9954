"""FedSPS: the printed loop, and its lower bound of the loss."""

import jax
import numpy as np
import pytest

from fedspam.methods import fedavg, fedsps
from fedspam.problems import quadratics
from rounds import COHORTS, START, Clients, reached, same

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]


@pytest.fixture(scope="module")
def population():
    return quadratics(jax.random.key(3), clients=6, dimension=4, delta=0.4, condition=4.0, curvature=0.5, noise=0.5)


def test_fedsps_is_the_printed_loop(population):
    c, x, rates = Clients(population), START, set()
    for cohort in COHORTS:
        ends = []
        for i in cohort:
            y = x
            for _ in range(3):
                g = c.grad(i, y)
                polyak = (c.value(i, y) + 3) / (4.0 * g @ g)
                rates.add(polyak < 0.4)
                y = y - min(polyak, 0.4) * g
            ends.append(y)
        x = np.mean(ends, axis=0)
    found, infos = reached(fedsps(2, 3, 0.4, scale=4.0, lower_bound=-3.0), population)
    same(found, x)
    assert rates == {True, False}
    assert int(infos[0].gradients) == 6


def test_fedsps_with_a_deep_bound_is_fedavg(population):
    same(reached(fedsps(2, 3, 0.4, lower_bound=-1e9), population)[0], reached(fedavg(2, 3, 0.4), population)[0])


def test_fedsps_stays_where_the_loss_is_below_its_bound(population):
    """A bound that is not one must not turn descent into ascent."""
    same(reached(fedsps(2, 3, 0.4, lower_bound=1e9), population)[0], START)
