"""Iterates of other libraries, stored with their origin (`benchmarks/reference/`), against ours."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged
from fedspam.federation.traced import Traced
from fedspam.methods import Momentum, fedadagrad, fedadam, fedavg, fedavgm, fedprox, fedyogi, mime, mime_lite, scaffold

pytestmark = [
    pytest.mark.slow,  # many compilations
    pytest.mark.x64,  # rounds by hand and identities, to the last digits
]

KEY = jax.random.key(0)
FOLDER = Path(__file__).parents[1] / "reference"
PROBLEM = json.loads((FOLDER / "problem.json").read_text())


@pytest.fixture(scope="module")
def population():
    clients = [(np.array(c["features"]), np.array(c["targets"])) for c in PROBLEM["clients"]]
    return Ragged.of(clients, lambda x, rows: 0.5 * (rows[0] @ x - rows[1]) ** 2)


@jax.jit
def one_round(method, population, cohorts, state, memory, k):
    fed = Traced(population, round=k, memory=memory, replay={"cohort": cohorts})
    state, _ = method.round(state, KEY, fed)
    return state, fed.memory


def averaged(s, size):
    more = {"server_step_size": s["server_step_size"]} if "server_step_size" in s else {}
    return fedavg(size, s["local_steps"], s["step_size"], weighted=s.get("weighted", False), **more)


def proximal(s, size):
    more = {"server_step_size": s["server_step_size"]} if "server_step_size" in s else {}
    local = {"local_steps": s["local_steps"], "local_rate": s["step_size"]}
    return fedprox(size, 1 / s["penalty"], **local, weighted=s.get("weighted", False), **more)


def adaptive(build):
    def make(s, size):
        rest = {
            name: value for name, value in s.items() if name not in ("local_steps", "step_size", "server_step_size")
        }
        return build(size, s["local_steps"], s["step_size"], np.asarray(s["server_step_size"]), **rest)

    return make


def heavy_ball(s, size):
    server = {"server_step_size": s["server_step_size"], "momentum": s["momentum"]}
    return fedavgm(size, s["local_steps"], s["step_size"], weighted=s["weighted"], **server)


def controlled(s, size):
    return scaffold(size, s["local_steps"], s["step_size"], server_step_size=s["server_step_size"])


def with_momentum(build, share):
    def make(s, size):
        # theirs is m = g + beta m, ours (1 - beta) g + beta m
        base, scale = (Momentum(s["momentum"]), 1 / (1 - s["momentum"])) if share else (None, 1)
        server = s["server_step_size"]
        return build(size, s["local_steps"], s["step_size"] * scale, base=base, server_step_size=server)

    return make


CASES = [
    ("fedlab", "fedavg", averaged, 1e-12),
    ("fedlab", "fedprox", proximal, 1e-12),
    ("fedlab", "scaffold", controlled, 1e-12),
    ("pfl", "fedavg", averaged, 1e-6),  # in float32
    ("pfl", "fedprox", proximal, 1e-6),
    ("fedjax", "fedavg", averaged, 1e-12),
    ("fedjax", "fedprox", proximal, 1e-12),
    ("fedjax", "fedprox_everyone", proximal, 1e-12),
    ("fedjax", "mime", with_momentum(mime, False), 1e-12),
    ("fedjax", "mime_everyone", with_momentum(mime, False), 1e-12),
    ("fedjax", "mime_momentum", with_momentum(mime, True), 1e-12),
    ("fedjax", "mime_lite_momentum", with_momentum(mime_lite, True), 1e-12),
    ("fedjax", "mime_lite_momentum_everyone", with_momentum(mime_lite, True), 1e-12),
    ("flower", "fedavgm", heavy_ball, 1e-12),
    ("flower", "fedadam", adaptive(fedadam), 1e-12),
    ("flower", "fedyogi", adaptive(fedyogi), 1e-12),
    ("flower", "fedadagrad", adaptive(fedadagrad), 1e-12),
]


@pytest.mark.parametrize(
    ("library", "name", "build", "tolerance"), CASES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_iterates_are_those_of_another_library(population, library, name, build, tolerance):
    run = json.loads((FOLDER / f"{library}.json").read_text())["runs"][name]
    cohorts, iterates = np.array(run["cohorts"]), np.array(run["iterates"])
    method = build(run["settings"], cohorts.shape[1])
    memory = jax.tree.map(lambda leaf: jnp.stack([leaf] * 4), method.client_state(jnp.zeros(3)))
    state, got = method.init(jnp.array(PROBLEM["start"]), KEY, Traced(population)), []
    for k in range(len(cohorts)):
        state, memory = one_round(method, population, cohorts, state, memory, k)
        got.append(method.params(state))
    np.testing.assert_allclose(np.stack(got), iterates, rtol=tolerance, atol=tolerance)
    assert np.abs(iterates - np.array(PROBLEM["start"])).max() > 0.1  # the reference moved
