"""The same rounds of FedAvg in several frameworks, for `cohort.py` and `peers.py`.

A side is a function (task) -> iterator: advancing it once runs one round to its end. What comes before the first round
is the side's start-up. All sides do the same work: a cohort drawn anew, LOCAL_STEPS steps of plain SGD on BATCH rows
of each client, the mean of the models. Images are bytes, as they are in files, and become floats batch by batch.
"""

import os
from dataclasses import dataclass

import numpy as np

BATCH, LOCAL_STEPS, STEP_SIZE = 20, 5, 0.05
CLASSES, PIXELS = 62, 784


@dataclass
class Task:
    """A population, a model, and the cohort size."""

    model: str  # "softmax" or "cnn"
    cohort: int
    images: np.ndarray  # [rows, 784] bytes
    labels: np.ndarray
    offsets: np.ndarray
    device: str = "cpu"
    threads: int = 1

    @property
    def clients(self):
        return len(self.offsets) - 1

    @property
    def samples(self):
        """Rows that a round trains on."""
        return self.cohort * LOCAL_STEPS * BATCH


def draw(clients, seed=0, equal=None):
    """Images, labels and offsets of clients whose sizes are log-normal and at least LOCAL_STEPS * BATCH, or equal."""
    rng = np.random.default_rng(seed)
    least = LOCAL_STEPS * BATCH
    sizes = (
        np.full(clients, equal) if equal else least + rng.lognormal(3.0, 1.0, clients).astype(int).clip(0, 4 * least)
    )
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    images = rng.integers(0, 256, (offsets[-1], PIXELS), dtype=np.uint8)
    return images, rng.integers(0, CLASSES, offsets[-1]).astype(np.int32), offsets


def ours(task, devices=1, chunk=None, every=1):
    """fedspam: `every` rounds a step of the iterator, under one jit."""
    import jax
    import jax.numpy as jnp

    from fedspam import Ragged
    from fedspam.methods import fedavg
    from fedspam.models import femnist_cnn, softmax_regression
    from fedspam.simulation import engine

    model = femnist_cnn(CLASSES) if task.model == "cnn" else softmax_regression(PIXELS, CLASSES)
    examples = {"features": task.images, "label": task.labels}
    population = Ragged.of_sizes(examples, np.diff(task.offsets), model.loss, batch=BATCH)
    mesh = engine.mesh_of(jax.devices()[:devices]) if devices > 1 else None
    method, key = fedavg(task.cohort, LOCAL_STEPS, STEP_SIZE), jax.random.key(0)
    setup = engine.everywhere(mesh, engine.Setup(method, population, model.init(0), key, chunk=chunk, mesh=mesh))
    carry, _ = engine.begin(setup)
    done = 0
    while True:
        end = engine.advance(setup, carry, jnp.int32(done), jnp.int32(every), length=every, every=every, record=())
        carry = jax.block_until_ready(end.carry)
        done += every
        yield


def fedjax_rounds(task):
    """FedJAX, with its own batches and its own loop over clients; only for the softmax regression."""
    import fedjax
    import jax
    import jax.numpy as jnp

    if task.model != "softmax":
        raise NotImplementedError("only the softmax regression is written for FedJAX")

    def loss(params, batch, rng):
        logits = batch["x"].astype(jnp.float32) / 255 @ params["weights"] + params["bias"]
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(BATCH), batch["y"]])

    steps = fedjax.ShuffleRepeatBatchHParams(batch_size=BATCH, num_steps=LOCAL_STEPS)
    plain = fedjax.optimizers.sgd
    method = fedjax.methods.fed_avg.federated_averaging(jax.grad(loss), plain(STEP_SIZE), plain(1.0), steps)
    state = method.init({"weights": jnp.zeros((PIXELS, CLASSES)), "bias": jnp.zeros(CLASSES)})
    rng, key = np.random.default_rng(0), jax.random.PRNGKey(0)
    while True:
        cohort = []
        for client in rng.choice(task.clients, task.cohort, replace=False):
            key, own = jax.random.split(key)
            begin, end = task.offsets[client : client + 2]
            rows = fedjax.ClientDataset({"x": task.images[begin:end], "y": task.labels[begin:end]})
            cohort.append((b"%d" % client, rows, own))
        state, _ = method.apply(state, cohort)
        jax.block_until_ready(state.params)
        yield


RIDGE_CLIENTS, RIDGE_DIMENSION, FRESH = 10, 100, np.float32(0.2)


def ridge_problem():
    """The paper's ridge in float32: Hessians, linear terms, the proxes' matrices, a start, and the step size."""
    from fedspam.problems import ridge

    clients, start = ridge(0, clients=RIDGE_CLIENTS, dimension=RIDGE_DIMENSION)
    gamma = 0.5 / clients.delta
    return clients.factorized(gamma), np.asarray(start, np.float32), gamma


