"""FLamby's table of Fed-Heart-Disease: its split, scaling, starting points, methods and rates, run by this library.

Takes about a minute; the patients come with fedspam.

    python reproductions/flamby_heart.py
"""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Key

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.clients import Ragged
from fedspam.datasets import HOSPITALS, FederatedData, Heart, read_heart
from fedspam.methods import (
    Method,
    auto,
    fedadagrad,
    fedadam,
    fedavg,
    fedprox,
    fedyogi,
    scaffold,
)
from fedspam.models import Model, logistic_regression
from fedspam.simulation import Evaluation, fine_tune, simulate
from harness import main
from published import PublishedRow, PublishedTable

SPLIT = Path(__file__).with_name("heart_split.json")
SEEDS, FIRST_SEED, ROUNDS = 5, 42, 15
BATCH, UPDATES, EPOCHS = 4, 100, 50  # of a client's minibatch; local steps per round; of pooled training
TOLERANCE = 2.0  # percentage points
COLUMNS = ("Cleveland", "Hungary", "Switzerland", "VA", "client mean", "pooled test")
ADAPTIVE: dict[str, Any] = {"momentum": 0.9, "adaptivity": 1e-8, "weighted": True}  # of FLamby's adaptive servers


class HeartMethod(NamedTuple):
    """A row of the table: what is run on which clients, and what FLamby published."""

    name: str
    settings: str
    build: Callable[[], Method[Any]]
    clients: str  # 'plain', 'weighted' or 'whole', see `HeartData`
    published: tuple[float, ...] = ()
    fine_tuning: int = 0  # steps that each hospital takes alone after the last round


NONE = float("nan")
PERSONAL_RATE = 0.00316227  # of FLamby's comparison of common and personal models
METHODS = (
    HeartMethod(
        "FedAvg", "rate 0.001", lambda: fedavg(4, UPDATES, 0.001, weighted=True), "plain",
        (0.731, 0.719, 0.650, 0.640, 0.685, 0.748),
    ),
    HeartMethod(
        "FedProx", "rate 0.001, mu 0.01",
        lambda: fedprox(4, 1 / 0.01, local_steps=UPDATES, local_rate=0.001, weighted=True), "plain",
        (0.731, 0.719, 0.650, 0.640, 0.685, 0.748),
    ),
    HeartMethod(
        "SCAFFOLD", "rate 0.001, server 1", lambda: scaffold(4, UPDATES, 0.001, weighted=True), "plain",
        (0.727, 0.719, 0.650, 0.640, 0.684, 0.748),
    ),
    HeartMethod(
        "FedAdagrad", "rate 0.003162, server 0.316", lambda: fedadagrad(4, UPDATES, 0.003162, 0.316228, **ADAPTIVE),
        "plain", (0.760, 0.753, 0.738, 0.676, 0.731, 0.779),
    ),
    HeartMethod(
        "FedYogi", "rate 0.003162, server 0.01",
        lambda: fedyogi(4, UPDATES, 0.003162, 0.01, square_momentum=0.999, **ADAPTIVE), "plain",
        (0.760, 0.753, 0.738, 0.676, 0.731, 0.779),
    ),
    HeartMethod(
        "FedAdam", "rate 0.01, server 0.01",
        lambda: fedadam(4, UPDATES, 0.01, 0.01, square_momentum=0.999, **ADAPTIVE), "plain",
        (0.752, 0.746, 0.738, 0.667, 0.726, 0.779),
    ),
    HeartMethod(
        "FedAvg, higher rate", "rate 0.003162", lambda: fedavg(4, UPDATES, PERSONAL_RATE, weighted=True), "plain",
        (NONE, NONE, NONE, NONE, 0.718, NONE),
    ),
    HeartMethod(
        "the same, fine-tuned", "rate 0.003162, then 100 steps at each hospital",
        lambda: fedavg(4, UPDATES, PERSONAL_RATE, weighted=True), "plain", (NONE, NONE, NONE, NONE, 0.735, NONE),
        fine_tuning=100,
    ),
    HeartMethod("auto", "no parameters, minibatches of 4", lambda: auto(4), "weighted"),
    HeartMethod("SPAM-PPA", "no parameters, prox over all patients of a client", lambda: auto(4), "whole"),
)  # fmt: skip
POOLED = (0.783, 0.764, 0.750, 0.644, 0.735, 0.795)
NOTES = (
    "Logistic regression with 13 features, four hospitals, all of which take part in 15 rounds. In each round a client "
    "takes 100 steps of SGD on minibatches of 4. Means over the seeds 42 to 46.",
    "As FLamby: the split of scikit-learn's train_test_split with random_state=43; PyTorch's initial parameters for "
    "each seed; features scaled per hospital with its training part, for training and for the four columns of "
    "hospitals. The column 'pooled test' is over all test patients, scaled with one mean and deviation of all training "
    "patients. Pooled training is 50 epochs of Adam on the pooled patients, scaled so.",
    "Other than FLamby: each step draws its minibatch anew, while FLamby goes through shuffled epochs.",
    "Personal models: FLamby also compares the client means of FedAvg with rate 0.003162 and of the same model after "
    "100 more steps at each hospital, which then tests its own model. It begins them at random; here as the others.",
    "auto and SPAM-PPA were not published there, and have no parameters to tune: no step size, no number of local "
    "steps. They are compared with the best published federated number of each column. A round of SPAM-PPA has two "
    "exchanges, all others have one.",
)
OTHER = "Not the published settings: do not compare it with the published numbers."


