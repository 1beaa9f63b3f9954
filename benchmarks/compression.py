"""What compression costs and saves: rounds, exchanges and bytes to a target at 32, 8 and 4 bits.

    python benchmarks/compression.py [--problems a9a har] [--methods spam_pp] [--ways "8 up"] [--seeds 3] [--json FILE]
    python benchmarks/compression.py --methods ef21_pp dasha_pp --ways 32 "top tenth up" "random tenth up" --rounds 600

FedAvg and SPAM-PP on two problems of `fedspam compare`: logistic regression on a9a (123 numbers, 10 of 100 clients per
round) and softmax regression on HAR (744 numbers, 6 of 30 persons per round). Each method has the best of its own
grid of 12 settings at 32 bits, judged on the very seeds by the rounds to the tightest target that it reaches. The other
rows have the same setting, so that nothing is tuned for a codec. Targets are relative gradient norms; the module
`fedspam.app.arrival` says when a run arrives. A cell is the median over the seeds. The start is counted in bytes and
exchanges, not in rounds.

EF21-PP and DASHA-PP, whose step sizes depend on the codec, are tuned for each row instead.

At last, three rounds of both methods run over Flower's grid in this process, and the bytes of its arrays are compared
with the ledger's.
"""

import argparse
import json
import logging
import time

import jax
import numpy as np

from fedspam import simulate, simulate_many
from fedspam.app.arrival import arrivals
from fedspam.app.named_problems import PROBLEMS, load
from fedspam.federation.codecs import Codecs
from fedspam.methods import METHODS
from fedspam.simulation import records

WAYS = {
    "32": {},
    "8 up": {"up": "quantize-8"},
    "8 up and down": {"up": "quantize-8", "down": "quantize-8"},
    "4 up": {"up": "quantize-4"},
    "4 up and down": {"up": "quantize-4", "down": "quantize-4"},
    "4 up, 8 down": {"up": "quantize-4", "down": "quantize-8"},
    "natural up": {"up": "natural"},
    "TernGrad up": {"up": "terngrad"},
    "top tenth up": {"up": "topk-0.1"},
    "random tenth up": {"up": "randk-0.1"},
}
NAMES = {"fedavg": "FedAvg", "spam_pp": "SPAM-PP"}
MADE = {"ef21_pp": "EF21-PP", "dasha_pp": "DASHA-PP"}  # for compression


def settings(name, problem, cohort, codecs):
    """The grid of a method, in groups that differ in numbers only."""
    groups, up = {}, Codecs.of(codecs).named.get("up")
    known = {"omega": up.omega(problem.start)} if name == "dasha_pp" and up is not None and up.unbiased else {}
    for setting in METHODS[name].grid(problem.scales(cohort)):
        method = METHODS[name].build(cohort_size=cohort, **setting, **known)
        groups.setdefault(jax.tree.structure(method), []).append((method, setting))
    return groups.values()


def curves(methods, problem, rounds, seeds, codecs):
    return simulate_many(
        methods, problem.population, problem.start, rounds=rounds, keys=range(seeds), probe=problem.probe, codecs=codecs
    )


def tuned(name, problem, cohort, rounds, seeds, targets, codecs=None):
    """The setting with the fewest rounds to the tightest target that any setting reaches."""
    found = []
    for group in settings(name, problem, cohort, codecs):
        run = curves([method for method, _ in group], problem, rounds, seeds, codecs)
        errors = run.probes["gradient"]
        medians = np.stack([np.median(arrivals(errors, target), axis=1) for target in sorted(targets)], axis=1)
        found += zip(map(tuple, medians), group, strict=True)
    return min(found, key=lambda each: each[0])[1]


