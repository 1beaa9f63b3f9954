"""What accuracy costs in megabytes: `auto`, which is given a cohort size alone, against tuned FedAvg and SCAFFOLD.

    python examples/megabytes.py [--rounds 60] [--seeds 5] [--out megabytes.csv]

105 writers train a small network on handwriting (FEMNIST). It is tested on other images of the same writers. FedAvg and
SCAFFOLD take the best of 12 settings (10, 30 or 60 local steps, four rates): the one with the highest mean accuracy
over the rounds of two tuning runs. The runs that are reported have other seeds. It takes ten minutes on two cores.
"""

import argparse
import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedspam import auto, datasets, fedavg, simulate_many
from fedspam.methods import scaffold
from fedspam.models import mlp

STEPS, RATES = (10, 30, 60), (0.1, 0.3, 1.0, 3.0)
RIVALS: dict[str, Callable[[int, int, float], Any]] = {"FedAvg": fedavg, "SCAFFOLD": scaffold}
COLUMNS = ("method", "setting", "seed", "round", "megabytes", "accuracy")


def main(
    rounds: int = 60,
    cohort: int = 20,
    seeds: int = 5,
    writers: int | None = None,
    hidden: int = 64,
    steps: tuple[int, ...] = STEPS,
    rates: tuple[float, ...] = RATES,
    out: str | None = None,
) -> list[dict[str, Any]]:
    # 1. Images by writer, a network, and its accuracy on all held-out images after every round.
    data = datasets.read_femnist()
    train, test, _ = (part.take(part.clients[:writers]) for part in data)
    model = mlp(784, 62, hidden=(hidden,))
    clients = train.population(model.loss, batch=20)
    held_out = {name: jax.numpy.asarray(rows) for name, rows in test.examples.items()}
    probe = jax.tree_util.Partial(lambda rows, params: {"accuracy": model.accuracy(params, rows)}, held_out)

    def run(methods: Any, keys: range) -> Any:
        return simulate_many(methods, clients, model.init(0), rounds=rounds, keys=keys, probe=probe, record=())

    # 2. Tune the rivals on seeds of their own. Settings that differ in their rate alone share a compiled program.
    chosen = {"auto": ("", auto(cohort))}
    for name, make in RIVALS.items():
        best = -1.0
        for local_steps in steps:
            found = run([make(cohort, local_steps, rate) for rate in rates], range(100, 102)).probes["accuracy"]
            for rate, score in zip(rates, np.nan_to_num(found).mean((1, 2)), strict=True):
                if score > best:
                    best = score
                    chosen[name] = (f"{local_steps} steps, rate {rate:g}", make(cohort, local_steps, rate))
        print(f"{name}: {chosen[name][0]}", flush=True)

    # 3. Run each with the setting that was chosen, on other seeds. Megabytes are those of all clients, both ways.
    rows: list[dict[str, Any]] = []
    for name, (setting, method) in chosen.items():
        found = run(method, range(seeds))
        sent = np.cumsum(found.rows["bytes_up"] + found.rows["bytes_down"], axis=-1).reshape(seeds, rounds) / 1e6
        accuracy = found.probes["accuracy"].reshape(seeds, rounds + 1)
        for seed in range(seeds):
            paid = (0.0, *sent[seed])
            rows += [
                dict(zip(COLUMNS, (name, setting, seed, k, round(paid[k], 3), round(float(score), 4)), strict=True))
                for k, score in enumerate(accuracy[seed])
            ]
    if out is not None:
        with Path(out).open("w", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    for name in chosen:
        last = [row["accuracy"] for row in rows if row["method"] == name and row["round"] == rounds]
        print(f"{name:9} accuracy after {rounds} rounds: {min(last):.3f} to {max(last):.3f}")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Accuracy against megabytes")
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", help="write the curves here, as CSV")
    main(**vars(parser.parse_args()))
