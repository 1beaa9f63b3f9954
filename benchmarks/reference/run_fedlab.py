"""FedAvg, FedProx and SCAFFOLD (option II) of FedLab.

    python3.11 -m venv env && env/bin/pip install fedlab==1.3.0
    env/bin/python run_fedlab.py

Its FedDyn is left out: the penalty is computed from detached parameters, so that its gradient is zero.
"""

import importlib.metadata

import torch
from fedlab.contrib.method.basic_client import SGDSerialClientTrainer
from fedlab.contrib.method.basic_server import SyncServerHandler
from fedlab.contrib.method.fedprox import FedProxSerialClientTrainer
from fedlab.contrib.method.scaffold import ScaffoldSerialClientTrainer, ScaffoldServerHandler
from problem import load, store

torch.set_default_dtype(torch.float64)
PROBLEM = load()
CLIENTS = len(PROBLEM["clients"])
STEPS, STEP_SIZE, SERVER_STEP_SIZE, PENALTY = 4, 0.1, 0.8, 0.7


class Data:
    """One batch a client: all of its rows."""

    def get_dataloader(self, id, batch_size=None):
        client = PROBLEM["clients"][id]
        return [(torch.tensor(client["features"]), torch.tensor(client["targets"])[:, None])]


def model():
    linear = torch.nn.Linear(3, 1, bias=False)
    linear.weight.data[:] = torch.tensor(PROBLEM["start"])
    return linear


def run(server_class, trainer_class, cohorts, server_options=(), trainer_options=()):
    server = server_class(model(), len(cohorts), len(cohorts[0]) / CLIENTS)
    server.num_clients = CLIENTS
    if server_options:
        server.setup_optim(*server_options)
    trainer = trainer_class(model(), CLIENTS)
    trainer.setup_dataset(Data())
    trainer.setup_optim(STEPS, None, STEP_SIZE, *trainer_options)
    trainer.criterion = lambda output, target: 0.5 * torch.mean((output - target) ** 2)
    iterates = []
    for cohort in cohorts:
        trainer.local_process(server.downlink_package, cohort)
        for package in trainer.uplink_package:
            server.load(package)
        iterates.append(server.model_parameters.tolist())
    return iterates


cohorts = PROBLEM["cohorts"]
settings = {"local_steps": STEPS, "step_size": STEP_SIZE, "weighted": False}
runs = {
    "fedavg": (SyncServerHandler, SGDSerialClientTrainer, cohorts, (), (), {}),
    "fedprox": (SyncServerHandler, FedProxSerialClientTrainer, cohorts, (), (PENALTY,), {"penalty": PENALTY}),
    "scaffold": (ScaffoldServerHandler, ScaffoldSerialClientTrainer, cohorts, (SERVER_STEP_SIZE,), (),
                 {"server_step_size": SERVER_STEP_SIZE}),
}  # fmt: skip
store("fedlab", {
    "library": "fedlab " + importlib.metadata.version("fedlab"), "torch": torch.__version__,
    "script": "benchmarks/reference/run_fedlab.py",
}, {
    name: {"settings": {**settings, **more}, "cohorts": asked, "iterates": run(server, trainer, asked, first, second)}
    for name, (server, trainer, asked, first, second, more) in runs.items()
})  # fmt: skip