def ridge_ours(seeds, every):
    """SPAM, one client per round: `every` rounds of so many seeds a step of the iterator, under one jit."""
    import jax.numpy as jnp

    from fedspam import Keep, simulate, simulate_many, spam
    from fedspam.solvers import Exact

    clients, start, gamma = ridge_problem()
    method, x = spam(gamma, float(FRESH), solver=Exact(), start="zero"), jnp.asarray(start)
    while True:
        if seeds == 1:
            simulate(method, clients, x, rounds=every, key=0, record=(), keep=Keep(every=every))
        else:
            simulate_many(method, clients, x, rounds=every, keys=range(seeds), record=())
        yield


def ridge_numpy(seeds, every):
    """The same in NumPy, one seed after another, with the prox (H + I/gamma)^-1 inverted beforehand."""
    clients, start, _ = ridge_problem()
    hessians, linears, inverses = (np.asarray(part) for part in (clients.hessians, clients.linears, clients.inverses))
    keep = np.float32(1) - FRESH
    while True:
        for seed in range(seeds):
            rng, previous, x, g = np.random.default_rng(seed), start, start, np.zeros_like(start)
            for _ in range(every):
                i = rng.integers(RIDGE_CLIENTS)
                g = (hessians[i] @ x - linears[i]) + keep * (g - (hessians[i] @ previous - linears[i]))
                previous, x = x, x - inverses[i] @ g
        yield


def network(task):
    import torch

    class Bytes(torch.nn.Module):
        def forward(self, inputs):
            return inputs.float() / 255

    if task.model == "softmax":
        return torch.nn.Sequential(Bytes(), torch.nn.Linear(PIXELS, CLASSES))
    return torch.nn.Sequential(
        Bytes(), torch.nn.Unflatten(1, (1, 28, 28)), torch.nn.Conv2d(1, 32, 3), torch.nn.ReLU(),
        torch.nn.Conv2d(32, 64, 3), torch.nn.MaxPool2d(2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Linear(9216, 128), torch.nn.ReLU(), torch.nn.Linear(128, CLASSES),
    )  # fmt: skip


def tensors(task):
    import torch

    if task.device != "cpu":  # both frameworks may round products to TensorFloat-32 there
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_num_threads(task.threads)
    return torch.from_numpy(task.images).to(task.device), torch.from_numpy(task.labels).long().to(task.device)


def torch_loop(task):
    """One client after another, as one would write it in PyTorch."""
    import torch

    images, labels = tensors(task)
    model = network(task).to(task.device)
    params = list(model.parameters())
    server = [leaf.detach().clone() for leaf in params]
    rng = np.random.default_rng(0)
    while True:
        total = [torch.zeros_like(leaf) for leaf in server]
        for client in rng.choice(task.clients, task.cohort, replace=False):
            with torch.no_grad():
                for leaf, value in zip(params, server, strict=True):
                    leaf.copy_(value)
            optimizer = torch.optim.SGD(params, STEP_SIZE)
            begin, end = task.offsets[client : client + 2]
            order = torch.from_numpy(begin + rng.permutation(end - begin)).to(task.device)
            for step in range(LOCAL_STEPS):
                rows = order[step * BATCH : (step + 1) * BATCH]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
                optimizer.step()
            with torch.no_grad():
                for sum, leaf in zip(total, params, strict=True):
                    sum.add_(leaf)
        server = [sum / task.cohort for sum in total]
        if task.device != "cpu":
            torch.cuda.synchronize()
        yield


def torch_vmap(task, chunk=None):
    """All clients side by side under ``torch.func.vmap``."""
    import torch

    images, labels = tensors(task)
    model = network(task).to(task.device)
    server = {name: leaf.detach().clone() for name, leaf in model.named_parameters()}

    def loss(params, x, y):
        return torch.nn.functional.cross_entropy(torch.func.functional_call(model, params, (x,)), y)

    gradients = torch.func.vmap(torch.func.grad(loss))
    rng = np.random.default_rng(0)
    chunk = chunk or task.cohort
    while True:
        total = {name: torch.zeros_like(leaf) for name, leaf in server.items()}
        ids = rng.choice(task.clients, task.cohort, replace=False)
        for start in range(0, task.cohort, chunk):
            part = ids[start : start + chunk]
            picks = [task.offsets[c] + rng.permutation(task.offsets[c + 1] - task.offsets[c])[: LOCAL_STEPS * BATCH]
                     for c in part]  # fmt: skip
            rows = torch.from_numpy(np.stack(picks)).to(task.device)
            own = {name: leaf.expand(len(part), *leaf.shape).clone() for name, leaf in server.items()}
            for step in range(LOCAL_STEPS):
                batch = rows[:, step * BATCH : (step + 1) * BATCH]
                found = gradients(own, images[batch], labels[batch])
                for name, leaf in own.items():
                    leaf.sub_(found[name], alpha=STEP_SIZE)
            for name, leaf in own.items():
                total[name] += leaf.sum(0)
        server = {name: leaf / task.cohort for name, leaf in total.items()}
        if task.device != "cpu":
            torch.cuda.synchronize()
        yield


def pfl_rounds(task, rounds, timed):
    """Apple's pfl (one process); `timed` is called after each round."""
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    images, labels = tensors(task)
    inner = network(task)

    class Module(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x)

        def loss(self, x, y, eval=False):
            return torch.nn.functional.cross_entropy(self(x), y)

        @torch.no_grad()
        def metrics(self, x, y, eval=True):
            return {"loss": Weighted.from_unweighted(float(self.loss(x, y)))}

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
            timed()
            return False, Metrics()

    def dataset(client):
        begin, end = task.offsets[client : client + 2]
        return Dataset([images[begin:end], labels[begin:end]])

    model = Module()
    wrapped = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), 1.0))
    population = FederatedDataset(dataset, get_user_sampler("random", list(range(task.clients))))
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=task.cohort,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=population, val_data=population),
        wrapped,
        NNTrainHyperParams(
            local_batch_size=BATCH, local_num_epochs=None, local_num_steps=LOCAL_STEPS, local_learning_rate=STEP_SIZE
        ),
        NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )


