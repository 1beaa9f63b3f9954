"""Methods of every kind over real processes, beside `simulate` with the same seed.

    python benchmarks/parity.py                                      # eighteen runs, a quarter of an hour on two cores
    python benchmarks/parity.py --kinds "client state" PyTorch --rounds 3

A SuperLink and three SuperNodes on 127.0.0.1, in JAX's default precision, float32. Three methods each that need one
exchange per round, several exchanges, and memory at clients; and over clients in PyTorch, clients without JAX, and an
app as users of Flower write it. The largest difference is that of the parameters after the last round, in absolute
value; bytes are equal if every round is charged what the simulation charges. Apps of others have no such bytes: their
messages are Flower's own.
"""

import argparse
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).parent))
from parity_app.data import CLIENTS, rows
from parity_app.task import METHODS, SEED, first, loss

import fedspam
from fedspam import simulate
from fedspam.clients import Ragged
from fedspam.flower import export_works
from fedspam.simulation import records
from processes import closing
from world import LONGEST, World

HERE = Path(__file__).parent
APPS = {
    "one exchange": "jax", "several exchanges": "jax", "client state": "jax", "PyTorch": "torch",
    "without JAX": "light", "apps of others": "plain",
}  # fmt: skip
COSTS = ("bytes_down", "bytes_up", "floats_down", "floats_up")
PROJECT = """
[project]
name = "parity"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedspam"
[tool.flwr.app.components]
serverapp = "parity_app.server:app"
clientapp = "parity_app.{app}_client:app"
[tool.flwr.app.config]
kind = ""
method = ""
rounds = 2
timeout = 300.0
folder = ""
"""


class Parity(NamedTuple):
    """A run over processes beside the simulation."""

    kind: str
    method: str
    exchanges: int  # per round, as the simulation counts them
    difference: float
    same_bytes: bool | None  # None where the simulation does not know them
    precision: str
    seconds: float


class Federation(World):
    """A SuperLink and SuperNodes, with one app for each kind of client."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        for app in dict.fromkeys(APPS.values()):
            place = folder / app
            shutil.copytree(HERE / "parity_app", place / "parity_app", ignore=shutil.ignore_patterns("__pycache__"))
            (place / "pyproject.toml").write_text(PROJECT.format(app=app))
        for name, make in METHODS["without JAX"].items():
            export_works(folder / "light" / "parity_app" / f"{name}.json", make(), first())

    def played(self, kind: str, name: str, rounds: int) -> Parity:
        """Run a method, which must end well, and compare it with the simulation."""
        run, began = f"{APPS[kind]}-{name}-{kind.split()[0]}", time.monotonic()
        self.begin(run, app=APPS[kind], kind=kind, method=name, rounds=rounds)
        self.end()
        seconds = time.monotonic() - began
        _, found, _ = records.read(self.folder / run)
        params = fedspam.load(self.folder / run).params
        expected = simulated(kind, name, rounds)
        differences = (np.max(np.abs(np.asarray(params[each]) - value)) for each, value in expected.params.items())
        same = all(np.array_equal(found[cost], expected.rows[cost]) for cost in COSTS)
        exchanges = sum(column.endswith(".asked") for column in found)
        precision = " ".join(sorted({str(np.asarray(value).dtype) for value in jax.tree.leaves(params)}))
        known = None if kind == "apps of others" else same
        return Parity(kind, name, exchanges, float(max(differences)), known, precision, seconds)


def simulated(kind: str, name: str, rounds: int) -> fedspam.Run:
    clients = Ragged.of([rows(client) for client in range(CLIENTS)], loss)
    return simulate(METHODS[kind][name](), clients, first(), rounds=rounds, key=SEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--rounds", type=int, default=2)
    flags = parser.parse_args()
    print(
        f"deployment on 127.0.0.1, {CLIENTS} clients, {os.cpu_count()} cores, Python {platform.python_version()}, ",
        end="",
    )
    print(f"{flags.rounds} rounds; a run is ended after {LONGEST} s\n")
    print("| clients and methods | method | exchanges per round | largest difference | bytes | precision | seconds |")
    print("|---|---|---:|---:|---|---|---:|", flush=True)
    with tempfile.TemporaryDirectory() as folder, closing(Federation(Path(folder))) as federation:
        federation.federation()
        for kind in flags.kinds:
            for name in METHODS[kind]:
                found = federation.played(kind, name, flags.rounds)
                said = {None: "Flower's own", True: "equal", False: "DIFFER"}[found.same_bytes]
                print(
                    f"| {kind} | `{name}` | {found.exchanges} | {found.difference:.1e} | {said} | {found.precision} | "
                    f"{found.seconds:.0f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
