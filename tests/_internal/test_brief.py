"""What a console shows of an object fits on it: shapes instead of numbers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, fedavg, simulate, simulate_many, spam_pp
from fedspam.datasets import FederatedData, Standardizer
from fedspam.models import Model, mlp
from fedspam.models.adapters import Adapted
from fedspam.problems import quadratics
from fedspam.simulation.host_data import Stored

DATA = FederatedData.of([(f"client {i}", {"x": np.full((30, 4), 0.123)}) for i in range(50)])
CLIENTS = quadratics(0, clients=30, dimension=12, delta=0.5)


def loss(params, rows):
    return jnp.sum(rows["x"], axis=1) * params


def adapted():
    return Model(Adapted({"weight": jnp.full((40, 30), 0.123), "bias": jnp.zeros(30)}, loss))


THINGS = {
    "population": lambda: CLIENTS,
    "ragged": lambda: Ragged.of_sizes(DATA.examples, DATA.sizes, loss),
    "client": lambda: Ragged.of_sizes(DATA.examples, DATA.sizes, loss).client(jnp.uint32(0)),
    "on the host": lambda: Stored.of(DATA, loss),
    "data": lambda: DATA,
    "adapted model": adapted,
    "its loss": lambda: adapted().loss,
    "a method with a list": lambda: spam_pp(10, list(np.linspace(1, 2, 500)), 0.5),
    "run": lambda: simulate(fedavg(5, 3, 0.1), CLIENTS, jnp.full(12, 0.123), rounds=3, key=0),
    "sweep": lambda: simulate_many(fedavg(5, 3, 0.1), CLIENTS, jnp.full(12, 0.123), rounds=3, keys=[0, 1]),
}


@pytest.mark.parametrize("thing", THINGS)
def test_it_is_short_and_holds_no_data(thing):
    text = repr(THINGS[thing]())
    assert len(text) < 700
    assert "\n" not in text
    assert "0.123" not in text


def test_it_says_what_matters():
    run, kind = THINGS["run"](), jnp.zeros(()).dtype
    assert repr(run).startswith(f"Run(status='completed', rounds=3, params={kind}[12], ")
    assert "'bytes_up'" in repr(run)
    assert repr(THINGS["sweep"]()).startswith(f"Run(status='completed', rounds=3, params={kind}[1,2,12], ")
    assert f"weight': {kind}[40,30]" in repr(adapted())
    assert f"hessians={kind}[30,12,12]" in repr(CLIENTS)
    assert repr(mlp(4, 3, hidden=(8,))).startswith("Model(network=Perceptron(inputs=4, classes=3, hidden=(8,))")
    assert "FederatedData(clients=('client 0', 'client 1', " in repr(DATA)
    assert "step_size=Constant(value=0.5)" in repr(spam_pp(10, 0.5, 0.5))


def test_numbers_and_tracers_are_shown():
    method = spam_pp(10, 0.5, 0.5)
    other = dataclasses.replace(method, step_size=dataclasses.replace(method.step_size, value=jnp.float32(0.25)))
    assert "Constant(value=0.25)" in repr(other)
    jax.make_jaxpr(lambda method: [repr(method), method.step_size.value][1])(method)


def test_a_standardizer_is_short():
    assert len(repr(Standardizer.of(np.random.default_rng(0).normal(size=(20, 300))))) < 200