class HeartData(NamedTuple):
    """FLamby's clients and tests."""

    model: Model
    clients: Mapping[str, Ragged]  # minibatches: each client's mean loss, or weighted by patients; and 'whole'
    pooled: Mapping[str, Array]  # all training patients, scaled together
    local_test: Evaluation
    pooled_test: Evaluation


def heart_table(
    seeds: int = SEEDS,
    rounds: int = ROUNDS,
    seed: int = FIRST_SEED,
    *,
    methods: tuple[HeartMethod, ...] = METHODS,
    folder: str | Path | None = None,
    progress: Callable[[str], None] = lambda text: None,
) -> PublishedTable:
    """Run the table.

    Arguments:
        seeds: how many starting points and draws of minibatches; FLamby's are 5.
        rounds: FLamby's are 15.
        seed: the first seed; the others follow it.
        methods: the rows after that of pooled training.
        folder: of the data sets, see `fedspam.datasets.data_folder`.
        progress: called with a line of text after each row.
    """
    checks.whole("seeds", seeds, 1)
    checks.whole("rounds", rounds, 1)
    checks.whole("seed", seed, 0)
    data = heart_data(read_heart(folder))
    every = range(seed, seed + seeds)

    trained = [train_pooled(data, start(number), jax.random.key(number)) for number in every]
    rows = [PublishedRow("pooled training", "Adam 0.001", _accuracies(data, trained), POOLED, federated=False)]
    progress("pooled training is done")
    for method in methods:
        built, clients = method.build(), data.clients[method.clients]
        trained = [simulate(built, clients, start(number), rounds=rounds, key=number).params for number in every]
        if method.fine_tuning:
            rate = PERSONAL_RATE
            own = [
                fine_tune(clients, x, method.fine_tuning, rate, key=number)
                for x, number in zip(trained, every, strict=True)
            ]
            ours = _personal_accuracies(data, own)
        else:
            ours = _accuracies(data, trained)
        common = not method.fine_tuning
        rows.append(PublishedRow(method.name, method.settings, ours, method.published, federated=common))
        progress(f"{method.name} is done")
    as_published = (seeds, rounds, seed) == (SEEDS, ROUNDS, FIRST_SEED)
    return PublishedTable(
        "flamby-heart", "Fed-Heart-Disease: test accuracy", "FLamby, arXiv:2210.04620, results of seeds 42 to 46",
        COLUMNS, TOLERANCE, tuple(rows), NOTES if as_published else (OTHER, *NOTES), comparable=as_published,
    )  # fmt: skip


def heart_data(heart: Heart) -> HeartData:
    """The patients in FLamby's split, scaled as there."""
    test, features, label = heart_split(heart), heart.features.astype(np.float32), heart.labels.astype(np.int32)
    apart = np.zeros_like(features)
    for hospital in range(len(HOSPITALS)):
        rows = heart.hospital == hospital
        apart[rows] = _scaled(features[rows], features[rows & ~test])
    together = _scaled(features, features[~test])

    def part(scaled: np.ndarray, chosen: np.ndarray) -> FederatedData:
        examples = {"features": scaled[chosen], "label": label[chosen]}
        return FederatedData.by(examples, heart.hospital[chosen], HOSPITALS)

    model = logistic_regression(features.shape[1])
    train = part(apart, ~test)
    return HeartData(
        model,
        {
            "plain": train.population(model.loss, batch=BATCH),
            "weighted": train.population(model.loss, batch=BATCH, weighted=True),
            "whole": train.population(model.loss, weighted=True),
        },
        {"features": jnp.asarray(together[~test]), "label": jnp.asarray(label[~test])},
        Evaluation.of(part(apart, test), model.correct, block=64),
        Evaluation.of(part(together, test), model.correct, block=64),
    )


