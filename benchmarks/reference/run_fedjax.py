"""FedAvg, FedProx, Mime and MimeLite of FedJAX.

python3.9 -m venv env
env/bin/pip install fedjax==0.0.17 jax==0.4.13 jaxlib==0.4.13 "numpy<1.25" "scipy<1.13" dm-haiku==0.0.10
env/bin/python run_fedjax.py
"""

import importlib.metadata

import fedjax
import jax
import jax.numpy as jnp
import numpy as np
from fedjax.methods import fed_avg, fed_prox, mime, mime_lite
from problem import load, store

jax.config.update("jax_enable_x64", True)
PROBLEM = load()
STEPS, STEP_SIZE, SERVER_STEP_SIZE, MOMENTUM, PENALTY = 4, 0.1, 0.8, 0.5, 0.7


def dataset(client, copies=1):
    features, targets = np.array(client["features"]), np.array(client["targets"])
    return fedjax.ClientDataset({"x": np.tile(features, (copies, 1)), "y": np.tile(targets, copies)})


RAGGED = [dataset(client) for client in PROBLEM["clients"]]
# the same losses with 30 rows each, where FedJAX's weights are even
EVEN = [dataset(client, 30 // len(client["targets"])) for client in PROBLEM["clients"]]
# 30 is a multiple of every client's size: a batch holds each of its rows equally often, in whatever order
TRAIN = fedjax.ShuffleRepeatBatchHParams(batch_size=30, num_epochs=None, num_steps=STEPS)
GRADIENT = fedjax.PaddedBatchHParams(batch_size=30)


def per_example_loss(params, batch, rng):
    return 0.5 * (batch["x"] @ params - batch["y"]) ** 2


def gradient(params, batch, rng):
    return jax.grad(lambda p: jnp.mean(per_example_loss(p, batch, rng)))(params)


def run(method, cohorts, data):
    state = method.init(jnp.array(PROBLEM["start"]))
    iterates = []
    for k, cohort in enumerate(cohorts):
        clients = [(str(i).encode(), data[i], jax.random.PRNGKey(100 * k + i)) for i in cohort]
        state, _ = method.apply(state, clients)
        iterates.append(np.asarray(state.params).tolist())
    return iterates


sgd = fedjax.optimizers.sgd
local, server = sgd(STEP_SIZE), sgd(SERVER_STEP_SIZE)
momentum = sgd(STEP_SIZE, momentum=MOMENTUM)
everyone = [list(range(len(RAGGED)))] * len(PROBLEM["cohorts"])
hparams = {"client_batch_hparams": TRAIN, "grads_batch_hparams": GRADIENT, "server_learning_rate": SERVER_STEP_SIZE}
cases = {
    "fedavg": fed_avg.federated_averaging(gradient, local, server, TRAIN),
    "fedprox": fed_prox.fed_prox(per_example_loss, local, server, TRAIN, proximal_weight=PENALTY),
    "mime": mime.mime(per_example_loss, local, **hparams),
    "mime_momentum": mime.mime(per_example_loss, momentum, **hparams),
    "mime_lite_momentum": mime_lite.mime_lite(per_example_loss, momentum, **hparams),
}
settings = {
    "local_steps": STEPS, "step_size": STEP_SIZE, "server_step_size": SERVER_STEP_SIZE, "momentum": MOMENTUM,
    "penalty": PENALTY,
}  # fmt: skip
runs = {}
for name, case in cases.items():
    weighted = name.startswith("fed")
    for kind, cohorts in (("", PROBLEM["cohorts"]), ("_everyone", everyone)):
        runs[name + kind] = {
            "settings": {**settings, "weighted": weighted}, "cohorts": cohorts,
            "iterates": run(case, cohorts, RAGGED if weighted else EVEN),
        }  # fmt: skip
store("fedjax", {
    "library": "fedjax " + importlib.metadata.version("fedjax"), "jax": jax.__version__,
    "script": "benchmarks/reference/run_fedjax.py",
    "note": "weighted by examples, whose numbers are even for Mime; momentum is m = g + beta m",
}, runs)  # fmt: skip
