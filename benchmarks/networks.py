"""Rounds and bytes to a test accuracy: `auto`, given nothing but the cohort size, against methods tuned in hindsight.

    python benchmarks/networks.py [--tasks femnist-cnn] [--race] [--methods MIME] [--seeds 3] [--json FILE]

Softmax regression, an MLP and LEAF's CNN on FEMNIST (20 of 105 writers per round), an MLP and a 1-D CNN on HAR (7 of 21
persons per round; tested on the 9 others). Minibatches of 20. FedAvg's local steps and step size are the best of a grid
of 12 for each task and target, judged on the very seeds it is compared on. With --race, every method that has
parameters has a grid of 8.
`fedspam.app.arrival` says when a run has arrived at an accuracy; the exchange before round 0 counts in bytes alone.
"""

import argparse
import itertools
import json
import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import simulate_many, spam, spam_pp, spam_ppa
from fedspam.app.arrival import arrivals
from fedspam.datasets import read_femnist, read_har, read_har_windows
from fedspam.datasets.federated import FederatedData
from fedspam.federation import ledger
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


TASKS = {
    "femnist-softmax": lambda: femnist(softmax_regression(784, 62), (0.6, 0.65, 0.7)),
    "femnist-mlp": lambda: femnist(mlp(784, 62, hidden=(200,)), (0.6, 0.7, 0.75)),
    "femnist-cnn": lambda: femnist(leaf_cnn(), (0.6, 0.7, 0.75, 0.8)),
    "har-mlp": lambda: har(mlp(123, 6, hidden=(100,)), (0.9, 0.93, 0.945)),
    "har-cnn": lambda: har(har_cnn(), (0.8, 0.85, 0.9), signals=True),
}


def settings(cohort, race):
    """Of every method the settings it may choose from: those that differ in numbers only stand together."""
    auto_ones = {"SPAM-PPA, auto": [[auto(cohort)]], "SPAM-PP, auto": [[spam_pp(cohort)]]}
    if not race:
        return {"FedAvg": [[fedavg(cohort, m, rate) for rate in RATES] for m in STEPS], **auto_ones}
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
    return {name: [[make(m, rate) for rate in RATES] for m in (10, 30)] for name, make in makers.items()} | auto_ones


def curves(task, methods, rounds, seeds):
    """Test accuracy after every round: methods x seeds x rounds."""
    clients = task.train.population(task.model.loss, batch=BATCH)
    probe = jax.tree_util.Partial(lambda test, params: {"accuracy": task.model.accuracy(params, test)}, task.test)
    many = simulate_many(methods, clients, task.model.init(1), rounds=rounds, keys=range(seeds), probe=probe, record=())
    return many.probes["accuracy"]


def price(task, method, rounds):
    """Megabytes of that many rounds, both ways, the start included."""
    clients = task.train.population(task.model.loss, batch=BATCH)
    plan = ledger.plan(method, task.model.init(1), clients)
    once = plan.price({}, 1)
    start = sum(exchange.cohort * (exchange.bytes_down + exchange.bytes_up) for exchange in plan.start)
    return float(start + rounds * (once["bytes_down"] + once["bytes_up"])[0]) / 1e6


def measure(task, rounds, seeds, race, wanted):
    """Of every method the least rounds to each target, the megabytes there, and whether a run ended in NaN."""
    found = {}
    for name, groups in settings(task.cohort, race).items():
        if wanted and name not in wanted:
            continue
        began = time.perf_counter()
        runs = [(methods, curves(task, methods, rounds, seeds)) for methods in groups]
        # methods x targets, the median over seeds
        rounds_to = lambda accuracy, target: np.median(arrivals(1 - accuracy, 1 - target), axis=1)
        medians = np.concatenate([np.stack([rounds_to(a, target) for target in task.targets], -1) for _, a in runs])
        methods = list(itertools.chain.from_iterable(methods for methods, _ in runs))
        best = medians.argmin(0)
        found[name] = {
            "rounds": medians.min(0).tolist(),
            "megabytes": [price(task, methods[i], medians[i, j]) for j, i in enumerate(best)],
            "best accuracy": float(max(np.nanmax(accuracy.mean(1)) for _, accuracy in runs)),
            "settings": len(methods),
            "seconds": time.perf_counter() - began,
        }
        cells = " ".join("-" if np.isinf(r) else f"{r:.0f}" for r in found[name]["rounds"])
        sizes = " ".join("-" if np.isinf(r) else f"{r:.0f}" for r in found[name]["megabytes"])
        print(
            f"  {name:18}{len(methods):4} settings   rounds {cells:16} MB {sizes:24} "
            f"best {found[name]['best accuracy']:.3f}   {found[name]['seconds']:.0f} s",
            flush=True,
        )
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="", help="only those whose name holds this")
    parser.add_argument("--race", action="store_true", help="more rivals than FedAvg")
    parser.add_argument("--methods", default="", help="only these, with semicolons between them")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", help="also write the numbers here")
    options = parser.parse_args()
    kept, wanted = {}, [name for name in options.methods.split(";") if name]
    for name, make in TASKS.items():
        if options.tasks not in name:
            continue
        task = make()
        print(f"{name}: rounds to {', '.join(f'{target:g}' for target in task.targets)}", flush=True)
        kept[name] = {"targets": task.targets, **measure(task, options.rounds, options.seeds, options.race, wanted)}
        if {"FedAvg", "SPAM-PPA, auto"} <= kept[name].keys():
            pairs = zip(kept[name]["SPAM-PPA, auto"]["rounds"], kept[name]["FedAvg"]["rounds"], strict=True)
            ratios = [f"{ours / theirs:.2f}" if np.isfinite(theirs) else "-" for ours, theirs in pairs]
            print(f"  auto over FedAvg: {' '.join(ratios)}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"manifest": records.manifest(), "tasks": kept}, file, indent=1)


if __name__ == "__main__":
    main()
