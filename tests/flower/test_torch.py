"""PyTorch modules over Flower: every method, the user's own optimizer and augmentation, and results that load."""

import ast
import functools
import logging
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
from flwr.app import Context, RecordDict

import fedspam_client
from fedspam import auto, fedavg, simulate, spam_pp
from fedspam.clients import Hosted
from fedspam.flower import FedspamStrategy, LoopbackGrid, to_arrays, torch_app, torch_clients, torch_params
from fedspam.flower.client.pytorch import TorchAnswer
from fedspam.methods import feddyn, fedprox, scaffold
from fedspam.methods._local import Epochs
from fedspam.solvers import GradientDescent
from processes import ROOT
from quickstarts import pytorch_app

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")


class Net(torch.nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.first, self.norm, self.last = torch.nn.Linear(4, 6), norm, torch.nn.Linear(6, 1)

    def forward(self, features):
        return self.last(torch.relu(self.norm(self.first(features))))


class Encoding(torch.nn.Module):
    def __init__(self, persistent):
        super().__init__()
        self.register_buffer("table", torch.arange(6.0), persistent=persistent)

    def forward(self, features):
        return features + self.table


def loss(predict, features, target):
    return ((predict(features)[:, 0] - target) ** 2).mean()


CLIENTS = 4


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def rows(client):
    features = torch.tensor(np.random.default_rng(client).normal(size=(8, 4)), dtype=torch.float32)
    return features, features.sum(1)


def loader(client, partitions, batch=8):
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*rows(client)), batch_size=batch, shuffle=True)


def in_batches_of(batch):
    return functools.partial(loader, batch=batch)


def loss_of(model, batch):
    return loss(model, *batch)


def context(client=0):
    return Context(1, 1, {"partition-id": client, "num-partitions": CLIENTS}, RecordDict(), {})


WAYS = {
    "torch_params": torch_params,
    "torch_clients": lambda module: torch_clients(lambda: module, loss_of, loader),
    "light": lambda module: fedspam_client.torch_client(module, loss, rows),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        (torch.nn.BatchNorm1d(6), r"norm \(BatchNorm1d\) keeps running_mean, running_var, .*; use GroupNorm, or track"),
        (torch.nn.InstanceNorm1d(6, track_running_stats=True), r"norm \(InstanceNorm1d\) keeps running_mean"),
        (Encoding(persistent=True), r"norm \(Encoding\) keeps table, .*; if it is a constant, .* persistent=False"),
    ],
    ids=["batch norm", "instance norm", "constant"],
)
def test_a_module_that_keeps_more_than_parameters_is_refused_by_name(way, norm, reason):
    with pytest.raises(ValueError, match=reason):
        WAYS[way](Net(norm))


@pytest.mark.slow
@pytest.mark.parametrize(
    "norm",
    [torch.nn.GroupNorm(2, 6), torch.nn.BatchNorm1d(6, track_running_stats=False), Encoding(persistent=False)],
    ids=["group norm", "batch norm without statistics", "constant"],
)
def test_what_the_error_recommends_trains_and_loads(norm):
    module, method = Net(norm), fedavg(2, 2, 0.05)
    first = torch_params(module)
    app = torch_app(lambda: Net(norm), loss_of, loader, method)
    result = FedspamStrategy(method, first).start(LoopbackGrid(app, 2), to_arrays(first), 2, 5.0)
    state = result.arrays.to_torch_state_dict()
    trained = Net(norm)
    trained.load_state_dict(state)  # every name is there, and no other
    assert not torch.equal(trained.first.weight, module.first.weight)


@functools.cache
def net():
    torch.manual_seed(0)
    return Net(torch.nn.GroupNorm(2, 6))


def over_flower(method, batch=8, rounds=3, **options):
    app = torch_app(net, loss_of, in_batches_of(batch), method, **options)
    strategy = FedspamStrategy(method, seed=7, min_available_nodes=CLIENTS)
    return strategy.start(LoopbackGrid(app, CLIENTS), to_arrays(first()), rounds, 5.0)


@functools.cache
def first():
    return {name: np.array(array) for name, array in torch_params(net()).items()}


def simulated(method, batch=8, rounds=3):
    answer = TorchAnswer(net, loss_of, in_batches_of(batch), CLIENTS)
    return simulate(method, Hosted(answer, CLIENTS, jnp.full(CLIENTS, 8.0)), first(), rounds=rounds, key=7).params


def assert_equal(result, params):
    for name, array in params.items():
        np.testing.assert_allclose(result.arrays[name].numpy(), array, rtol=1e-4, atol=1e-5)


STEPS = GradientDescent(3, local_rate=0.05, minibatch=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        spam_pp(2, step_size=0.2, fresh_weight=0.3, solver=STEPS), scaffold(2, 3, 0.05), auto(2),
        fedavg(2, 3, 0.05), fedprox(2, 0.5, local_steps=3, local_rate=0.05),
    ],
    ids=["spam_pp", "scaffold", "auto", "fedavg", "fedprox"],
)  # fmt: skip
def test_minibatches_of_a_loader_give_the_simulators_iterates(method):
    result = over_flower(method, batch=3)
    assert not any(row["void"] for row in result.train_metrics_clientapp.values())
    assert_equal(result, simulated(method, batch=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    "build",
    [
        lambda **more: fedavg(2, 3, 0.05, **more),
        lambda **more: scaffold(2, 3, 0.05, **more),
        lambda **more: fedprox(2, 0.5, local_steps=3, local_rate=0.05, **more),
    ],
    ids=["fedavg", "scaffold", "fedprox"],
)
def test_an_optimizer_of_pytorch_makes_the_steps_that_one_of_optax_makes(build):
    """With the corrections of the method: SCAFFOLD's after each step, the prox in each gradient."""
    momentum = lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9)
    result = over_flower(build(), optimizer=momentum)
    assert_equal(result, simulated(build(optimizer=optax.trace(0.9))))
    plain = over_flower(build())
    assert not np.allclose(plain.arrays["last.weight"].numpy(), result.arrays["last.weight"].numpy(), rtol=1e-3)


