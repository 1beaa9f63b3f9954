"""What a test accuracy costs: `auto`, given nothing but the cohort size, against methods tuned in hindsight.

    python research/auto/networks.py [--tasks femnist-cnn] [--race] [--methods MIME] [--seeds 5] [--bits 8] [--json F]

Softmax regression, an MLP and LEAF's CNN on FEMNIST (20 of 105 writers per round), an MLP and a 1-D CNN on HAR (7 of 21
persons per round; tested on the 9 others), an MLP on Fashion-MNIST (10 of 100 clients, Dirichlet 0.3). Minibatches of
20. FedAvg's and FedAvgM's local steps and rate are the best of a grid of 12 for each task and target, judged on the
very seeds they are compared on. With --race, every method that has parameters has a grid of 8. The number of settings,
which is the tuning budget, stands after the name of a method.

With --bits, every method sends its vectors in so many bits per number, up and down.

A row shows, for each target, rounds / exchanges / megabytes both ways / thousand client gradients, of the setting with
the fewest rounds. Exchanges and megabytes include those before the first round. `fedspam.app.arrival` says when a run
has arrived at an accuracy.
"""

import argparse
import itertools
import json
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import simulate, simulate_many, spam, spam_pp, spam_ppa
from fedspam.app.arrival import arrivals
from fedspam.datasets import data_folder, dirichlet, read_femnist, read_har, read_har_windows, read_idx
from fedspam.datasets.federated import FederatedData
from fedspam.federation import ledger
from fedspam.federation.codecs import Codecs, Quantize
from fedspam.methods import (
    auto,
    ce_lsgd,
    delta_sgd,
    fedacg,
    fedadam,
    fedavg,
    fedavgm,
    fedexp,
    fedexprox,
    fedprox,
    fedsps,
    mime,
    padamfed,
    scaffold,
)
from fedspam.models import har_cnn, leaf_cnn, mlp, softmax_regression
from fedspam.simulation import records
from fedspam.solvers import GradientDescent

BATCH = 20
UNSEEN = (2, 4, 9, 10, 12, 13, 18, 20, 24)  # the persons that UCI tests on
STEPS = (10, 30, 60)
RATES = (0.03, 0.1, 0.3, 1.0)


class Task(NamedTuple):
    """Clients, a model, what it is tested on, and the cohort size."""

    train: FederatedData
    test: dict
    model: object
    cohort: int
    targets: tuple


def femnist(model, targets):
    data = read_femnist()
    return Task(data.train, jax.tree.map(jnp.asarray, dict(data.test.examples)), model, 20, targets)


def har(model, targets, signals=False):
    if signals:
        everyone = read_har_windows()
    else:
        data = read_har()
        everyone = FederatedData.by(
            {"features": data.features.astype(np.float32), "label": data.labels.astype(np.int32)},
            data.person - 1,
            [str(person) for person in range(1, 31)],
        )
    unseen = [str(person) for person in UNSEEN]
    train = everyone.take([name for name in everyone.clients if str(name) not in unseen])
    test = everyone.take([name for name in everyone.clients if str(name) in unseen])
    pooled = train.examples["features"]
    axes = (0, 1) if signals else 0
    mean, scale = pooled.mean(axes), pooled.std(axes) + 1e-6
    standard = lambda rows: {**rows, "features": ((rows["features"] - mean) / scale).astype(np.float32)}
    return Task(train.map(standard), jax.tree.map(jnp.asarray, dict(test.map(standard).examples)), model, 7, targets)


