"""Batch normalization over Flower: under every policy the iterates and the statistics of the simulator."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Ragged, auto, fedavg, simulate, spam_ppa
from fedspam.methods import auto_steps, scaffold
from fedspam.models import Normalization, from_torch, own_statistics, state_dict, with_group_norm
from fedspam.solvers import GradientDescent
from small_resnet import METHODS as RESNET, PAIRS as RESNETS, bright, model_of, resnet, right

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
from flwr.app import Context, RecordDict

from fedspam.flower import (
    FedspamStrategy,
    LoopbackGrid,
    Replies,
    client_app,
    clients_with,
    to_arrays,
    to_params,
    torch_app,
    torch_clients,
    torch_params,
)
from fedspam.flower.client.export import TracedClient
from fedspam.flower.wire.schema import Schema

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
SIZES, ROUNDS = (7, 1, 9), 2
GENERATOR = np.random.default_rng(0)
LABELS = [GENERATOR.integers(0, 3, count).astype(np.int32) for count in SIZES]
CLIENTS = [
    {"features": (GENERATOR.normal(size=(len(each), 4)) + 2 + np.eye(4)[each]).astype(np.float32), "label": each}
    for each in LABELS
]
METHODS = {
    "fedavg": lambda count: fedavg(count, 2, 0.1),
    "scaffold": lambda count: scaffold(count, 2, 0.1),
    "spam_ppa": lambda count: spam_ppa(count, 0.5, 0.3, solver=GradientDescent(steps=2, local_rate=0.1)),
    "auto": auto,
}
# server and engine sum in other orders, and PyTorch's kernels differ from XLA's, over some hundred operations of 6e-8
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def net():
    """One row of the second client has one value per channel, and so no variance."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.ReLU(), torch.nn.Linear(6, 3))


def context(client=0):
    return Context(1, 1, {"partition-id": client, "num-partitions": 3}, RecordDict(), {})


def rows(client):
    return CLIENTS[client]


def loader(client, partitions):
    features, labels = (torch.from_numpy(CLIENTS[client][name]) for name in ("features", "label"))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(features, labels.long()), batch_size=20)


def cross_entropy(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def accuracy(model, client, partitions):
    with torch.no_grad():
        scores = model(torch.from_numpy(CLIENTS[client]["features"]))
    return {"accuracy": float((scores.argmax(1).numpy() == CLIENTS[client]["label"]).mean())}


def failing(app, broken):
    """The app, of which these clients answer no message but the first."""

    def answer(message, context):
        if int(context.node_config["partition-id"]) in broken and message.metadata.message_type.startswith("train"):
            raise OSError("the disk of this client is gone")
        return app(message, context)

    return answer


def over_flower(kind, policy, name, count=3, broken=(), **options):
    model = from_torch(net(), normalization=policy, compiled=True)
    first = torch_params(net(), policy) if kind == "torch" else model.init(0)
    method = Normalization(policy).around(METHODS[name](count), first)
    if kind == "torch":
        app = torch_app(net, cross_entropy, loader, method, normalization=policy, test=accuracy, **options)
    else:
        judge = lambda oracle, params: {"accuracy": float(model.accuracy(params, oracle.rows_and_shares()[0]))}
        app = client_app(clients_with(model.loss, rows), method, first, metrics=judge)
    strategy = FedspamStrategy(
        method, first, seed=7, min_available_nodes=count, fraction_evaluate=1.0,
        replies=Replies(quorum=0.5, retries=0) if broken else Replies(),
    )  # fmt: skip
    result = strategy.start(LoopbackGrid(failing(app, broken), count), to_arrays(first), ROUNDS, 60.0)
    assert not any(metrics["void"] for metrics in result.train_metrics_clientapp.values())
    return to_params(result.arrays, first), result.evaluate_metrics_clientapp[ROUNDS]


def simulated(policy, name, clients=(0, 1, 2)):
    model = from_torch(net(), normalization=policy, compiled=True)
    population = Ragged.of([CLIENTS[client] for client in clients], model.loss)
    method = METHODS[name](len(clients))
    return model, population, simulate(method, population, model.init(0), rounds=ROUNDS, key=7, record=()).params


def assert_close(found, due):
    assert jax.tree.structure(found) == jax.tree.structure(due)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(due), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=TOLERANCE, atol=TOLERANCE)


