"""NIID-Bench as Flower's baseline has it: three sets of images, five ways to split them, four methods, and `auto`.

A set takes minutes on a GPU and hours on a CPU. It can be continued, also in parts on several machines, whose curves
(CSV files) are then put into one folder. A slice of it takes two minutes.

    python reproductions/niid_bench.py --images cifar10 --out runs/niid-cifar10 --resume
    python reproductions/niid_bench.py --images mnist --only "FedProx 1,one label" --minutes 9 --out runs/a --resume
    python reproductions/niid_bench.py --images mnist --merge --out runs/all
    python reproductions/niid_bench.py --scale small
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import optax
from jaxtyping import Float, Integer

from curves import Cell, Curves, as_torch, file_name
from fedspam._internal import checks, prng
from fedspam.datasets import FederatedData, data_path, read_cifar10, read_labeled
from fedspam.federation import fitted
from fedspam.methods import Epochs, Method, auto, fedavg, fednova, fedprox, scaffold
from fedspam.models import Images, Model
from fedspam.models.networks import Convolutional
from fedspam.simulation import Evaluation
from harness import main
from published import PublishedRow, PublishedTable
from side_by_side import Cells, compile_all, run_cells

CLIENTS, CLASSES = 10, 10
RATE, MOMENTUM, WEIGHT_DECAY = 0.01, 0.9, 1e-5
FIRST_SEED, TOLERANCE = 42, 1.0
COLUMNS = ("IID", "Dirichlet(0.5)", "one label", "two labels", "three labels")
PUBLISHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "mnist": {
        "FedAvg": (0.9909, 0.9889, 0.1933, 0.9686, 0.9786),
        "SCAFFOLD": (0.9906, 0.9907, 0.0993, 0.9692, 0.9791),
        "FedProx": (0.9916, 0.9902, 0.5179, 0.9685, 0.9785),
        "FedNova": (0.9905, 0.9803, 0.5258, 0.9665, 0.9762),
    },
    "fashion": {
        "FedAvg": (0.8923, 0.8809, 0.2839, 0.7810, 0.8243),
        "SCAFFOLD": (0.8933, 0.8844, 0.1000, 0.3380, 0.8032),
        "FedProx": (0.8942, 0.8815, 0.3265, 0.7805, 0.8299),
        "FedNova": (0.8936, 0.8822, 0.1686, 0.7167, 0.8197),
    },
    "cifar10": {
        "FedAvg": (0.7132, 0.6247, 0.1000, 0.5117, 0.5911),
        "SCAFFOLD": (0.7166, 0.6808, 0.1000, 0.4942, 0.6100),
        "FedProx": (0.7126, 0.6563, 0.1271, 0.5044, 0.5920),
        "FedNova": (0.7069, 0.6389, 0.1000, 0.4690, 0.5783),
    },
}
SPREAD: Mapping[str, Mapping[str, tuple[float, ...]]] = {  # as published: mean ± this
    "mnist": {
        "FedAvg": (0.0005, 0.0007, 0.1182, 0.0030, 0.0034),
        "SCAFFOLD": (0.0015, 0.0006, 0.0012, 0.0052, 0.0010),
        "FedProx": (0.0004, 0.0002, 0.2675, 0.0015, 0.0006),
        "FedNova": (0.0006, 0.0006, 0.1408, 0.0039, 0.0007),
    },
    "fashion": {
        "FedAvg": (0.0045, 0.0029, 0.1709, 0.0251, 0.0152),
        "SCAFFOLD": (0.0027, 0.0025, 0.0000, 0.4122, 0.0503),
        "FedProx": (0.0009, 0.0042, 0.0668, 0.0099, 0.0048),
        "FedNova": (0.0009, 0.0012, 0.0930, 0.0234, 0.0134),
    },
    "cifar10": {
        "FedAvg": (0.0033, 0.0043, 0.0000, 0.0109, 0.0087),
        "SCAFFOLD": (0.0113, 0.0096, 0.0000, 0.0218, 0.0091),
        "FedProx": (0.0118, 0.0008, 0.0096, 0.0079, 0.0118),
        "FedNova": (0.0114, 0.0140, 0.0000, 0.0066, 0.0042),
    },
}
PENALTIES = {"FedProx": 0.01, "FedProx 0.001": 0.001, "FedProx 0.1": 0.1, "FedProx 1": 1.0}  # mu, which was tuned
METHODS = ("FedAvg", "SCAFFOLD", *PENALTIES, "FedNova", "auto")
ROWS = ("FedAvg", "SCAFFOLD", "FedProx", "FedNova", "auto")
COUNTS = {"one label": 1, "two labels": 2, "three labels": 3}
TITLES = {"mnist": "MNIST", "fashion": "Fashion-MNIST", "cifar10": "CIFAR-10"}


class BenchScale(NamedTuple):
    """How much of the experiment is run."""

    train: int  # images
    test: int
    rounds: int
    epochs: int  # per round
    batch: int


SCALES = {"full": BenchScale(60_000, 10_000, 50, 10, 64), "small": BenchScale(2_000, 1_000, 6, 4, 16)}
SIZES = {"cifar10": 50_000}  # training images, where they are fewer
NOTES = (
    "Ten clients, all of which take part; SGD with rate 0.01, momentum 0.9 and weight decay 1e-5. Two convolutions of "
    "6 and 16 channels with windows of 5 x 5, each with a pool, then layers of 120, 84 and 10; on CIFAR-10 random "
    "crops and flips. The best test accuracy over all rounds. Averages are weighted by the number of images. A cell "
    "matches if it is within 1 point plus the published deviation over splits.",
    "As the baseline: the draws of its splits (NumPy's generator, seed 42), PyTorch's distribution of initial "
    "parameters. Other than the baseline: the random numbers of initial parameters, minibatches and crops.",
    "The baseline tunes mu of FedProx over 0.001, 0.01, 0.1 and 1 for every cell. FedProx here is the best of those "
    "that were run: {}.",
)
SLICE = "A slice of the experiment, not the experiment: {}. Do not compare it with the published numbers."


def model(images: str = "fashion", dtype: str = "float32") -> Model:
    """The network of the baseline: 44,426 parameters, or 62,006 for images in color."""
    shape = (32, 32, 3) if images == "cifar10" else (28, 28, 1)
    network = Convolutional(shape, CLASSES, (6, 16), (5, 5), (2, 2), (120, 84))
    crops = Images(crop=4, flip=True, channels_first=False, reflect=True) if images == "cifar10" else None
    return Model(network, dtype, images=crops)


def bench_methods(epochs: int) -> dict[str, Method[Any]]:
    """The four methods, with the settings of the baseline, and `auto`, which has none."""
    passes = Epochs(epochs)
    sgd = optax.chain(optax.add_decayed_weights(WEIGHT_DECAY), optax.trace(MOMENTUM))
    shared: dict[str, Any] = {"weighted": True, "optimizer": sgd}
    return {
        "FedAvg": fedavg(CLIENTS, passes, RATE, **shared),
        "SCAFFOLD": scaffold(CLIENTS, passes, RATE, **shared),
        **{
            name: fedprox(CLIENTS, 1 / penalty, local_steps=passes, local_rate=RATE, **shared)
            for name, penalty in PENALTIES.items()
        },
        "FedNova": fednova(CLIENTS, passes, RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY),
        "auto": auto(CLIENTS),
    }


def niid_table(
    images: str = "fashion",
    scale: str = "full",
    seeds: int = 1,
    seed: int = FIRST_SEED,
    rounds: int | None = None,
    *,
    methods: tuple[str, ...] = ROWS,
    columns: tuple[str, ...] = COLUMNS,
    data: str | Path | None = None,
    dtype: str = "float32",
    out: Path | None = None,
    resume: bool = False,
    merge: bool = False,
    until: float = math.inf,
    progress: Callable[[str], None] = lambda text: None,
) -> PublishedTable:
    """Run the table, or a slice of it.

    Arguments:
        images: 'mnist', 'fashion' or 'cifar10'.
        scale: 'full', or 'small' for few images and rounds.
        seeds: how many splits, initial parameters and draws of minibatches.
        seed: the first seed; the others follow it.
        rounds: other than those of the scale; fewer are a slice, too.
        methods, columns: those to run.
        data: the folder of the data sets, see `fedspam.datasets.data_folder`.
        dtype: of the network: 'float32' or 'bfloat16'.
        out: where each method and seed keeps its checkpoints and, as CSV, the accuracies of its rounds so far.
        resume: continue what `out` holds. What is finished there is not run again.
        merge: run nothing, and show the curves in `out`, of all methods and columns.
        until: a time of `time.monotonic` after which no further rounds begin.
        progress: called with a line of text after every few rounds of a method.
    """
    checks.one_of("images", images, tuple(PUBLISHED))
    checks.one_of("scale", scale, tuple(SCALES))
    checks.whole("seeds", seeds, 1)
    checks.whole("seed", seed, 0)
    size = SCALES[scale] if rounds is None else SCALES[scale]._replace(rounds=rounds)
    size = size._replace(train=min(size.train, SIZES.get(images, size.train)))
    checks.whole("rounds", size.rounds, 1)
    curves, built = Curves(out), bench_methods(size.epochs)
    for number in () if merge else range(seed, seed + seeds):
        runs = {name: [Cell(images, name, column, number) for column in columns] for name in methods}
        lengths = {cell: len(accuracy) - 1 for cell, accuracy in curves.read().items()} if resume else {}
        left = [name for name, run in runs.items() if min(lengths.get(cell, 0) for cell in run) < size.rounds]
        if not left:
            continue
        cells = bench_cells(images, size, columns, number, data, dtype)
        # the other methods weight clients by themselves
        fit = {name: (fitted(built[name], cells.first), cells.weighted() if name == "auto" else cells) for name in left}
        compile_all(fit.values())
        for name, (method, cells) in fit.items():
            label = file_name(images, name, *(() if columns == COLUMNS else columns), number)
            accuracy = run_cells(
                method, cells, size.rounds, folder=None if out is None else out / label, resume=resume, until=until,
                identity={"table": "niid-bench", "images": images, "method": name, "columns": list(columns),
                          "seed": number, "count": [size.train, size.test], "epochs": size.epochs,
                          "batch": size.batch, "dtype": dtype},
                observe=partial(_note, curves, label, runs[name], progress),
            )  # fmt: skip
            curves.write(label, runs[name], accuracy)
    whole = curves.whole(images, dict.fromkeys(METHODS, size.rounds))
    best = {cell: float(np.mean([max(each) for each in seeds])) for cell, seeds in whole.items()}
    rows = ROWS if merge else tuple(row for row in ROWS if any(name in methods for name in _names(row)))
    return bench_table(images, size, best, rows, COLUMNS if merge else columns)


def bench_cells(
    images: str, size: BenchScale, columns: Sequence[str], seed: int, data: str | Path | None = None,
    dtype: str = "float32",
) -> Cells:  # fmt: skip
    """The clients of each split, the initial parameters, and the test images."""
    train, test = (_read(images, part, count, data) for part, count in (("train", size.train), ("t10k", size.test)))
    net = model(images, dtype)
    judge = Evaluation.of(FederatedData.by(test, np.zeros(len(test["label"]), int)), net.correct, block=500)
    clients = [
        FederatedData.by(train, split_labels(column, train["label"], seed)).population(net.loss, batch=size.batch)
        for column in columns
    ]
    # as large a capacity as any split could need, so that a method is compiled once for all
    return Cells.of(
        [dataclasses.replace(each, capacity=size.train) for each in clients],
        as_torch(net.init(seed), prng.key_of(seed)),
        seed,
        judge,
    )


def bench_table(
    images: str, size: BenchScale, best: Mapping[tuple[str, str], float], methods: Sequence[str],
    columns: tuple[str, ...],
) -> PublishedTable:  # fmt: skip
    """The best accuracies of each method, by method and column, beside the published ones."""
    places, full = [COLUMNS.index(column) for column in columns], SCALES["full"]
    full = full._replace(train=SIZES.get(images, full.train))
    taken = lambda numbers: tuple(numbers[place] for place in places) if numbers else ()
    rows = tuple(
        PublishedRow(
            method,
            "no settings" if method == "auto" else f"{size.epochs} epochs, batch {size.batch}",
            tuple(
                max((best[each, column] for each in _names(method) if (each, column) in best), default=math.nan)
                for column in columns
            ),
            taken(PUBLISHED[images].get(method, ())),
            spread=taken(SPREAD[images].get(method, ())),
        )
        for method in methods
    )  # fmt: skip
    part = (
        f"{size.train} of {full.train} images, {size.test} of {full.test} to test, {size.rounds} of {full.rounds} "
        f"rounds, {size.epochs} of {full.epochs} epochs per round, minibatches of {size.batch} instead of {full.batch}"
    )
    tuned = [f"{PENALTIES[name]:g} ({', '.join(c for c in columns if (name, c) in best)})" for name in PENALTIES
             if any((name, c) in best for c in columns)]  # fmt: skip
    notes = (*NOTES[:2], NOTES[2].format("; ".join(tuned) or "none"))
    notes = notes if size == full else (SLICE.format(part), *notes)
    title = f"NIID-Bench, {TITLES[images]}: best test accuracy"
    return PublishedTable(
        f"niid-bench-{images}", title, "Flower's baseline of arXiv:2102.02079", columns, TOLERANCE, rows, notes,
        comparable=size == full,
    )  # fmt: skip


def _names(method: str) -> tuple[str, ...]:
    return tuple(PENALTIES) if method == "FedProx" else (method,)


def _note(
    curves: Curves,
    label: str,
    cells: Sequence[Cell],
    progress: Callable[[str], None],
    done: int,
    accuracy: Float[np.ndarray, "rounds columns"],
    seconds: float,
) -> None:
    """Write the accuracies so far, and say the best ones."""
    curves.write(label, cells, accuracy)
    best = ", ".join(f"{cell.column} {number:.4f}" for cell, number in zip(cells, accuracy.max(0), strict=True))
    progress(f"{label}, {done} rounds: {best}; {seconds:.1f} s")


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
    return _by_dirichlet(random, labels, 0.5) if column == COLUMNS[1] else _by_labels(random, labels, COUNTS[column])


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


def _read(images: str, part: str, count: int, folder: str | Path | None) -> dict[str, np.ndarray]:
    """The first images of a part."""
    if images == "cifar10":
        rows = read_cifar10(folder)[part != "train"]
        return {name: column[:count] for name, column in rows.items()}
    place = {"mnist": "mnist", "fashion": "fashion_mnist"}[images]
    paths = [
        data_path(f"{place}/{part}-{kind}-ubyte", folder, endings=("", ".gz"))
        for kind in ("images-idx3", "labels-idx1")
    ]
    return {name: column[:count] for name, column in read_labeled(*paths, scaled=False).items()}


OPTIONS = ("images", "seeds", "rounds", "seed", "scale", "only", "resume", "merge", "minutes", "dtype")

if __name__ == "__main__":
    sys.exit(main(niid_table, __doc__, takes=OPTIONS, methods=METHODS, columns=COLUMNS))
