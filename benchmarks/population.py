"""What a round costs with a thousand, a hundred thousand and ten million clients, and what memory they take.

    python benchmarks/population.py [--sizes 1000 100000 10000000] [--rounds 100] [--repeats 3]

Softmax regression, cohorts of 50, FedAvg with 5 local steps and SPAM-PP with 5. Three kinds of population:

- generated: a client's rows are made from its id when it is drawn; nothing is stored;
- ragged: all rows lie in the memory of the device, 1 to 3 a client;
- mapped: the same rows lie in a file, and those of the next rounds' clients are fetched while the present rounds run.

Every line is a process of its own. Its memory is what it holds after the runs, pages of mapped files apart, less what
the smallest generated population takes, and stands beside the bytes that the population stores in memory. Times are
those of all processors together, so that other work on the machine hardly counts: the difference between a long and a
short run that are both compiled already, the least of the repeats.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import Ragged, simulate, spam_pp
from fedspam._internal.trees import static, struct
from fedspam.clients import Generated, draw
from fedspam.methods import fedavg
from fedspam.problems import SoftmaxLoss
from fedspam.simulation.host_data import Stored
from fedspam.solvers import GradientDescent

COHORT, FEATURES, CLASSES = 50, 8, 4
LOSS = SoftmaxLoss(0.01)
METHODS = {
    "FedAvg": fedavg(COHORT, local_steps=5, local_rate=0.1),
    "SPAM-PP": spam_pp(COHORT, 1.0, 0.2, solver=GradientDescent(steps=5, local_rate=0.1)),
}


@struct
class Counted:
    """The first so many clients of an endless population."""

    endless: Generated
    size: int = static()

    def sample(self, key, count):
        return draw(key, count, self.size, replace=False)

    def client(self, id):
        return self.endless.client(id)


def made(key):
    features = jax.random.normal(key, (3, FEATURES), jnp.float32)
    return {"features": features, "label": jnp.argmax(features[:, :CLASSES], axis=1)}


def mean_loss(params, rows):
    return jnp.mean(LOSS(params, rows))


def build(kind: str, size: int, folder: str):
    """The population, and the bytes that it stores."""
    if kind == "generated":
        return Counted(Generated(made, mean_loss), size), 0
    random = np.random.default_rng(0)
    sizes = random.integers(1, 4, size)
    rows = int(sizes.sum())
    if kind == "ragged":
        features = random.standard_normal((rows, FEATURES), np.float32)
        examples = {"features": features, "label": np.argmax(features[:, :CLASSES], axis=1).astype(np.int32)}
        clients = Ragged.of_sizes(examples, sizes, LOSS)
        stored = sum(leaf.nbytes for leaf in jax.tree.leaves(clients))
        return clients, stored
    examples = {
        name: np.lib.format.open_memmap(Path(folder) / f"{name}.npy", "w+", kind, shape)
        for name, kind, shape in (("features", np.float32, (rows, FEATURES)), ("label", np.int32, (rows,)))
    }
    for begin in range(0, rows, 10**6):
        part = slice(begin, min(begin + 10**6, rows))
        examples["features"][part] = random.standard_normal((part.stop - begin, FEATURES), np.float32)
        examples["label"][part] = np.argmax(examples["features"][part, :CLASSES], axis=1)
    for column in examples.values():
        column.flush()
    examples = {name: np.load(Path(folder) / f"{name}.npy", mmap_mode="r") for name in examples}
    return Stored.of(SimpleNamespace(examples=examples, sizes=sizes), LOSS, window=100), 8 * size


def measure(kind: str, size: int, rounds: int, repeats: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        clients, stored = build(kind, size, folder)
        best = {}
        for name, method in METHODS.items():
            start = jnp.zeros((FEATURES, CLASSES), jnp.float32)
            seconds = lambda rounds: cpu_seconds(
                lambda: simulate(method, clients, start, rounds=rounds, key=0, record=())
            )
            seconds(rounds)  # compiles
            both = [(seconds(rounds), seconds(11 * rounds)) for _ in range(repeats)]
            best[name] = 1e6 * (min(long for _, long in both) - min(short for short, _ in both)) / (10 * rounds)
        print(json.dumps({"kind": kind, "size": size, "stored": stored, "held": private_memory(), **best}))


def cpu_seconds(work) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def private_memory() -> int:
    """Bytes in memory that are no pages of a file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**5, 10**7])
    parser.add_argument("--kinds", nargs="+", default=["generated", "ragged", "mapped"])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.one:
        measure(flags.one[0], int(flags.one[1]), flags.rounds, flags.repeats)
        return
    print("| population | clients | FedAvg, µs a round | SPAM-PP, µs a round | stored, MB | held beyond it, MB |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    base = None
    for kind in flags.kinds:
        for size in flags.sizes:
            command = [sys.executable, __file__, "--one", kind, str(size)]
            command += ["--rounds", str(flags.rounds), "--repeats", str(flags.repeats)]
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
            if done.returncode:
                sys.exit(done.stderr)
            found = json.loads(done.stdout.splitlines()[-1])
            base = found["held"] if base is None else base
            beyond = (found["held"] - base - found["stored"]) / 1e6
            print(
                f"| {kind} | {size:,} | {found['FedAvg']:.0f} | {found['SPAM-PP']:.0f} | {found['stored'] / 1e6:.0f} "
                f"| {beyond:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