def expected(model, population, params, policy):
    """The loss and the accuracy of the clients' predictions, each by its own statistics where they are local."""
    own = own_statistics(params, population) if policy == "local" else None
    of = lambda client: params if own is None else jax.tree.map(lambda leaf: leaf[client], own)
    each = [
        (float(jnp.mean(model.loss(of(client), part))), float(model.accuracy(of(client), part)))
        for client, part in enumerate(map(rows, range(3)))
    ]
    return np.average(each, axis=0, weights=SIZES)


PAIRS = [
    (policy, name)
    for policy in ("averaged", "recalibrated", "local", "group")
    for name in METHODS
    if policy != "averaged" or name in ("fedavg", "scaffold")
]
QUICK = {("averaged", "fedavg"), ("recalibrated", "spam_ppa"), ("local", "fedavg")}


@pytest.mark.parametrize("kind", ["jax", "torch"])
@pytest.mark.parametrize(
    ("policy", "name"),
    [pytest.param(*pair, marks=() if pair in QUICK else pytest.mark.thorough) for pair in PAIRS],
    ids=["-".join(pair) for pair in PAIRS],
)
@pytest.mark.slow
def test_every_policy_gives_the_simulators_iterates_and_statistics(kind, policy, name):
    found, metrics = over_flower(kind, policy, name)
    model, population, params = simulated(policy, name)
    assert_close(found, params)
    loss, right = expected(model, population, params, policy)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-4)
    assert metrics["accuracy"] == pytest.approx(right, abs=1e-6)


@pytest.mark.slow
def test_an_optimizer_of_pytorch_moves_the_statistics_too():
    found, _ = over_flower("torch", "averaged", "fedavg", optimizer=torch.optim.SGD)
    assert_close(found, simulated("averaged", "fedavg")[2])


@pytest.mark.parametrize("kind", ["jax", pytest.param("torch", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("policy", "name"),
    [("averaged", "fedavg"), pytest.param("recalibrated", "fedavg", marks=pytest.mark.slow)],
    ids=["averaged", "recalibrated"],
)
def test_clients_that_never_reply_have_no_part_in_statistics(kind, policy, name):
    """All rows in every step, so that the run is that of the other clients alone."""
    found, _ = over_flower(kind, policy, name, broken={2})
    assert_close(found, simulated(policy, name, clients=(0, 1))[2])


@pytest.mark.parametrize("policy", ["averaged", "group"])
def test_plain_pytorch_loads_the_model(policy):
    first = torch_params(net(), policy)
    plain = with_group_norm(net()) if policy == "group" else net()
    plain.load_state_dict(state_dict(plain, jax.tree.map(lambda leaf: leaf + 1, first)))
    for name, leaf in ({**first["params"], **first["statistics"]} if policy == "averaged" else first).items():
        np.testing.assert_array_equal(plain.state_dict()[name], leaf + 1)


def test_methods_that_would_leave_statistics_where_they_began_are_refused():
    first = torch_params(net(), "averaged")
    for method in (METHODS["spam_ppa"](3), METHODS["auto"](3)):
        with pytest.raises(ValueError, match="only local steps move them"):
            Schema.of(method, first)
    with pytest.raises(ValueError, match="sites without JAX"):
        TracedClient()(first)
    client = clients_with(from_torch(net(), normalization="recalibrated").loss, rows)(context())
    with pytest.raises(ValueError, match=r"Normalization\('recalibrated'\)"):
        METHODS["fedavg"](3).train(client, jax.random.key(0), x=first, local_rate=0.1)
    client = torch_clients(net, cross_entropy, loader, normalization="recalibrated")(context())
    with pytest.raises(ValueError, match=r"Normalization\('recalibrated'\)"):
        METHODS["fedavg"](3).train(client, jax.random.key(0), x=first, local_rate=0.1)


@pytest.mark.parametrize("policy", ["averaged", "recalibrated"])
def test_parameters_without_the_statistics_that_travel_are_refused(policy):
    with pytest.raises(
        ValueError, match=rf"these have none; give model.init\(0\), or torch_params\(module, '{policy}'\)"
    ):
        Normalization(policy).around(METHODS["fedavg"](3), torch_params(net(), "local"))


@pytest.mark.parametrize(
    ("policy", "name"),
    [
        pytest.param(*pair, marks=pytest.mark.slow if pair == ("averaged", "fedavg") else pytest.mark.thorough)
        for pair in RESNETS
    ],
    ids=["-".join(pair) for pair in RESNETS],
)
def test_a_resnet_with_dropout_and_crops_trains_over_flower_and_goes_back_to_pytorch(policy, name):
    """The simulator's draws of rows, crops and dropout, so its iterates; plain PyTorch has the clients' accuracy."""
    model, data = model_of(resnet(torch), policy), bright()
    parts = np.cumsum(data.sizes)[:-1]
    columns = {column: np.split(values, parts) for column, values in data.examples.items()}
    client = lambda id: {column: values[id] for column, values in columns.items()}
    method = Normalization(policy).around(auto_steps(3) if name == "auto" else RESNET[name], model.init(0))
    own = {}  # number of rows -> what the client predicts with

    def judge(oracle, params):
        rows, _ = oracle.rows_and_shares()
        own[int(oracle.count)] = params
        return {"accuracy": float(model.accuracy(params, rows))}

    app = client_app(clients_with(model.loss, client, batch=6), method, model.init(0), metrics=judge)
    strategy = FedspamStrategy(method, model.init(0), seed=7, min_available_nodes=3, fraction_evaluate=1.0)
    result = strategy.start(LoopbackGrid(app, 3), to_arrays(model.init(0)), 1, 300.0)
    found = to_params(result.arrays, model.init(0))
    due = simulate(RESNET[name], data.population(model.loss, batch=6), model.init(0), rounds=1, key=7, record=())
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(due.params), strict=True):
        # ten steps through four normalizations of six rows, each of which divides rounding by a deviation
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3)
    plain = with_group_norm(resnet(torch)) if policy == "group" else resnet(torch)
    shares = []
    for id, size in enumerate(data.sizes):
        plain.load_state_dict(state_dict(model, own[int(size)]))
        shares.append(right(torch, plain, client(id)))
    # one row near the border may fall to either side
    plain_accuracy = np.average(shares, weights=data.sizes)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(plain_accuracy, abs=1.01 / sum(data.sizes))


