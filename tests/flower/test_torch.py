"""PyTorch modules over Flower: what is not a parameter is never dropped in silence, and results load."""

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")
import fedspam_client
from fedspam import fedavg
from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, to_arrays
from fedspam.flower.client.pytorch import torch_oracle, torch_params

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


def rows(client):
    features = torch.tensor(np.random.default_rng(client).normal(size=(8, 4)), dtype=torch.float32)
    return features, features.sum(1)


WAYS = {
    "torch_params": torch_params,
    "torch_oracle": lambda module: torch_oracle(module, loss, rows),
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


@pytest.mark.parametrize(
    "norm",
    [torch.nn.GroupNorm(2, 6), torch.nn.BatchNorm1d(6, track_running_stats=False), Encoding(persistent=False)],
    ids=["group norm", "batch norm without statistics", "constant"],
)
def test_what_the_error_recommends_trains_and_loads(norm):
    module, method = Net(norm), fedavg(2, 2, 0.05)
    first = torch_params(module)
    app = client_app(torch_oracle(module, loss, rows), method, first)
    result = FedspamStrategy(method, first).start(LoopbackGrid(app, 2), to_arrays(first), 2, 5.0)
    state = result.arrays.to_torch_state_dict()
    trained = Net(norm)
    trained.load_state_dict(state)  # every name is there, and no other
    assert not torch.equal(trained.first.weight, module.first.weight)
