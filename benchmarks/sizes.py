"""What padding costs where clients differ much in size, and what sizes of their own save.

    python benchmarks/sizes.py [--clients 1000] [--cohort 20] [--rounds 5] [--chunk 5]

Softmax regression (784 x 62), clients of log-normal size, whole-batch gradients. SPAM-PP asks a cohort for gradients
and one client for a prox of 20 steps, SPAM-PPA asks all of the cohort for it. Once with every client padded to the
largest, once each to the next of a few capacities, in turns; the best turn of each.
"""

import argparse
import dataclasses

import jax
import numpy as np

from fedspam import Ragged, simulate, spam_pp, spam_ppa
from fedspam.models import softmax_regression
from fedspam.solvers import GradientDescent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--chunk", type=int)
    flags = parser.parse_args()

    random = np.random.default_rng(0)
    sizes = np.clip(random.lognormal(4.0, 1.0, flags.clients).astype(int), 1, 1000)
    rows = {
        "features": random.integers(0, 256, (sizes.sum(), 784), dtype=np.uint8),
        "label": random.integers(0, 62, sizes.sum()).astype(np.int32),
    }
    model = softmax_regression(784, 62)
    clients = Ragged.of_sizes(rows, sizes, model.loss)
    solver = GradientDescent(steps=20, local_rate=0.05)
    print(f"{flags.clients} clients of {sizes.min()} to {sizes.max()} rows, {sizes.mean():.0f} on average; capacities "
          f"{clients.capacities}; cohort {flags.cohort}; {jax.devices()[0].device_kind}\n")  # fmt: skip
    print("| method | ms per round, all padded alike | by size | times as fast | compile s, alike | by size |")
    print("|---|---|---|---|---|---|")
    for name, method in (
        ("SPAM-PP", spam_pp(flags.cohort, 1.0, 0.3, solver=solver)),
        ("SPAM-PPA", spam_ppa(flags.cohort, 1.0, 0.3, solver=solver)),
    ):
        best, compiling = [np.inf, np.inf], [0.0, 0.0]
        for _ in range(flags.turns):
            for which, each in enumerate((dataclasses.replace(clients, capacities=()), clients)):
                options = {"rounds": flags.rounds, "record": (), "chunk": flags.chunk}
                run = simulate(method, each, model.init(0), key=0, **options)
                compiling[which] = max(compiling[which], run.compile_seconds)
                best[which] = min(best[which], 1e3 * run.run_seconds / flags.rounds)
        print(f"| {name} | {best[0]:.3g} | {best[1]:.3g} | {best[0] / best[1]:.2f} | {compiling[0]:.2g} | "
              f"{compiling[1]:.2g} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
