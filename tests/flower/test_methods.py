"""Registered methods over a loopback grid: the simulator's iterates, with JAX and with PyTorch clients.

In JAX's default precision, x64 off, as users run them; in float64 once more, where rounding cannot hide a difference.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.methods import METHODS
from fedspam.problems import synthetic_logistic
from fedspam.solvers import Exact, GradientDescent

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, clients_of, to_arrays, to_params
from fedspam.flower.wire.schema import Schema

CLIENTS, DIMENSION, ROUNDS = 8, 4, 4
REGULARIZATION = 0.1
# the worst seen in float32 is 4e-7: server and engine sum in other orders, over some hundred operations of 6e-8 each
TOLERANCE = {"float32": 1e-5, "float64": 1e-12}

# The contract tries each distinct round over bytes. Over Flower few stand for every way to ask clients: one, a cohort,
# two of them, everyone, or a delegate; with a memory, a coin, weights, a search, minibatch steps, or own models.
ASKED = (
    "spam", "spam_pp", "scaffold", "page", "auto", "auto_steps", "mime", "fedadam", "fednova", "dane", "rg_saga",
    "svrp", "adaptive_s_dane", "ditto", "ef21_pp",
)  # fmt: skip
OVER_TORCH = ("spam_pp", "scaffold", "page", "auto", "auto_steps", "mime", "fedadam")  # their oracle alone is another


def methods(few):
    """A test for each method, of which these run in `make test`."""
    params = [pytest.param(name, marks=() if name in few else pytest.mark.thorough) for name in METHODS]
    return pytest.mark.parametrize("name", params)


every_method = pytest.mark.parametrize("name", METHODS)


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


def data_of(dtype):
    """The rows of each client for PyTorch."""
    import torch

    population = the_population(dtype)

    def rows(client):
        begin, end = (int(population.offsets[client + shift]) for shift in (0, 1))
        parts = (np.array(population.examples[name][begin:end]) for name in ("features", "label"))
        return tuple(torch.from_numpy(part) for part in parts)

    return rows


def torch_loss(model, batch):
    import torch

    features, label = batch
    scores, squares = model(features)
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


def pytorch_clients(name, dtype):
    pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
    from torch.utils.data import DataLoader, TensorDataset

    from fedspam.flower import torch_clients

    data = data_of(dtype)
    oracle = torch_clients(torch_module, torch_loss, lambda id, _: DataLoader(TensorDataset(*data(id)), 9))
    return over_flower(oracle, the_method(name), {"x": jnp.ones(DIMENSION, dtype)})["x"]


def check(clients, name, dtype, simulated):
    with jax.enable_x64(dtype == "float64"):
        params = clients(name, dtype)
        assert params.dtype == dtype
        np.testing.assert_allclose(params, simulated(name, dtype), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every_method
def test_every_method_has_a_schema_in_both_precisions(name):
    """The server derives it before it asks for anything, for more clients than there are."""
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            assert Schema.of(the_method(name), jnp.ones(DIMENSION, dtype)).plan.round


@pytest.mark.slow
@methods(few=ASKED)
def test_jax_clients_give_the_simulators_iterates(name, simulated):
    check(jax_clients, name, "float32", simulated)


@pytest.mark.slow
@methods(few=OVER_TORCH)
def test_torch_clients_give_the_simulators_iterates(name, simulated):
    check(pytorch_clients, name, "float32", simulated)


@pytest.mark.thorough
@every_method
@pytest.mark.parametrize("clients", [jax_clients, pytorch_clients])
def test_so_they_do_in_float64(name, clients, simulated):
    check(clients, name, "float64", simulated)
