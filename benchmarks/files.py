"""A million clients in files: rounds per second against the same clients in memory, and memory over many rounds.

    python benchmarks/files.py [--clients 1000000] [--rows 10] [--rounds 10000] [--folder /tmp]

Softmax regression on images of 28 x 28 bytes with 62 classes, FedAvg with 5 local steps on 5 rows. The files are those
of `fedspam.datasets.write_mapped`: 7.9 GB for a million clients of ten rows on average. They are deleted at the end.
The rows of the clients that the next rounds draw are read while the present rounds run.

- Throughput: cohorts of 50, in files and in memory, each in a process of its own, in turns; the best of the repeats.
  In memory there are as many clients as fit (--in-memory): the cost of a round hardly depends on their number.
- Memory: cohorts of 10 over --rounds rounds. Private memory is what the process holds apart from pages of files, which
  the system takes back when it needs them.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fedspam import simulate
from fedspam.datasets import open_mapped, write_mapped
from fedspam.methods import fedavg
from fedspam.problems import SoftmaxLoss
from fedspam.simulation import Keep
from fedspam.simulation.host_data import Stored

PIXELS, CLASSES, BATCH, STEPS, RATE = 784, 62, 5, 5, 0.05
COHORT, SMALL_COHORT, WINDOW = 50, 10, 50
BLOCK = 10_000  # clients drawn at a time


def loss(params, rows):
    """Softmax regression; pixels become numbers only when they are used."""
    images = rows["features"].astype(jnp.float32) / 255
    return SoftmaxLoss(0.0)(params, {"features": images, "label": rows["label"]})


def clients(count: int, rows: int):
    """Clients with half as many to one and a half times as many rows."""
    random = np.random.default_rng(0)
    for begin in range(0, count, BLOCK):
        sizes = random.integers(max(1, rows // 2), rows + rows // 2 + 1, min(BLOCK, count - begin))
        images = np.frombuffer(random.bytes(int(sizes.sum()) * PIXELS), np.uint8).reshape(-1, PIXELS)
        labels = random.integers(0, CLASSES, len(images)).astype(np.int32)
        ends = np.cumsum(sizes)
        for number, (first, last) in enumerate(zip(ends - sizes, ends, strict=True)):
            yield str(begin + number), {"features": images[first:last], "label": labels[first:last]}


def population(kind: str, folder: Path, in_memory: int):
    data = open_mapped(folder)
    if kind == "files":
        return Stored.of(data, loss, batch=BATCH, window=WINDOW)
    sizes = data.sizes[:in_memory]
    rows = int(sizes.sum())
    part = type(data)(data.clients[:in_memory], {n: np.array(c[:rows]) for n, c in data.examples.items()}, sizes)
    return part.population(loss, batch=BATCH)


def throughput(kind: str, folder: Path, in_memory: int, rounds: int) -> None:
    """Seconds per round: a long run less a short one, both compiled already."""
    held, start = population(kind, folder, in_memory), jnp.zeros((PIXELS, CLASSES), jnp.float32)
    method = fedavg(COHORT, local_steps=STEPS, local_rate=RATE)

    def seconds(rounds: int, key: int) -> tuple[float, float]:
        began, busy = time.perf_counter(), time.process_time()
        simulate(method, held, start, rounds=rounds, key=key, record=(), keep=Keep(every=WINDOW))
        return time.perf_counter() - began, time.process_time() - busy

    seconds(WINDOW, 0)  # compiles
    short, long = seconds(WINDOW, 1), seconds(WINDOW + rounds, 2)
    wall, cpu = ((b - a) / rounds for a, b in zip(short, long, strict=True))
    print(json.dumps({"wall": wall, "cpu": cpu, "clients": held.size}))


def memory(folder: Path, rounds: int) -> None:
    """Private memory after every tenth of the rounds."""
    held, start = population("files", folder, 0), jnp.zeros((PIXELS, CLASSES), jnp.float32)
    seen = []

    def observe(done, rows, probes):
        if done % max(1, rounds // 10) == 0:
            seen.append((done, private_memory()))

    began = time.perf_counter()
    method = fedavg(SMALL_COHORT, local_steps=STEPS, local_rate=RATE)
    simulate(method, held, start, rounds=rounds, key=3, record=(), keep=Keep(every=WINDOW), observe=observe)
    print(json.dumps({"seen": seen, "seconds": time.perf_counter() - began}))


def private_memory() -> int:
    """Bytes in memory that are no pages of a file."""
    (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return 1024 * int(line.split()[1])


def child(*words: object) -> dict:
    command = [sys.executable, __file__, "--child", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    if done.returncode:
        sys.exit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=10**6)
    parser.add_argument("--rows", type=int, default=10, help="per client, on average")
    parser.add_argument("--rounds", type=int, default=10_000, help="of the run whose memory is measured")
    parser.add_argument("--timed", type=int, default=500, help="rounds that are timed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--in-memory", type=int, default=10**5, help="clients that are held in memory")
    parser.add_argument("--folder", type=Path, help="where the files are written (the system's folder)")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        kind, folder, *numbers = flags.child
        if kind == "memory":
            memory(Path(folder), int(numbers[0]))
        else:
            throughput(kind, Path(folder), *map(int, numbers))
        return
    with tempfile.TemporaryDirectory(dir=flags.folder) as base:
        folder, began = Path(base) / "clients", time.perf_counter()
        write_mapped(clients(flags.clients, flags.rows), folder)
        size = sum(path.stat().st_size for path in folder.iterdir())
        print(f"{flags.clients:,} clients, {size / 1e9:.2f} GB, written in {time.perf_counter() - began:.0f} s\n")
        best = {}
        for _ in range(flags.repeats):
            for kind in ("memory-held", "files"):
                found = child(kind, folder, flags.in_memory, flags.timed)
                if kind not in best or found["wall"] < best[kind]["wall"]:
                    best[kind] = found
        print(
            f"| clients are in | clients | ms per round | rounds/s | CPU ms per round | of memory |\n|---|{'---:|' * 5}"
        )
        for kind, found in best.items():
            name, ratio = kind.partition("-")[0], found["wall"] / best["memory-held"]["wall"]
            print(
                f"| {name} | {found['clients']:,} | {1e3 * found['wall']:.2f} | {1 / found['wall']:.0f} "
                f"| {1e3 * found['cpu']:.2f} | {ratio:.2f} |"
            )
        found = child("memory", folder, flags.rounds)
        print(f"\n| rounds | private memory, MB |\n|---:|---:|  <!-- {found['seconds']:.0f} s -->")
        for done, held in found["seen"]:
            print(f"| {done:,} | {held / 1e6:.0f} |")


if __name__ == "__main__":
    main()
