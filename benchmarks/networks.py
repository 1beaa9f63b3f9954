"""PyTorch modules in JAX: how far they are from PyTorch, and how fast a round is.

    python benchmarks/networks.py parity [MODULE ...]
    python benchmarks/networks.py speed [--out networks.json] [--rounds 5] [--cohort 10]

`parity` prints, for modules of many kinds, the largest relative difference of scores, gradients and running statistics
from PyTorch's, in both precisions. `speed` times a FedAvg round (5 local steps of 20 images of 28 x 28 on each client)
of one small CNN, the best of several, in one process: as a PyTorch module compiled, as the same module in callbacks to
the host, as a loop in PyTorch that somebody writes by hand, and as the same network written in JAX.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

STEPS, BATCH, IMAGES, CLASSES = 5, 20, 60, 10


def parity(names):
    from torch_parity import differences
    from torch_zoo import ZOO, built

    print("| module | parameters | precision | scores | gradient | statistics |\n|---|---|---|---|---|---|")
    for name in names or ZOO:
        count = sum(leaf.numel() for leaf in built(name)[0].parameters())
        for precision in ("float32", "float64"):
            with jax.enable_x64(precision == "float64"):
                cells = " | ".join(f"{value:.0e}" for value in differences(name, train=True).values())
            print(f"| {name} | {count:,} | {precision} | {cells} |", flush=True)


def network():
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(400, 32), nn.ReLU(), nn.Linear(32, CLASSES),
    )  # fmt: skip


def best_of(times):
    return 1000 * min(times)


def of_model(model, clients, flags):
    """Milliseconds of a round by `simulate`, without compilation, and the parameters after it."""
    from fedspam import Ragged, fedavg, simulate

    population, times = Ragged.of(clients, model.loss, batch=BATCH), []
    for _ in range(flags.rounds):
        run = simulate(fedavg(flags.cohort, STEPS, 0.05), population, model.init(0), rounds=2, key=0, record=())
        times.append(run.run_seconds / 2)
    return best_of(times)


def by_hand(clients, flags):
    """Milliseconds of the same round in PyTorch: one client after another, and the mean of their models."""
    import torch

    server, times, made = network(), [], np.random.default_rng(0)
    rows = [(torch.tensor(one["features"]), torch.tensor(one["label"]).long()) for one in clients[: flags.cohort]]
    for _ in range(2 * flags.rounds):
        began, trained = time.perf_counter(), []
        for images, labels in rows:
            own = copy.deepcopy(server)
            optimizer = torch.optim.SGD(own.parameters(), 0.05)
            for _ in range(STEPS):
                taken = made.choice(len(labels), BATCH, replace=False)
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(own(images[taken]), labels[taken]).backward()
                optimizer.step()
            trained.append(own.state_dict())
        server.load_state_dict({name: sum(one[name] for one in trained) / len(trained) for name in trained[0]})
        times.append(time.perf_counter() - began)
    return best_of(times)


def speed(flags):
    from fedspam.models import Model, from_torch
    from fedspam.models.networks import Convolutional

    made = np.random.default_rng(0)
    clients = [
        {
            "features": made.normal(size=(IMAGES, 1, 28, 28)).astype(np.float32),
            "label": made.integers(0, CLASSES, IMAGES).astype(np.int32),
        }
        for _ in range(2 * flags.cohort)
    ]
    last = [one | {"features": np.moveaxis(one["features"], 1, -1)} for one in clients]
    ours = Model(Convolutional((28, 28, 1), CLASSES, (8, 16), (3, 3), (2, 2), (32,)))
    found = {
        "PyTorch module, compiled": of_model(from_torch(network(), compiled=True), clients, flags),
        "PyTorch module, callbacks": of_model(from_torch(network(), compiled=False), clients, flags),
        "PyTorch loop by hand": by_hand(clients, flags),
        "the same network in JAX": of_model(ours, last, flags),
    }
    print(f"| FedAvg, cohort {flags.cohort}, {STEPS} steps of {BATCH} images | ms per round | times the first |")
    print("|---|---|---|")
    first = found["PyTorch module, compiled"]
    for name, milliseconds in found.items():
        print(f"| {name} | {milliseconds:.1f} | {milliseconds / first:.1f} |")
    if flags.out:
        Path(flags.out).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("parity", "speed"))
    parser.add_argument("modules", nargs="*")
    parser.add_argument("--out")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cohort", type=int, default=10)
    flags = parser.parse_args()
    parity(flags.modules) if flags.what == "parity" else speed(flags)


if __name__ == "__main__":
    main()
