"""NVFlare's cifar10-sim: eight clients, four ways to split CIFAR-10, and FedProx, FedOpt and SCAFFOLD on the hardest.

A cell takes many minutes on a GPU and days on a CPU. The table can be continued, also in parts on several machines,
whose curves (CSV files) are then put into one folder.

    python reproductions/nvflare_cifar10.py --out runs/nvflare --resume
    python reproductions/nvflare_cifar10.py --only "FedAvg,alpha 0.1" --minutes 9 --out runs/a --resume
    python reproductions/nvflare_cifar10.py --merge --out runs/nvflare
    python reproductions/nvflare_cifar10.py --scale small
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from jaxtyping import Float, Integer

from curves import Cell, Curves, as_torch, file_name
from fedspam._internal import checks, prng
from fedspam.datasets import FederatedData, read_cifar10
from fedspam.federation import fitted
from fedspam.methods import Epochs, Method, auto, fedavg, fedavgm, fedprox, scaffold
from fedspam.models import Images, Model, nvflare_cnn
from fedspam.simulation import Evaluation
from harness import main
from published import PublishedRow, PublishedTable
from side_by_side import Cells, compile_all, run_cells

TABLE, CLIENTS, CLASSES, BATCH = "nvflare-cifar10", 8, 10, 64
RATE, LAST, MOMENTUM, CENTRAL_RATE, MU = 0.05, 0.01, 0.9, 0.01, 1e-5
ALPHAS = {"alpha 1.0": 1.0, "alpha 0.5": 0.5, "alpha 0.3": 0.3, "alpha 0.1": 0.1}
COLUMNS = tuple(ALPHAS)
NONE = math.nan
PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "central": (0.8876, NONE, NONE, NONE),
    "FedAvg": (0.8911, 0.8787, 0.8527, 0.8045),
    "FedProx": (NONE, NONE, NONE, 0.8059),
    "FedOpt": (NONE, NONE, NONE, 0.8058),
    "SCAFFOLD": (NONE, NONE, NONE, 0.8260),
}
METHODS = ("FedAvg", "FedProx", "FedOpt", "SCAFFOLD", "central", "auto")
TOLERANCE, SEED = 1.0, 0
NOTES = (
    "Eight clients, all of which take part in 50 rounds of 4 epochs, minibatches of 64, SGD with momentum 0.9 and a "
    "rate that falls from 0.05 to 0.0005 like a cosine; central training: 25 epochs from 0.01. FedMA's moderate CNN "
    "with dropout, random crops and flips. mu of FedProx is 1e-5; FedOpt has momentum 0.6 on the server and a step "
    "size that falls from 1 to 0.9. The accuracy is that of the last model. A cell matches if it is within 1 point; "
    "one run was published, without deviations.",
    "As published: the draws of the splits (NumPy's legacy generator, seed 0), PyTorch's distribution of initial "
    "parameters. Other than published: the rate changes after each round instead of each epoch (it is the mean of "
    "its epochs' rates), and the momentum of clients begins anew in each round, while NVFlare's clients keep it.",
)
SLICE = "A slice of the experiment, not the experiment: {}. Do not compare it with the published numbers."


class SimScale(NamedTuple):
    """How much of the experiment is run."""

    train: int  # images
    test: int
    rounds: int
    epochs: int  # per round


SCALES = {"full": SimScale(50_000, 10_000, 50, 4), "small": SimScale(640, 200, 2, 1)}


def model(dtype: str = "float32") -> Model:
    """The moderate CNN with NVFlare's crops, flips and normalization."""
    mean, deviation = ((125.3, 123.0, 113.9), (63.0, 62.1, 66.7))
    scaled = [tuple(number / 255 for number in numbers) for numbers in (mean, deviation)]
    images = Images(4, True, *scaled, channels_first=False, reflect=True)
    return dataclasses.replace(nvflare_cnn(dtype=dtype), images=images)


def cosine(epochs: int, rate: float, every: int = 1) -> list[float]:
    """The rate of each round of so many epochs: the mean of a cosine over its epochs."""
    each = [rate * (LAST + (1 - LAST) * (1 + math.cos(math.pi * t / epochs)) / 2) for t in range(epochs)]
    return np.reshape(each, (-1, every)).mean(axis=1).tolist()


def sim_methods(size: SimScale) -> dict[str, Method[Any]]:
    """The methods, with NVFlare's settings, central training as one client, and `auto`, which has no settings."""
    passes, rates = Epochs(size.epochs), cosine(size.rounds * size.epochs, RATE, size.epochs)
    shared: dict[str, Any] = {"weighted": True, "optimizer": optax.trace(MOMENTUM)}
    server = [0.9 + 0.05 * (1 + math.cos(math.pi * k / size.rounds)) for k in range(size.rounds)]
    central = cosine(central_rounds(size), CENTRAL_RATE)
    return {
        "FedAvg": fedavg(CLIENTS, passes, rates, **shared),
        "FedProx": fedprox(CLIENTS, 1 / MU, local_steps=passes, local_rate=rates, **shared),
        "FedOpt": fedavgm(CLIENTS, passes, rates, momentum=0.6, server_step_size=server, **shared),
        "SCAFFOLD": scaffold(CLIENTS, passes, rates, **shared),
        "central": fedavg(1, Epochs(1), central, **shared),
        "auto": auto(CLIENTS),
    }


def central_rounds(size: SimScale) -> int:
    """Epochs of central training: as many steps as all clients take together, divided among them."""
    return size.rounds * size.epochs // CLIENTS if size == SCALES["full"] else size.rounds


def wanted(method: str, column: str) -> bool:
    """Whether the cell belongs to the table: it was published, or it is of `auto`."""
    return method == "auto" or not math.isnan(PUBLISHED[method][COLUMNS.index(column)])