def heart_split(heart: Heart) -> Bool[np.ndarray, " rows"]:
    """Which patients FLamby tests with. The file says how it was made."""
    stored = json.loads(SPLIT.read_text())
    test = np.zeros(len(heart.labels), bool)
    for number, hospital in enumerate(HOSPITALS):
        rows = np.flatnonzero(heart.hospital == number)
        if len(rows) != stored["rows"][hospital]:
            raise ValueError(
                f"{hospital} has {len(rows)} complete patients, FLamby's split is of {stored['rows'][hospital]}; give "
                "the 'processed' files of UCI as they are"
            )
        test[rows[stored["test"][hospital]]] = True
    return test


def start(seed: int) -> Params:
    """The initial parameters of ``torch.nn.Linear(13, 1)`` after ``torch.manual_seed(seed)``.

    PyTorch draws uniformly from :math:`\\pm 1/\\sqrt{13}`: the 13 weights, then the bias, each from the low 24 bits of
    a number of the Mersenne twister. FLamby has the indicators of cp and restecg last.
    """
    numbers = np.random.RandomState(seed).randint(0, 2**32, size=14, dtype=np.uint32) & (2**24 - 1)
    drawn = ((2 * (numbers / 2**24) - 1) / np.sqrt(13)).astype(np.float32)
    kernel, (bias,) = drawn[:13], drawn[13:]
    # here the three of cp follow age and sex
    kernel = kernel[[0, 1, 8, 9, 10, 2, 3, 4, 11, 12, 5, 6, 7]]
    return {"bias": jnp.asarray([bias]), "kernel": jnp.asarray(kernel[:, None])}


def train_pooled(data: HeartData, params: Params, key: Key[Array, ""]) -> Params:
    """Epochs of Adam over the pooled, shuffled patients; the last minibatch of an epoch is smaller."""
    return _train_pooled(data.pooled, params, key, data.model)


def _train(pooled: Mapping[str, Array], params: Params, key: Key[Array, ""], model: Model) -> Params:
    count, adam = pooled["label"].shape[0], optax.adam(1e-3)
    slots = np.arange(-(-count // BATCH) * BATCH).reshape(-1, BATCH)
    kept = jnp.asarray(slots < count, jnp.float32)

    def step(now: tuple[Params, Any], batch: tuple[Array, Array]) -> tuple[tuple[Params, Any], None]:
        (params, memory), (places, kept) = now, batch
        rows = {name: column[places] for name, column in pooled.items()}
        gradient = jax.grad(lambda params: jnp.sum(kept * model.loss(params, rows)) / jnp.sum(kept))(params)
        update, memory = adam.update(gradient, memory)
        return (optax.apply_updates(params, update), memory), None

    def epoch(now: tuple[Params, Any], key: Key[Array, ""]) -> tuple[tuple[Params, Any], None]:
        places = jax.random.permutation(key, count)[np.minimum(slots, count - 1)]
        return jax.lax.scan(step, now, (places, kept))

    (params, _), _ = jax.lax.scan(epoch, (params, adam.init(params)), jax.random.split(key, EPOCHS))
    return params


_train_pooled = jax.jit(_train, static_argnums=3)


def _accuracies(data: HeartData, trained: list[Params]) -> tuple[float, ...]:
    """The columns of the table, means over seeds."""
    rows = []
    for params in trained:
        hospitals = np.asarray(data.local_test.per_client(params)["accuracy"], float)
        rows.append([*hospitals, hospitals.mean(), float(data.pooled_test(params)["accuracy"])])
    return tuple(np.mean(rows, axis=0).tolist())


def _personal_accuracies(data: HeartData, models: list[Params]) -> tuple[float, ...]:
    """Each hospital tests its own model; there is none to test with all patients."""
    hospitals = np.mean([data.local_test.personal(each)["accuracy"] for each in models], axis=0)
    return (*hospitals.tolist(), float(hospitals.mean()), NONE)


def _scaled(features: Float[np.ndarray, "rows d"], train: Float[np.ndarray, "some d"]) -> Float[np.ndarray, "rows d"]:
    return (features - train.mean(axis=0)) / (train.std(axis=0, ddof=1) + np.float32(1e-9))


if __name__ == "__main__":
    sys.exit(main(heart_table, __doc__, takes=("seeds", "rounds", "seed")))
