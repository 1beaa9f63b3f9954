"""NIID-Bench on Fashion-MNIST, as Flower's baseline has it: three ways to split ten clients, four methods.

The whole table takes minutes on a GPU and hours on a CPU, and can be continued. A slice of it takes two minutes.

    python reproductions/niid_bench.py --out runs/niid --resume
    python reproductions/niid_bench.py --scale small
    python reproductions/niid_bench.py --only FedAvg,IID
"""

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from jaxtyping import Array, Float, Integer, Key

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.app.folders import csv_text
from fedspam.datasets import FederatedData, data_path, read_labeled
from fedspam.methods import Epochs, Method, fedavg, fednova, fedprox, scaffold
from fedspam.models import Model
from fedspam.models.networks import Convolutional
from fedspam.simulation import Evaluation, records
from harness import main
from published import PublishedRow, PublishedTable
from side_by_side import Cells, compile_all, run_cells

CLIENTS, CLASSES = 10, 10
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5
FIRST_SEED, TOLERANCE = 42, 1.0
COLUMNS = ("IID", "Dirichlet(0.5)", "two labels")
PUBLISHED: Mapping[str, tuple[float, ...]] = {
    "FedAvg": (0.8923, 0.8809, 0.7810),
    "SCAFFOLD": (0.8933, 0.8844, 0.3380),
    "FedProx": (0.8942, 0.8815, 0.7805),
    "FedNova": (0.8936, 0.8822, 0.7167),
}
SPREAD: Mapping[str, tuple[float, ...]] = {  # as published: mean ± this
    "FedAvg": (0.0045, 0.0029, 0.0251),
    "SCAFFOLD": (0.0027, 0.0025, 0.4122),
    "FedProx": (0.0009, 0.0042, 0.0099),
    "FedNova": (0.0009, 0.0012, 0.0234),
}


class BenchScale(NamedTuple):
    """How much of the experiment is run."""

    train: int  # images
    test: int
    rounds: int
    epochs: int  # per round
    batch: int


SCALES = {"full": BenchScale(60_000, 10_000, 50, 10, 64), "small": BenchScale(2_000, 1_000, 6, 4, 16)}
NOTES = (
    "Ten clients, all of which take part; SGD with rate 0.01, momentum 0.9 and weight decay 1e-5; mu of FedProx is "
    "0.01. Two convolutions of 6 and 16 channels with windows of 5 x 5, each with a pool, then layers of 120, 84 and "
    "10. The best test accuracy over all rounds. Averages are weighted by the number of images. A cell matches if "
    "it is within 1 point plus the published deviation over splits, which is 41 points for SCAFFOLD with two labels.",
    "As the baseline: the draws of its splits (NumPy's generator, seed 42), PyTorch's distribution of initial "
    "parameters. Other than the baseline: the random numbers of initial parameters and minibatches. The baseline "
    "begins SCAFFOLD's controls with the parameters of the model; here they begin with 0, as in the paper.",
)
SLICE = "A slice of the experiment, not the experiment: {}. Do not compare it with the published numbers."


@dataclass(frozen=True)
class TorchInit:
    """A network whose layers begin as in PyTorch: uniform, up to one over the root of their number of inputs."""

    network: Convolutional

    def init(self, key: Key[Array, ""]) -> Params:
        layers = {}
        for number, (name, layer) in enumerate(sorted(self.network.init(key).items())):
            kernel = layer["kernel"]
            reach = 1 / np.sqrt(np.prod(kernel.shape[:-1]))
            keys = jax.random.split(jax.random.fold_in(key, number))
            layers[name] = {
                "bias": jax.random.uniform(keys[0], layer["bias"].shape, kernel.dtype, -reach, reach),
                "kernel": jax.random.uniform(keys[1], kernel.shape, kernel.dtype, -reach, reach),
            }
        return layers

    def __call__(self, params: Params, inputs: Any) -> Any:
        return self.network(params, inputs)


def model() -> Model:
    """The network of the baseline: 44,426 parameters."""
    return Model(TorchInit(Convolutional((28, 28, 1), CLASSES, (6, 16), (5, 5), (2, 2), (120, 84))))


