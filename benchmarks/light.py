"""Installed size and resident memory of clients: with JAX, with PyTorch alone, with NumPy alone.

    python benchmarks/light.py                       # makes three environments with pip; 2.5 GB, some minutes
    python benchmarks/light.py --kinds numpy         # only some of them
    python benchmarks/light.py --keep /tmp/clients   # environments that can be used again

Each environment is empty at first and holds what pip installs with the versions of constraints.txt: `fedspam[flower]`
for JAX (without Ray, which only simulations need), `fedspam-client` for the others, and PyTorch from the index of pip.
*Beyond PyTorch* is what a site installs that has PyTorch already. A process of each kind then answers the two messages
of a round of SPAM-PP on a linear model of 1,000 floats, 20 times, with one thread. It reports its resident memory,
after the imports and at its peak, and the milliseconds per round: in the first, in which JAX compiles, and later.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLOATS, ROWS = 1000, 64
TORCH = "torch==2.13.0"
FLOWER = "flwr>=1.41,<1.43"
WANTED = {"jax": [str(ROOT), FLOWER], "torch": [f"{ROOT / 'client'}"], "numpy": [f"{ROOT / 'client'}"]}

WORKS = f"""
import sys, jax.numpy as jnp
from fedspam import spam_pp
from fedspam.flower import export_works
from fedspam.solvers import GradientDescent
method = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(5, smoothness=1.0))
export_works(sys.argv[1], method, {{"weight": jnp.zeros((1, {FLOATS}))}})
"""
DATA = f"""
import resource, sys, json, time, numpy as np
rows = np.random.default_rng(0).normal(size=({ROWS}, {FLOATS})).astype("f4") / {FLOATS} ** 0.5, np.ones({ROWS}, "f4")
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
"""
CLIENTS = {
    "jax": """
import jax, jax.numpy as jnp
from fedspam import spam_pp
from fedspam.flower import client_app, clients_with
from fedspam.solvers import GradientDescent
method = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(5, smoothness=1.0))
def loss(params, rows):
    return 0.5 * (rows[0] @ params["weight"][0] - rows[1]) ** 2
app = client_app(clients_with(loss, lambda id: rows), method, {"weight": jnp.zeros((1, rows[0].shape[1]))})
""",
    "torch": """
import torch
import fedspam_client as light
module = torch.nn.Linear(rows[0].shape[1], 1, bias=False)
loss = lambda predict, features, label: 0.5 * ((predict(features)[:, 0] - label) ** 2).mean()
client = light.torch_client(module, loss, lambda id: tuple(map(torch.from_numpy, rows)))
app = light.client_app(client, sys.argv[1])
""",
    "numpy": """
import fedspam_client as light
def loss(params, rows):
    off = rows[0] @ params["weight"][0] - rows[1]
    return 0.5 * np.mean(off**2), {"weight": (off @ rows[0])[None] / len(off)}
app = light.client_app(light.numpy_client(loss, lambda id: rows), sys.argv[1])
""",
}
ASK = """
imported = resident()
import flwr.app as flower, safetensors.numpy
from flwr.supercore.task_identity import TaskIdentity
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
context = flower.Context(1, 1, {"partition-id": 0, "num-partitions": 1}, flower.RecordDict(), {})
x, zero = np.zeros((1, rows[0].shape[1]), "f4"), np.uint32(0)
facts = {"@client": zero, "@round": zero, "@key": np.zeros(2, np.uint32)}
times = []
for round in range(20):
    for label, fields in {
        "difference": {"x.weight": x, "x_prev.weight": x, "fresh_weight": np.float32(0.3)},
        "prox": {"g.weight": x + 1, "step_size": np.float32(0.5), "x.weight": x},
    }.items():
        head = {"schema": sys.argv[2], "run": "a", "phase": "round", "exchange": label, "whole": True,
                "memory": 0, "settled": 0, "becomes": 1}
        data = safetensors.numpy.save({name: np.asarray(value) for name, value in {**facts, **fields}.items()})
        fields = flower.ArrayRecord({"fields": flower.Array("uint8", (len(data),), "safetensors", data)})
        records = {"arrays": fields, "fedspam": flower.ConfigRecord(head)}
        begin = time.perf_counter()
        reply = app(flower.Message(flower.RecordDict(records), 1, f"train.{label}"), context)
        times.append(1e3 * (time.perf_counter() - begin))
        assert reply.content.array_records, dict(reply.content["fedspam"])