def fashion(model, targets, clients=100, alpha=0.3):
    place = data_folder() / "fashion_mnist"
    images, labels = (read_idx(place / f"train-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    unseen, truth = (read_idx(place / f"t10k-{name}-ubyte.gz") for name in ("images-idx3", "labels-idx1"))
    rows = lambda images, labels: {
        "features": (images.reshape(len(images), -1) / 255).astype(np.float32), "label": labels.astype(np.int32)
    }  # fmt: skip
    owners = dirichlet(labels, clients, alpha, seed=0)
    train = FederatedData.by(rows(images, labels), owners, [str(client) for client in range(clients)])
    return Task(train, jax.tree.map(jnp.asarray, rows(unseen, truth)), model, 10, targets)


TASKS = {
    "femnist-softmax": lambda: femnist(softmax_regression(784, 62), (0.6, 0.65, 0.7)),
    "femnist-mlp": lambda: femnist(mlp(784, 62, hidden=(200,)), (0.6, 0.7, 0.75)),
    "femnist-cnn": lambda: femnist(leaf_cnn(), (0.6, 0.7, 0.75, 0.8)),
    "har-mlp": lambda: har(mlp(123, 6, hidden=(100,)), (0.9, 0.93, 0.945)),
    "har-cnn": lambda: har(har_cnn(), (0.8, 0.85, 0.9), signals=True),
    "fashion-mlp": lambda: fashion(mlp(784, 10, hidden=(200,)), (0.7, 0.75, 0.8, 0.82)),
}


def settings(cohort, race, rounds):
    """Of every method the settings it may choose from: those that differ in numbers only stand together."""
    ours = {"auto": [[auto(cohort)]]}
    if not race:
        grid = lambda make: [[make(m, rate) for rate in RATES] for m in STEPS]
        return ours | {
            "FedAvg": grid(lambda m, rate: fedavg(cohort, m, rate)),
            "FedAvgM": grid(lambda m, rate: fedavgm(cohort, m, rate, momentum=0.7)),
        }
    steps = lambda m, rate: GradientDescent(m, local_rate=rate, minibatch=True, safeguard=False)
    makers = {
        "FedAvg": lambda m, rate: fedavg(cohort, m, rate),
        "FedProx": lambda m, rate: fedprox(cohort, 10.0, local_steps=m, local_rate=rate),
        "FedAdam": lambda m, rate: fedadam(cohort, m, rate, 0.01),
        "FedAvgM": lambda m, rate: fedavgm(cohort, m, rate, momentum=0.7, server_step_size=1.0),
        "FedACG": lambda m, rate: fedacg(cohort, m, rate, momentum=0.7),
        "FedExP": lambda m, rate: fedexp(cohort, m, rate),
        "FedExProx": lambda m, rate: fedexprox(cohort, 10.0, local_steps=m, local_rate=rate, damping=1e-3),
        "Delta-SGD": lambda m, rate: delta_sgd(cohort, m, rate),  # the rate of the first step alone
        "FedSPS": lambda m, rate: fedsps(cohort, m, rate),  # the largest rate
        "SCAFFOLD": lambda m, rate: scaffold(cohort, m, rate),
        "MIME": lambda m, rate: mime(cohort, m, rate, minibatch=True),
        "CE-LSGD": lambda m, rate: ce_lsgd(cohort, m, rate, 0.5, minibatch=True),
        "SPAM-PPA, tuned": lambda m, rate: spam_ppa(cohort, jnp.inf, 0.5, solver=steps(m, rate)),
        "SPAM-PP, tuned": lambda m, rate: spam_pp(cohort, jnp.inf, 0.5, solver=steps(m, rate)),
        "SPAM, tuned": lambda m, rate: spam(jnp.inf, 0.5, solver=steps(m, rate)),  # one client per round
    }
    return (
        {name: [[make(m, rate) for rate in RATES] for m in (10, 30)] for name, make in makers.items()}
        | ours
        | {"SPAM-PP, auto": [[spam_pp(cohort)]]}
        # they follow from the number of rounds; only the local steps are a choice
        | {"PAdaMFed": [[padamfed(cohort, m, rounds)] for m in (10, 30)]}
        | {"PAdaMFed-VR": [[padamfed(cohort, m, rounds, variance_reduction=True)] for m in (10, 30)]}
    )


def curves(task, methods, rounds, seeds, codecs):
    """Test accuracy after every round: methods x seeds x rounds."""
    clients = task.train.population(task.model.loss, batch=BATCH)
    probe = jax.tree_util.Partial(lambda test, params: {"accuracy": task.model.accuracy(params, test)}, task.test)
    many = simulate_many(
        methods, clients, task.model.init(1), rounds=rounds, keys=range(seeds), probe=probe, record=(), codecs=codecs
    )
    return many.probes["accuracy"]


def costs(task, method, rounds, codecs):
    """Exchanges, and megabytes both ways, of that many rounds, the start included."""
    clients = task.train.population(task.model.loss, batch=BATCH)
    plan = ledger.plan(method, task.model.init(1), clients, codecs=Codecs.of(codecs))
    once = plan.price({}, (1,))
    start = sum(exchange.cohort * (exchange.bytes_down + exchange.bytes_up) for exchange in plan.start)
    megabytes = (start + rounds * (once["bytes_down"] + once["bytes_up"])[0]) / 1e6
    return len(plan.start) + rounds * len(plan.round), float(megabytes)


def work(task, method, rounds):
    """Client gradients of that many rounds. The first may take more than the others, which take the same."""
    clients = task.train.population(task.model.loss, batch=BATCH)
    run = simulate(method, clients, task.model.init(1), rounds=2, key=0, record="gradients")
    first, later = run.rows["gradients"]
    return float(first + (rounds - 1) * later) if rounds else 0.0


def measure(task, rounds, seeds, race, wanted, codecs):
    """Of every method what each target costs, and the best accuracy."""
    found = {}
    for name, groups in settings(task.cohort, race, rounds).items():
        if wanted and name not in wanted:
            continue
        began = time.perf_counter()
        runs = [(methods, curves(task, methods, rounds, seeds, codecs)) for methods in groups]
        # methods x targets, the median over seeds
        rounds_to = lambda accuracy, target: np.median(arrivals(1 - accuracy, 1 - target), axis=1)
        medians = np.concatenate([np.stack([rounds_to(a, target) for target in task.targets], -1) for _, a in runs])
        methods = list(itertools.chain.from_iterable(methods for methods, _ in runs))
        best = medians.argmin(0)
        cells = []
        for target, i in enumerate(best):
            count = float(medians[i, target])
            exchanges, megabytes = costs(task, methods[i], count, codecs) if np.isfinite(count) else (np.inf, np.inf)
            gradients = work(task, methods[i], count) / 1e3 if np.isfinite(count) else np.inf
            cells.append({"rounds": count, "exchanges": exchanges, "megabytes": megabytes, "gradients": gradients})
        found[name] = {
            "targets": cells,
            "settings": len(methods),
            "best accuracy": float(max(np.nanmax(accuracy.mean(1)) for _, accuracy in runs)),
            "not a number": bool(any(np.isnan(accuracy).any() for _, accuracy in runs)),
            "seconds": time.perf_counter() - began,
        }
        print(row(name, found[name]), flush=True)
    return found


def row(name, cost):
    """One row of the table."""
    show = lambda cell: (
        "–"
        if np.isinf(cell["rounds"])
        else f"{cell['rounds']:g} / {cell['exchanges']:g} / {cell['megabytes']:.3g} / {cell['gradients']:.3g}"
    )
    return f"| {name} ({cost['settings']}) | " + " | ".join(map(show, cost["targets"])) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="only those whose name holds this")
    parser.add_argument("--race", action="store_true", help="more rivals than FedAvg")
    parser.add_argument("--methods", default="", help="only these, with semicolons between them")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--bits", type=int, help="bits per number on the wire, both ways; all 32 if not given")
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args()
    codecs = None if options.bits is None else {"up": Quantize(options.bits), "down": Quantize(options.bits)}
    kept, wanted = {}, [name for name in options.methods.split(";") if name]
    for name, make in TASKS.items():
        if options.tasks not in name:
            continue
        task = make()
        print(f"| {name} | " + " | ".join(f"{target:g}" for target in task.targets) + " |", flush=True)
        print("|---" * (1 + len(task.targets)) + "|", flush=True)
        found = measure(task, options.rounds, options.seeds, options.race, wanted, codecs)
        kept[name] = {"accuracies": task.targets, **found}
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"manifest": records.manifest(), "tasks": kept}, file, indent=1)


if __name__ == "__main__":
    main()
