"""A small ResNet of PyTorch with batch normalization, dropout and crops; its data, the methods and the policies."""

import dataclasses

import numpy as np

from fedspam import auto, fedavg, spam_ppa
from fedspam.datasets import FederatedData
from fedspam.methods import scaffold
from fedspam.models import Images, from_torch
from fedspam.solvers import GradientDescent

IMAGES = Images(crop=1, flip=True, mean=(0.5, 0.5, 0.5), deviation=(1.2, 1.2, 1.2))


def model_of(module, policy):
    return dataclasses.replace(from_torch(module, normalization=policy, compiled=True), images=IMAGES)


def right(torch, module, rows):
    """The share of the rows that plain PyTorch predicts."""
    with torch.no_grad():
        scores = module.eval()(torch.tensor((rows["features"] - 0.5) / 1.2))
    return float((scores.argmax(1).numpy() == rows["label"]).mean())


def resnet(torch):
    """Two residual blocks with batch normalization, and dropout before the last layer."""
    from torch_zoo import Basic

    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(), Basic(4, 8, 2),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3),
    )  # fmt: skip


def bright():
    """Images whose label is their brightest channel, unequally many per client."""
    made = np.random.default_rng(0)
    clients = []
    for number, count in enumerate((12, 8, 16)):
        label = made.integers(0, 3, count).astype(np.int32)
        images = made.normal(size=(count, 3, 8, 8)).astype(np.float32)
        images[np.arange(count), label] += 1.5
        clients.append((str(number), {"features": images, "label": label}))
    return FederatedData.of(clients)


METHODS = {
    "fedavg": fedavg(3, 10, 0.1),
    "scaffold": scaffold(3, 10, 0.1),
    "spam_ppa": spam_ppa(3, 0.5, 0.5, solver=GradientDescent(steps=5, local_rate=0.1, minibatch=True)),
    "auto": auto(3),
}
PAIRS = [
    (policy, name)
    for policy in ("averaged", "local", "recalibrated", "group")
    for name in METHODS
    if policy != "averaged" or name in ("fedavg", "scaffold")  # the others are refused: test_policies.py
]