def blazefl_rounds(task, threads):
    """BlazeFL, its server and its trainer: one client after another, or in a pool of threads; batches made by hand."""
    import torch
    from blazefl import contrib

    images, labels = tensors(task)

    class Model:
        def select_model(self, model_name):
            return network(task)

    class Rows:
        def get_dataloader(self, type_, cid, batch_size, generator):
            begin, end = task.offsets[cid : cid + 2]
            order = begin + torch.randperm(end - begin, generator=generator)
            chosen = [order[step * batch_size : (step + 1) * batch_size] for step in range(LOCAL_STEPS)]
            return ((images[rows], labels[rows]) for rows in chosen)

    shared = {"model_selector": Model(), "model_name": task.model, "dataset": Rows(), "device": "cpu"}
    shared |= {"num_clients": task.clients, "batch_size": BATCH, "seed": 0}
    ratio = (task.cohort + 0.5) / task.clients  # rounded down
    server = contrib.FedAvgBaseServerHandler(**shared, global_round=10**9, sample_ratio=ratio)
    local = {**shared, "epochs": 1, "lr": STEP_SIZE}
    if threads == 1:
        trainer = contrib.FedAvgBaseClientTrainer(**local)
    else:
        trainer = contrib.FedAvgThreadPoolClientTrainer(**local, num_parallels=threads)
    while True:
        trainer.local_process(server.downlink_package(), server.sample_clients())
        for reply in trainer.uplink_package():
            server.load(reply)
        yield


def flower_rounds(task, folder, rounds, timed):
    """Flower's simulation with its default backend (Ray), one CPU a client; `timed` is called after each round."""
    import logging

    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    client_app, server_app = ClientApp(), ServerApp()
    model, cohort, clients = task.model, task.cohort, task.clients

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        import torch

        torch.set_num_threads(1)
        images, labels, offsets = (
            np.load(f"{folder}/{name}.npy", mmap_mode="r") for name in ("images", "labels", "offsets")
        )
        client = int(context.node_config["partition-id"])
        begin, end = offsets[client : client + 2]
        module = network(Task(model, cohort, images, labels, offsets))
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(module.parameters(), STEP_SIZE)
        order = begin + np.random.default_rng().permutation(end - begin)
        for step in range(LOCAL_STEPS):
            rows = np.sort(order[step * BATCH : (step + 1) * BATCH])
            optimizer.zero_grad()
            x, y = torch.from_numpy(images[rows]), torch.from_numpy(labels[rows]).long()
            torch.nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": 1})}
        return Message(content=RecordDict(reply), reply_to=message)

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(
            fraction_train=cohort / clients, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=clients
        )
        module = network(Task(model, cohort, None, None, np.zeros(clients + 1)))

        def after(round, arrays):
            timed()

        strategy.start(
            grid=grid, initial_arrays=ArrayRecord(module.state_dict()), num_rounds=rounds,
            train_config=ConfigRecord({}), evaluate_fn=after,
        )  # fmt: skip

    run_simulation(
        server_app, client_app, num_supernodes=clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )  # fmt: skip
