"""FedAvg and FedProx of pfl-research; and its SCAFFOLD, to see whether it is the paper's.

    python3.11 -m venv env && env/bin/pip install pfl==0.6.0 torch==2.15.0
    env/bin/python run_pfl.py

pfl computes in float32 from the clients' moves on. With all clients its SCAFFOLD (option I, states in memory) does not
reach the optimum: `scaffold_drift` is where it ends. It takes the controls from y - x where the paper has x - y, and
all clients share the tensor that holds them; a NumPy loop with these two changes ends at the same point. No test
uses it.
"""

import importlib.metadata

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.fedprox import FedProx, FedProxParams
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from problem import load, store

PROBLEM = load()
STEPS, STEP_SIZE, SERVER_STEP_SIZE, PENALTY = 4, 0.1, 0.8, 0.7
COHORTS = PROBLEM["cohorts"]


class Linear(torch.nn.Module):
    """x, and the loss of a client's rows."""

    def __init__(self):
        super().__init__()
        self.x = torch.nn.Parameter(torch.tensor(PROBLEM["start"]))

    def loss(self, features, targets):
        return 0.5 * torch.mean((features @ self.x - targets) ** 2)

    def metrics(self, features, targets):
        return {}


class Watch(TrainingProcessCallback):
    """Keeps x after every round."""

    def __init__(self):
        self.iterates = []

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.iterates.append(model.pytorch_model.x.detach().double().tolist())
        return False, Metrics()


def dataset(user):
    client = PROBLEM["clients"][int(user)]
    raw = [torch.tensor(client["features"]), torch.tensor(client["targets"])]
    return Dataset(raw_data=raw, user_id=str(user))


def run(method, params, cohorts):
    asked = iter([user for cohort in cohorts for user in cohort])
    data = FederatedDataset(dataset, lambda: next(asked))
    module = Linear()
    model = PyTorchModel(
        model=module, local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD([module.x], SERVER_STEP_SIZE),
    )  # fmt: skip
    watch = Watch()
    train = NNTrainHyperParams(
        local_num_epochs=STEPS, local_learning_rate=STEP_SIZE, local_batch_size=None, local_num_steps=None
    )
    method.run(params, SimulatedBackend(data, None), model, train, callbacks=[watch], send_metrics_to_platform=False)
    return watch.iterates


everyone = [[0, 1, 2, 3]] * 60
common = {"central_num_iterations": len(COHORTS), "evaluation_frequency": 10**6, "train_cohort_size": 2,
          "val_cohort_size": None}  # fmt: skip
scaffold = SCAFFOLDParams(
    **{**common, "central_num_iterations": 60, "train_cohort_size": 4}, population=4,
    use_gradient_as_control_variate=True, user_state_storage=InMemoryUserStateStorage(),
)  # fmt: skip
settings = {"local_steps": STEPS, "step_size": STEP_SIZE, "server_step_size": SERVER_STEP_SIZE, "penalty": PENALTY}
runs = {
    "fedavg": run(FederatedAveraging(), NNAlgorithmParams(**common), COHORTS),
    "fedprox": run(FedProx(), FedProxParams(**common, mu=PENALTY), COHORTS),
}
drifted = run(SCAFFOLD(), scaffold, everyone)[-1]
store("pfl", {
    "library": "pfl " + importlib.metadata.version("pfl"), "torch": torch.__version__,
    "script": "benchmarks/reference/run_pfl.py", "scaffold_drift": drifted,
}, {
    name: {"settings": settings, "cohorts": COHORTS, "iterates": iterates} for name, iterates in runs.items()
})  # fmt: skip