moved = safetensors.numpy.load(reply.content["arrays"]["fields"].data)["reply.x.weight"]
print(json.dumps({
    "imported": imported, "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "first": sum(times[:2]),
    "later": 2 * float(np.median(times[2:])), "answer": float(np.linalg.norm(moved)), "jax": "jax" in sys.modules,
}))
"""


def run(*command: object) -> str:
    """The output of a command, which must succeed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"JAX_PLATFORMS": "cpu", "OMP_NUM_THREADS": "1"}
    words = [str(word) for word in command]
    found = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if found.returncode:
        sys.exit(f"failed with {found.returncode}: {' '.join(words)[:200]}\n{found.stderr[-2000:]}")
    return found.stdout


def megabytes(folder: Path) -> float:
    """What the packages of an environment take on the disk, without pip itself."""
    packages = next(folder.glob("lib/python3*/site-packages"))
    installers = ("pip", "setuptools", "_distutils_hack")
    own = [path for path in packages.iterdir() if path.name.split("-")[0] not in installers]
    files = (path for part in own for path in ([part] if part.is_file() else part.rglob("*")) if path.is_file())
    return sum(path.stat().st_size for path in files) / 1e6


def installed(folder: Path, wanted: list[str]) -> Path:
    """The Python of an environment with these packages."""
    python = folder / "bin" / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", folder)
    options = ("--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(python, "-m", "pip", "install", *options, *wanted)
    return python


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="+", choices=tuple(WANTED), default=list(WANTED))
    parser.add_argument("--keep", type=Path, help="a folder for the environments, which stay there")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder, works = options.keep or Path(scratch), Path(scratch) / "spam_pp.works"
        print(f"Python {platform.python_version()}, {platform.machine()}, a model of {FLOATS:,} floats\n")
        subprocess.run([sys.executable, "-c", WORKS, str(works)], check=True)
        data = works.read_bytes()
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        schema = json.loads(header["__metadata__"]["works"])["schema"]
        columns = (
            "installed, MB",
            "PyTorch, MB",
            "beyond PyTorch, MB",
            "resident, MB",
            "peak, MB",
            "first, ms",
            "later, ms",
        )
        print(f"| client | {' | '.join(columns)} |")
        print("|---|---:|---:|---:|---:|---:|---:|---:|")
        for kind in options.kinds:
            torch, note = 0.0, folder / kind / "pytorch-alone.json"
            if kind == "torch":
                if not note.exists():
                    installed(folder / kind, [TORCH])
                    note.write_text(json.dumps(megabytes(folder / kind)))
                torch = json.loads(note.read_text())
            python = installed(folder / kind, WANTED[kind])
            size = megabytes(folder / kind)
            found = json.loads(run(python, "-c", DATA + CLIENTS[kind] + ASK, works, schema))
            assert found["jax"] == (kind == "jax"), f"the client of kind {kind} is not what it should be"
            memory = (f"{found[name] / 1e6:,.0f}" for name in ("imported", "peak"))
            spent = (f"{found['first']:,.0f}", f"{found['later']:.1f}")
            row = (kind, f"{size:,.0f}", f"{torch:,.0f}", f"{size - torch:,.0f}", *memory, *spent)
            print("| " + " | ".join(row) + " |", flush=True)
            print(f"  answer {found['answer']:.9f}", file=sys.stderr)
            assert kind == "jax" or size - torch < 400, "a client without JAX must stay below 400 MB beyond PyTorch"


if __name__ == "__main__":
    main()
