"""The server optimisers of Flower: FedAvgM, FedAdam, FedYogi, FedAdagrad. The clients' steps are NumPy.

    python3.11 -m venv env && env/bin/pip install flwr==1.41.0
    env/bin/python run_flower.py

Flower begins with V = 0 where the paper asks for at least tau^2: `v_t` is set to tau^2 before the first round. Its
FedAdam corrects the bias of Adam, which the paper does not: the factor of each round is stored, to be given to ours as
a step size.
"""

import importlib.metadata

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvgM, FedYogi
from problem import load, store

PROBLEM = load()
STEPS, STEP_SIZE, SERVER_STEP_SIZE, TAU, BETA, SQUARE_BETA = 4, 0.1, 0.05, 0.02, 0.6, 0.9


def trained(id, x):
    """A client's model after its local steps, and its number of rows."""
    features, targets = (np.array(PROBLEM["clients"][id][name]) for name in ("features", "targets"))
    for _ in range(STEPS):
        x = x - STEP_SIZE * features.T @ (features @ x - targets) / len(targets)
    return x, len(targets)


class Reply:
    """As much of Flower's message as a strategy reads; a whole one needs a running federation."""

    def __init__(self, id, x):
        y, rows = trained(id, x)
        self.content = RecordDict({
            "arrays": ArrayRecord({"x": Array(y)}), "metrics": MetricRecord({"num-examples": rows}),
        })  # fmt: skip

    def has_error(self):
        return False


def run(strategy, adaptive):
    x = np.array(PROBLEM["start"])
    iterates = []
    for k, cohort in enumerate(PROBLEM["cohorts"]):
        strategy.current_arrays = {"x": x} if adaptive else ArrayRecord({"x": Array(x)})
        if adaptive and k == 0:
            strategy.v_t = {"x": np.full_like(x, TAU**2)}
        arrays, _ = strategy.aggregate_train(k + 1, [Reply(id, x) for id in cohort])
        x = arrays["x"].numpy()
        iterates.append(x.tolist())
    return iterates


rounds = np.arange(1, len(PROBLEM["cohorts"]) + 1) + 1.0
corrected = (SERVER_STEP_SIZE * np.sqrt(1 - SQUARE_BETA**rounds) / (1 - BETA**rounds)).tolist()
adaptive = {"eta": SERVER_STEP_SIZE, "eta_l": STEP_SIZE, "tau": TAU}
both = {**adaptive, "beta_1": BETA, "beta_2": SQUARE_BETA}
settings = {"local_steps": STEPS, "step_size": STEP_SIZE, "weighted": True}
tuned = {**settings, "server_step_size": SERVER_STEP_SIZE, "adaptivity": TAU}
betas = {"momentum": BETA, "square_momentum": SQUARE_BETA}
cases = {
    "fedavgm": (FedAvgM(server_learning_rate=0.7, server_momentum=BETA), False,
                {**settings, "server_step_size": 0.7, "momentum": BETA}),
    "fedadam": (FedAdam(**both), True, {**tuned, **betas, "server_step_size": corrected}),
    "fedyogi": (FedYogi(**both), True, {**tuned, **betas}),
    "fedadagrad": (FedAdagrad(**adaptive), True, tuned),
}  # fmt: skip
store("flower", {
    "library": "flwr " + importlib.metadata.version("flwr"), "numpy": np.__version__,
    "script": "benchmarks/reference/run_flower.py",
}, {
    name: {"settings": more, "cohorts": PROBLEM["cohorts"], "iterates": run(strategy, adaptive)}
    for name, (strategy, adaptive, more) in cases.items()
})  # fmt: skip