def nvflare_table(
    scale: str = "full",
    seed: int = SEED,
    rounds: int | None = None,
    *,
    methods: tuple[str, ...] = METHODS,
    columns: tuple[str, ...] = COLUMNS,
    data: str | Path | None = None,
    dtype: str = "float32",
    out: Path | None = None,
    resume: bool = False,
    merge: bool = False,
    until: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
) -> PublishedTable:
    """Run the table, or a slice of it; arguments are as of `niid_bench.niid_table`."""
    checks.one_of("scale", scale, tuple(SCALES))
    size, curves = SCALES[scale] if rounds is None else SCALES[scale]._replace(rounds=rounds), Curves(out)
    checks.whole("rounds", size.rounds, 1)
    lengths = {method: central_rounds(size) if method == "central" else size.rounds for method in METHODS}
    built = sim_methods(size)
    pairs = [(method, column) for method in methods for column in columns if wanted(method, column)]
    for name, column in () if merge else pairs:
        cell, label = Cell(TABLE, name, column, seed), file_name(TABLE, name, column, seed)
        if resume and len(curves.read().get(cell, ())) > lengths[name]:
            continue
        cells = sim_cells(size, 0.0 if name == "central" else ALPHAS[column], seed, data, dtype)
        cells = cells.weighted() if name == "auto" else cells
        method = fitted(built[name], cells.first)
        compile_all([(method, cells)])
        accuracy = run_cells(
            method, cells, lengths[name],
            folder=None if out is None else out / label, resume=resume, until=until,
            identity={"table": TABLE, "method": name, "column": column, "seed": seed, "size": list(size),
                      "dtype": dtype},
            observe=partial(_note, curves, label, cell, progress),
        )  # fmt: skip
        curves.write(label, [cell], accuracy)
    last = {key: float(np.mean([each[-1] for each in seeds])) for key, seeds in curves.whole(TABLE, lengths).items()}
    rows = tuple(method for method in (*PUBLISHED, "auto") if merge or method in methods)
    return sim_table(size, last, rows, COLUMNS if merge else columns)


def sim_cells(size: SimScale, alpha: float, seed: int, data: str | Path | None, dtype: str) -> Cells:
    """The clients of a split, or all images as one client for alpha 0; initial parameters, and the test images."""
    parts = zip(read_cifar10(data), (size.train, size.test), strict=True)
    train, test = ({name: column[:count] for name, column in part.items()} for part, count in parts)
    net, owner = model(dtype), np.zeros(len(train["label"]), int)
    owner = split_labels(train["label"], alpha, seed) if alpha else owner
    judge = Evaluation.of(FederatedData.by(test, np.zeros(len(test["label"]), int)), net.correct, block=1000)
    clients = FederatedData.by(train, owner).population(net.loss, batch=BATCH)
    return Cells.of([clients], as_torch(net.init(seed), prng.key_of(seed)), seed, judge, wide=True)


def sim_table(
    size: SimScale, last: Mapping[tuple[str, str], float], methods: tuple[str, ...], columns: tuple[str, ...]
) -> PublishedTable:
    """The last accuracies by method and column, beside the published ones."""
    places = [COLUMNS.index(column) for column in columns]
    rows = tuple(
        PublishedRow(
            method,
            "no settings" if method == "auto" else "25 epochs" if method == "central" else f"{size.epochs} epochs",
            tuple(last.get((method, column), NONE) for column in columns),
            tuple(PUBLISHED[method][place] for place in places) if method in PUBLISHED else (),
            federated=method != "central",
        )
        for method in methods
    )
    full = SCALES["full"]
    part = f"{size.train} of {full.train} images, {size.rounds} of {full.rounds} rounds, {size.epochs} of {full.epochs}"
    notes = NOTES if size == full else (SLICE.format(f"{part} epochs per round"), *NOTES)
    return PublishedTable(
        TABLE, "NVFlare, CIFAR-10: test accuracy after the last round", "NVFlare's example cifar10-sim", columns,
        TOLERANCE, rows, notes, comparable=size == full,
    )  # fmt: skip


def split_labels(labels: Integer[np.ndarray, " rows"], alpha: float, seed: int = SEED) -> Integer[np.ndarray, " rows"]:
    """The client of each image, by the draws of the example, which it has from FedMA."""
    random, owner = np.random.RandomState(seed), np.zeros(len(labels), int)
    while True:
        held = np.zeros(CLIENTS, int)
        for label in range(CLASSES):
            rows = np.flatnonzero(labels == label)
            random.shuffle(rows)
            shares = random.dirichlet(np.repeat(alpha, CLIENTS)) * (held < len(labels) / CLIENTS)
            ends = (np.cumsum(shares / shares.sum()) * len(rows)).astype(int)[:-1]
            for client, part in enumerate(np.split(rows, ends)):
                owner[part] = client
                held[client] += len(part)
        if held.min() >= 10:
            return owner


def _note(
    curves: Curves, label: str, cell: Cell, progress: Callable[[str], None], done: int,
    accuracy: Float[np.ndarray, "rounds 1"], seconds: float,
) -> None:  # fmt: skip
    """Write the accuracies so far, and say the last one."""
    curves.write(label, [cell], accuracy)
    progress(f"{label}, {done} rounds: {accuracy[-1, 0]:.4f}; {seconds:.1f} s")


OPTIONS = ("rounds", "seed", "scale", "only", "resume", "merge", "minutes", "dtype")

if __name__ == "__main__":
    sys.exit(main(nvflare_table, __doc__, takes=OPTIONS, methods=METHODS, columns=COLUMNS))
