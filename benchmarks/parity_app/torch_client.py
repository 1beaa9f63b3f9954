"""Clients in PyTorch."""

from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from fedspam.flower import torch_app
from parity_app.data import FEATURES, ROWS, rows
from parity_app.jax_client import method


def net() -> torch.nn.Module:
    return torch.nn.Linear(FEATURES, 1)


def loss(model: torch.nn.Module, batch: Any) -> Any:
    features, target = batch
    return 0.5 * ((model(features)[:, 0] - target) ** 2).mean()


def loader(client: int, partitions: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*map(torch.from_numpy, rows(client).values())), batch_size=ROWS)


app = torch_app(net, loss, loader, method)