def test_two_optimizers_are_refused_in_the_log_of_the_client(caplog):
    with pytest.raises(RuntimeError, match="the client raised ValueError; its own log says more"):
        over_flower(fedavg(2, 2, 0.05, optimizer=optax.trace(0.9)), optimizer=torch.optim.SGD)
    assert "both the method and the client have an optimizer; leave one of them out" in caplog.text


@pytest.mark.parametrize("optimizer", [None, torch.optim.SGD])
def test_a_pass_goes_over_every_row_once(optimizer):
    """With a rate near 0 the moves add up to the gradient of the whole loss, whatever the order of the rows."""
    rate = 1e-3
    result = over_flower(fedavg(CLIENTS, Epochs(1), rate), batch=4, rounds=1, optimizer=optimizer)
    answer = TorchAnswer(net, loss_of, loader, CLIENTS)
    slopes = [answer(client, first(), None)[1]["last.bias"] for client in range(CLIENTS)]
    moved = result.arrays["last.bias"].numpy() - first()["last.bias"]
    np.testing.assert_allclose(moved, -2 * rate * np.mean(slopes, 0), rtol=0.05)


class Noisy(torch.utils.data.Dataset):
    """Rows with an augmentation that draws from every global generator."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        import random

        features, target = rows(0)
        noise = torch.randn(4) + random.gauss(0, 1) + np.random.normal()  # noqa: NPY002 as data sets do
        return features[index] + noise, target[index]


def test_the_same_key_draws_the_same_rows_with_the_same_augmentation_and_dropout():
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Dropout(0.5), torch.nn.Linear(6, 1))
    noisy = lambda client, partitions: torch.utils.data.DataLoader(Noisy(), batch_size=3, shuffle=True)
    oracle = torch_clients(lambda: module, loss_of, noisy)(context())
    before = torch.random.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    params = torch_params(module)
    values = [float(oracle(params, jax.random.key(key))) for key in (0, 0, 1)]
    assert values[0] == values[1] != values[2]
    assert float(oracle(params)) == float(oracle(params))  # so has the whole loss
    assert torch.equal(before[0], torch.random.get_rng_state())  # and nobody else's draws change
    assert np.array_equal(before[1], np.random.get_state()[1])  # noqa: NPY002


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (lambda: torch.utils.data.DataLoader(rows(0)[0], batch_size=None), "must have a batch_size"),
        (lambda: torch.utils.data.DataLoader([]), "has no rows"),
    ],
)
def test_a_loader_from_which_no_rows_can_be_drawn_is_refused(bad, reason):
    with pytest.raises(ValueError, match=reason):
        torch_clients(net, loss_of, lambda client, partitions: bad())(context())


@pytest.mark.slow
def test_the_quickstart_of_flower_trains_with_methods_that_need_more_than_its_train():
    """Its own model, data and test function; what its users write is the next five lines."""

    def cross_entropy(model, batch):
        return torch.nn.functional.cross_entropy(model(batch["img"]), batch["label"])

    data = lambda client, count: pytorch_app.load_data(client, count, batch_size=16)[0]
    test = lambda model, client, count: {
        "accuracy": pytorch_app.test_fn(model, pytorch_app.load_data(client, count, 16)[1], "cpu")[1]
    }
    for method in (spam_pp(2, step_size=0.5, fresh_weight=0.5, solver=STEPS), scaffold(2, 3, 0.05), feddyn):
        if method is feddyn:
            method = feddyn(2, 0.5, local_steps=3, local_rate=0.05)
        app = torch_app(pytorch_app.Net, cross_entropy, data, method, test=test)
        strategy = FedspamStrategy(method, fraction_evaluate=1.0)
        result = strategy.start(LoopbackGrid(app, 2), pytorch_app.first(), 2, 5.0)
        pytorch_app.Net().load_state_dict(result.arrays.to_torch_state_dict())
        losses = [result.evaluate_metrics_clientapp[round]["loss"] for round in (1, 2)]
        assert losses[1] < losses[0] < np.log(10) + 0.1
        assert 0 <= result.evaluate_metrics_clientapp[2]["accuracy"] <= 1


def test_the_page_counts_the_lines_of_both_ways():
    """Without blank lines and comments: of the template's loops and functions, and of the page's whole client."""
    page, template = (ROOT / "docs" / "migrate.md").read_text(), Path(pytorch_app.__file__).read_text()
    parts = [
        ast.get_source_segment(template, part)
        for part in ast.parse(template).body
        if isinstance(part, ast.FunctionDef) and part.name in ("train_fn", "test_fn", "train", "evaluate")
    ]
    code = lambda text: [
        line for line in text.splitlines() if line.strip() and not line.strip().startswith(("#", '"""'))
    ]
    theirs = len(code("\n".join(parts))) + 3  # two decorators and the app
    ours = len(code(re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]))
    assert f"the same, {theirs} in Flower's PyTorch template | {ours} |" in page
    assert ours < 15