def measure(name, method, problem, rounds, seeds, targets, codecs):
    """Rounds, exchanges, bytes and client gradients to every target, medians over the seeds."""
    began = time.perf_counter()
    run = curves([method], problem, rounds, seeds, codecs)
    errors, rows = run.probes["gradient"][0], {key: column[0] for key, column in run.rows.items()}
    start = {
        way: sum(exchange.cohort * getattr(exchange, f"bytes_{way}") for exchange in run.plan.start)
        for way in ("up", "down")
    }
    cells = []
    for target in targets:
        reached = arrivals(errors, target)
        paid = {"rounds": [], "exchanges": [], "up": [], "down": [], "gradients": []}
        for seed, count in enumerate(reached):
            total = lambda column, count=count, seed=seed: (
                np.inf if np.isinf(count) else float(rows[column][seed][: int(count)].sum())
            )
            paid["rounds"].append(count)
            paid["exchanges"].append(len(run.plan.start) + count * len(run.plan.round))
            paid["gradients"].append(total("gradients"))
            for way in ("up", "down"):
                paid[way].append(start[way] + total(f"bytes_{way}"))
        cells.append({key: float(np.median(values)) for key, values in paid.items()})
    return {"cells": cells, "last": float(np.median(errors[:, -1])), "seconds": time.perf_counter() - began}


def over_flower(name, method, problem, codecs, rounds=3):
    """The bytes of a run over Flower's grid, and of the same run in a simulation."""
    from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, clients_of, to_arrays

    logging.getLogger("flwr").setLevel(logging.ERROR)
    app = client_app(clients_of(problem.population), method, problem.start, codecs=codecs)
    strategy = FedspamStrategy(method, problem.start, codecs=codecs, min_available_nodes=problem.clients)
    result = strategy.start(LoopbackGrid(app, problem.clients), to_arrays(problem.start), rounds, 600.0)
    rows = [result.train_metrics_clientapp[k + 1] for k in range(rounds)]
    run = simulate(method, problem.population, problem.start, rounds=rounds, key=0, codecs=codecs)
    return {
        way: (sum(int(row[f"bytes_{way}"]) for row in rows), int(run.rows[f"bytes_{way}"].sum()))
        for way in ("up", "down")
    }


def shown(value, unit=1.0, form="{:.0f}"):
    return "-" if not np.isfinite(value) else form.format(value / unit)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", nargs="+", default=["a9a", "har"])
    parser.add_argument("--methods", nargs="+", default=list(NAMES), choices=[*NAMES, *MADE])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=150)
    parser.add_argument("--json")
    options = parser.parse_args()
    results = {}
    for title in options.problems:
        problem, known = load(title), PROBLEMS[title]
        targets = known.targets
        for name in options.methods:
            method, setting = tuned(name, problem, known.cohort, options.rounds, options.seeds, targets)
            print(f"\n{title}, {(NAMES | MADE)[name]} {setting}", flush=True)
            print("| bits | rounds | exchanges | kB up | kB down | client gradients | last |")
            print("|---|---|---|---|---|---|---|")
            for label in options.ways:
                if name in MADE and WAYS[label]:
                    again = (known.cohort, options.rounds, options.seeds, targets, WAYS[label])
                    method, setting = tuned(name, problem, *again)
                found = measure(name, method, problem, options.rounds, options.seeds, targets, WAYS[label])
                results[f"{title} {name} {label}"] = {**found, "setting": setting}
                line = lambda key, unit=1.0, found=found: " / ".join(shown(cell[key], unit) for cell in found["cells"])
                columns = (line("rounds"), line("exchanges"), line("up", 1e3), line("down", 1e3), line("gradients"))
                print(f"| {label} | {' | '.join(columns)} | {found['last']:.4f} |", flush=True)
            for label in ("8 up and down", "4 up and down") if name in NAMES else ():
                results[f"{title} {name} {label} over Flower"] = bytes_ = over_flower(
                    name, method, problem, WAYS[label]
                )
                print(f"bytes over Flower and in the ledger, three rounds at {label}: {bytes_}", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump({"manifest": records.manifest(), "results": results}, file, indent=1)


if __name__ == "__main__":
    main()