def test_statistics_over_all_batches_so_far_are_refused():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6, momentum=None))
    for build in (from_torch, torch_params):
        with pytest.raises(ValueError, match=r"momentum=None.*give it a momentum"):
            build(module, normalization="averaged")


class Unused(torch.nn.Module):
    """One normalization sees the batch alone, and one sees nothing."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.unused = net(), torch.nn.BatchNorm1d(2)
        self.batch = torch.nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, features):
        return self.batch(self.body(features))


def test_normalizations_without_statistics_of_a_batch_have_those_that_they_had():
    client = torch_clients(Unused, cross_entropy, loader, normalization="local")(context(0))
    own = client.own(torch_params(Unused(), "local"))
    model = from_torch(Unused(), normalization="local", compiled=True)
    due = own_statistics(model.init(0), Ragged.of(CLIENTS, model.loss))["statistics"]
    found = own["statistics"]
    for name, leaf in due.items():
        np.testing.assert_allclose(found[name], leaf[0], rtol=TOLERANCE, atol=TOLERANCE)
    assert set(found) - set(due) == {"unused.running_mean", "unused.running_var"}
    np.testing.assert_array_equal(found["unused.running_mean"], np.zeros(2))
    np.testing.assert_array_equal(found["unused.running_var"], np.ones(2))


class Augmented(torch.utils.data.Dataset):
    """One row, whose augmentation is drawn when it is read."""

    def __init__(self):
        self.drawn = []

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.drawn.append(float(torch.rand(())))
        return torch.full((4,), self.drawn[-1]), torch.tensor(1)


def test_a_row_that_stands_for_two_is_drawn_once():
    """Its copy is there for PyTorch, which refuses one value per channel, and has the same augmentation."""
    for policy, rows in (("averaged", 2), ("group", 1)):
        data, seen = Augmented(), []

        def loss(model, batch, seen=seen):
            seen.append(batch[0])
            return cross_entropy(model, batch)

        make = lambda client, partitions, data=data: torch.utils.data.DataLoader(data, batch_size=1)
        client = torch_clients(net, loss, make, normalization=policy)(context())
        client.predicted(torch_params(net(), policy))
        assert len(data.drawn) == 1
        assert seen[0].shape == (rows, 4)
        assert bool(torch.all(seen[0] == data.drawn[0]))
