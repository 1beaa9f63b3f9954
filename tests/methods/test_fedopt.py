"""Optimizers of Optax on the server: the optimizer itself, by name, and FedAvg."""

import jax
import jax.numpy as jnp
import optax
import pytest

from fedspam.methods import fedavg, fedavgm, fedopt
from fedspam.methods.fedopt import WITHOUT_RATE, without_rate
from fedspam.problems import quadratics
from rounds import CLIENTS, ETA, play, played, same

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


def test_fedopt_with_sgd_is_fedavg_and_with_momentum_fedavgm(population, averaged):
    same(play(fedopt(2, 3, ETA, optax.sgd(1.0)), population)[0].x, averaged)
    heavy, _ = play(fedopt(2, 3, ETA, optax.sgd(0.3, momentum=0.9)), population)
    same(heavy.x, play(fedavgm(2, 3, ETA, server_step_size=0.3), population)[0].x)


def test_fedopt_by_name_is_the_optimizer_of_optax(population):
    named = play(fedopt(2, 3, ETA, "adam", server_step_size=0.1), population)[0]
    same(named.x, play(fedopt(2, 3, ETA, optax.adam(0.1)), population)[0].x)


@pytest.mark.parametrize("name", WITHOUT_RATE)
def test_a_name_is_the_part_of_the_optimizer_without_its_rate(name):
    """Two steps in a row, on a gradient with both signs; Lion's weight decay is not part of its direction."""
    whole = getattr(optax, name)(0.1, **({"weight_decay": 0.0} if name == "lion" else {}))
    part, x, gradient = without_rate(name), jnp.ones(3), jnp.array([0.5, -2.0, 1.0])
    states = whole.init(x), part.init(x)
    for _ in range(2):
        (update, first), (direction, second) = whole.update(gradient, states[0], x), part.update(gradient, states[1], x)
        same(update, -0.1 * direction)
        states = first, second
