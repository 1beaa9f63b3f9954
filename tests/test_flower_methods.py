"""Every registered method over a loopback grid: the simulator's iterates, with JAX and with PyTorch clients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.methods import METHODS
from fedspam.problems import synthetic_logistic
from fedspam.solvers import Exact, GradientDescent
from kinds import KINDS

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, clients_of, to_arrays, to_params

CLIENTS, DIMENSION, ROUNDS = 8, 4, 4
REGULARIZATION = 0.1
# in `make unit`: two exchanges a round, and clients that remember. `make test` tries KINDS, and `make full` all; over
# bytes all are tried in tests/test_contract.py
QUICK = ("spam_pp", "scaffold")


def marks(name, *thorough):
    if thorough:
        return pytest.mark.slow if name.startswith("spam") else thorough
    return () if name in QUICK else pytest.mark.slow if name in KINDS else pytest.mark.thorough


assert METHODS.keys() >= {*QUICK, *KINDS}
every_method = pytest.mark.parametrize("name", [pytest.param(name, marks=marks(name)) for name in METHODS])
every_method_thoroughly = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=marks(name, pytest.mark.thorough)) for name in METHODS]
)


@functools.cache
def the_population(dtype):
    population = synthetic_logistic(3, clients=CLIENTS, dimension=DIMENSION, rows=(5, 9), regularization=REGULARIZATION)
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, population
    )


def the_method(name):
    """Its registered example; PyTorch's clients know no closed form, so all clients do gradient steps instead."""
    row, solver = METHODS[name], GradientDescent(steps=4, smoothness=4.0)
    replaced = {
        argument: solver if isinstance(value, Exact | GradientDescent) else value
        for argument, value in row.example.items()
    }
    return row.build(**replaced)


@pytest.fixture(scope="module")
def simulated(play):
    @functools.cache
    def run(name, dtype):
        return np.asarray(
            play(the_method(name), the_population(dtype), ROUNDS, x=jnp.ones(DIMENSION, dtype), key=7).params
        )

    return run


def data_of(client):
    """The rows of one client for PyTorch."""
    import torch

    population = the_population("float64")
    begin, end = (int(population.offsets[client + shift]) for shift in (0, 1))
    parts = (np.array(population.examples[name][begin:end]) for name in ("features", "label"))
    return tuple(torch.from_numpy(part) for part in parts)


def torch_loss(predict, features, label):
    import torch

    scores, squares = predict(features)
    return torch.nn.functional.softplus(-label * scores).mean() + 0.5 * REGULARIZATION * squares


@functools.cache
def torch_module():
    import torch

    class Linear(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.nn.Parameter(torch.ones(DIMENSION))

        def forward(self, features):
            return features @ self.x, (self.x**2).sum()

    return Linear()


def over_flower(oracle, method, first):
    grid = LoopbackGrid(client_app(oracle, method, first), CLIENTS)
    strategy = FedspamStrategy(method, first, seed=7, min_available_nodes=CLIENTS)
    result = strategy.start(grid, to_arrays(first), num_rounds=ROUNDS, timeout=60)
    assert not any(metrics["void"] for metrics in result.train_metrics_clientapp.values())
    return to_params(result.arrays, first)


def jax_clients(name, dtype):
    return over_flower(clients_of(the_population(dtype)), the_method(name), jnp.ones(DIMENSION, dtype))


def torch_clients(name, dtype):
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
    from fedspam.flower.client.pytorch import torch_oracle

    oracle = torch_oracle(torch_module(), torch_loss, data_of)
    return over_flower(oracle, the_method(name), {"x": jnp.ones(DIMENSION, dtype)})["x"]


@pytest.mark.slow
@every_method
def test_jax_clients_give_the_simulators_iterates(name, simulated):
    np.testing.assert_allclose(jax_clients(name, "float64"), simulated(name, "float64"), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@every_method
def test_torch_clients_give_the_simulators_iterates(name, simulated):
    np.testing.assert_allclose(torch_clients(name, "float64"), simulated(name, "float64"), rtol=1e-12, atol=1e-12)


@every_method_thoroughly
@pytest.mark.parametrize("clients", [jax_clients, torch_clients])
def test_so_they_do_in_float32(name, clients, simulated):
    params = clients(name, "float32")
    assert params.dtype == jnp.float32
    np.testing.assert_allclose(params, simulated(name, "float32"), rtol=1e-6, atol=1e-6)