def bench_methods(epochs: int) -> dict[str, Method[Any]]:
    """The four methods, with the settings of the baseline."""
    passes = Epochs(epochs)
    sgd = optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.trace(MOMENTUM))
    shared: dict[str, Any] = {"weighted": True, "optimizer": sgd}
    return {
        "FedAvg": fedavg(CLIENTS, passes, RATE, **shared),
        "SCAFFOLD": scaffold(CLIENTS, passes, RATE, **shared),
        "FedProx": fedprox(CLIENTS, 1 / 0.01, local_steps=passes, local_rate=RATE, **shared),
        "FedNova": fednova(CLIENTS, passes, RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
    }


def niid_table(
    scale: str = "full",
    seeds: int = 1,
    seed: int = FIRST_SEED,
    rounds: int | None = None,
    *,
    methods: tuple[str, ...] = tuple(PUBLISHED),
    columns: tuple[str, ...] = COLUMNS,
    data: str | Path | None = None,
    out: Path | None = None,
    resume: bool = False,
    progress: Callable[[str], None] = lambda text: None,
) -> PublishedTable:
    """Run the table, or a slice of it.

    Arguments:
        scale: 'full', or 'small' for few images and rounds.
        seeds: how many splits, initial parameters and draws of minibatches.
        seed: the first seed; the others follow it.
        rounds: other than those of the scale; fewer are a slice, too.
        methods, columns: those to run.
        data: the folder of the data sets, see `fedspam.datasets.data_folder`.
        out: where each method and seed keeps its checkpoints and, as CSV, the accuracies of its rounds so far.
        resume: continue what `out` holds. What is finished there is not run again.
        progress: called with a line of text after every few rounds of a method.
    """
    checks.one_of("scale", scale, tuple(SCALES))
    checks.whole("seeds", seeds, 1)
    checks.whole("seed", seed, 0)
    size = SCALES[scale] if rounds is None else SCALES[scale]._replace(rounds=rounds)
    checks.whole("rounds", size.rounds, 1)
    built = {name: method for name, method in bench_methods(size.epochs).items() if name in methods}
    best: dict[str, list[np.ndarray]] = {name: [] for name in built}
    for number in range(seed, seed + seeds):
        folders = {name: None if out is None else out / f"{name}-{number}" for name in built}
        left = [name for name, folder in folders.items() if not (resume and _has_rounds(folder, size.rounds))]
        cells = bench_cells(size, columns, number, data)
        compile_all([built[name] for name in left], cells)
        for name, method in built.items():
            accuracy = run_cells(
                method, cells, size.rounds, folder=folders[name], resume=resume,
                identity={"table": "niid-bench", "method": name, "columns": list(columns), "seed": number,
                          "images": [size.train, size.test], "epochs": size.epochs, "batch": size.batch},
                observe=partial(_note, folders[name], f"{name}, seed {number}", columns, progress),
            )  # fmt: skip
            best[name].append(accuracy.max(axis=0))
    return bench_table(size, {method: np.mean(numbers, axis=0) for method, numbers in best.items()}, columns)


def bench_cells(size: BenchScale, columns: Sequence[str], seed: int, data: str | Path | None = None) -> Cells:
    """The clients of each split, the initial parameters, and the test images."""
    train, test = (_read(part, count, data) for part, count in (("train", size.train), ("t10k", size.test)))
    net = model()
    judge = Evaluation.of(FederatedData.by(test, np.zeros(len(test["label"]), int)), net.correct, block=500)
    clients = [
        FederatedData.by(train, split_labels(column, train["label"], seed)).population(net.loss, batch=size.batch)
        for column in columns
    ]
    # as large a capacity as any split could need, so that a method is compiled once for all
    return Cells.of([dataclasses.replace(each, capacity=size.train) for each in clients], net.init(seed), seed, judge)


def bench_table(size: BenchScale, best: Mapping[str, Sequence[float]], columns: tuple[str, ...]) -> PublishedTable:
    """The best accuracies of each method, beside the published ones."""
    places, full = [COLUMNS.index(column) for column in columns], SCALES["full"]
    rows = tuple(
        PublishedRow(
            method,
            f"{size.epochs} epochs, batch {size.batch}",
            tuple(map(float, numbers)),
            tuple(PUBLISHED[method][place] for place in places),
            spread=tuple(SPREAD[method][place] for place in places),
        )
        for method, numbers in best.items()
    )
    part = (
        f"{size.train} of {full.train} images, {size.test} of {full.test} to test, {size.rounds} of {full.rounds} "
        f"rounds, {size.epochs} of {full.epochs} epochs per round, minibatches of {size.batch} instead of {full.batch}"
    )
    notes = NOTES if size == full else (SLICE.format(part), *NOTES)
    return PublishedTable(
        "niid-bench", "NIID-Bench, Fashion-MNIST: best test accuracy", "Flower's baseline of arXiv:2102.02079", columns,
        TOLERANCE, rows, notes, comparable=size == full,
    )  # fmt: skip


def _has_rounds(folder: Path | None, rounds: int) -> bool:
    """Whether the folder holds the state after so many rounds, and nothing needs to be compiled."""
    return folder is not None and (folder / f"checkpoint-{rounds:09d}.safetensors").exists()


def _note(
    folder: Path | None,
    name: str,
    columns: Sequence[str],
    progress: Callable[[str], None],
    done: int,
    accuracy: Float[np.ndarray, "rounds columns"],
    seconds: float,
) -> None:
    """Write the accuracies so far beside the folder, and say the best ones."""
    if folder is not None:
        rows = ([number, *(f"{value:.4f}" for value in row)] for number, row in enumerate(accuracy))
        records.write(folder.with_name(f"{folder.name}.csv"), csv_text(["round", *columns], rows).encode())
    best = ", ".join(f"{column} {number:.4f}" for column, number in zip(columns, accuracy.max(0), strict=True))
    progress(f"{name}, {done} rounds: {best}; {seconds:.1f} s")


def split_labels(
    column: str, labels: Integer[np.ndarray, " rows"], seed: int = FIRST_SEED
) -> Integer[np.ndarray, " rows"]:
    """The client of each image, by the draws of the baseline."""
    random, owner = np.random.default_rng(seed), np.zeros(len(labels), int)
    if column == "IID":
        order = random.choice(len(labels), len(labels), replace=False)
        for client, rows in enumerate(np.array_split(order, CLIENTS)):
            owner[rows] = client
        return owner
    return _by_dirichlet(random, labels, 0.5) if column == COLUMNS[1] else _by_labels(random, labels, 2)


def _by_dirichlet(random: np.random.Generator, labels: np.ndarray, alpha: float) -> np.ndarray:
    """Each class is shared out by a draw of Dirichlet's distribution among clients that are not full yet."""
    while True:
        owner, held = np.zeros(len(labels), int), np.zeros(CLIENTS, int)
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


def _by_labels(random: np.random.Generator, labels: np.ndarray, count: int) -> np.ndarray:
    """Each client has its own class and others at random; the clients of a class share it evenly."""
    classes: list[list[int]] = []
    for client in range(CLIENTS):
        chosen = [client % CLASSES]
        while len(chosen) < count:
            drawn = int(random.choice(CLASSES, 1)[0])
            if drawn not in chosen:
                chosen.append(drawn)
        classes.append(chosen)
    owner = np.zeros(len(labels), int)
    for label in range(CLASSES):
        rows = np.flatnonzero(labels == label)
        random.shuffle(rows)
        holders = [client for client in range(CLIENTS) if label in classes[client]]
        for client, part in zip(holders, np.array_split(rows, len(holders)), strict=True):
            owner[part] = client
    return owner


def _read(part: str, count: int, folder: str | Path | None) -> dict[str, np.ndarray]:
    """The first images of a part."""
    paths = [
        data_path(f"fashion_mnist/{part}-{kind}-ubyte", folder, endings=("", ".gz"))
        for kind in ("images-idx3", "labels-idx1")
    ]
    return {name: column[:count] for name, column in read_labeled(*paths, scaled=False).items()}


if __name__ == "__main__":
    options = ("seeds", "rounds", "seed", "scale", "only", "resume")
    sys.exit(main(niid_table, __doc__, takes=options, methods=tuple(PUBLISHED), columns=COLUMNS))
