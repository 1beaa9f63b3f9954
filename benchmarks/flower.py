"""Seconds per exchange over Flower: ours against Flower's own FedAvg, on the same model and machine, in one run.

    python benchmarks/flower.py                       # a SuperLink and three SuperNodes on 127.0.0.1
    python benchmarks/flower.py --simulation          # Flower's simulation under Ray
    python benchmarks/flower.py --floats 1000 1000000 --rounds 6 --repeats 3
    python benchmarks/flower.py --scale 100 1000 10000 --rounds 10    # many nodes under Ray, cohorts of ten

Every client does the same work in all rows: local gradient steps on a softmax regression. FedAvg is Flower's strategy
with its own records; the other rows are `fedspam.flower.FedspamStrategy`. The clock runs from the end of one round to
the end of the next, so that all that a strategy does is in it; the first round, in which clients compile, is left out.
SPAM-PP has two exchanges per round, and its seconds are divided by two.

With `--scale` the table also has the seconds from `start` to the first message of training, and to the end of the first
round, compilation included. Behind a mean of runs stand the least and the most of them; the last column is that of the
mean seconds per exchange of each run.
"""

import argparse
import itertools
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
LONGEST = 600  # seconds after which a run is ended, and the benchmark with it

PROJECT = """
[project]
name = "overhead"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedspam"
[tool.flwr.app.components]
serverapp = "overhead.server:app"
clientapp = "overhead.client:app"
[tool.flwr.app.config]
strategy = "fedavg"
floats = 1000
rounds = 3
nodes = 3
cohort = 3
told = ""
"""
TASK = """
import functools
import jax, jax.numpy as jnp, numpy as np
from fedspam.methods import fedavg, spam_pp
from fedspam.clients import DataOracle
from fedspam.solvers import GradientDescent

STEPS, STEP = 2, 0.1

def first(floats):
    return {"kernel": jnp.zeros((floats // 10, 10), jnp.float32)}

def loss(params, rows):
    scores = rows["features"] @ params["kernel"]
    own = jnp.take_along_axis(scores, rows["label"][:, None], axis=1)[:, 0]
    return jnp.mean(jax.nn.logsumexp(scores, axis=1) - own)

@functools.cache
def data(id, floats):
    random = np.random.default_rng(id)
    features = random.standard_normal((64, floats // 10)).astype(np.float32) / np.float32(np.sqrt(floats // 10))
    return {"features": jnp.asarray(features), "label": jnp.asarray(random.integers(0, 10, 64))}

@jax.jit
def steps(params, rows):
    for _ in range(STEPS):
        params = jax.tree.map(lambda x, g: x - STEP * g, params, jax.grad(loss)(params, rows))
    return params

def method(name, cohort):
    if name == "spam_pp":
        return spam_pp(cohort, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(steps=STEPS, smoothness=1.0))
    return fedavg(cohort, STEPS, STEP)
"""
CLIENT = """
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from fedspam.flower import client_app, to_arrays, to_params
from fedspam.clients import DataOracle
from overhead.task import data, first, loss, method, steps

def rows(context):
    return data(int(context.node_config["partition-id"]), int(context.run_config["floats"]))

app = client_app(
    lambda context: DataOracle(rows(context), loss=loss),
    lambda context: method(context.run_config["strategy"], context.run_config["cohort"]),
    lambda context: first(context.run_config["floats"]),
)

@app.train()
def train(message, context):
    params = steps(to_params(message.content["arrays"]), rows(context))
    content = {"arrays": to_arrays(params), "metrics": MetricRecord({"num-examples": 64})}
    return Message(RecordDict(content), reply_to=message)
"""
SERVER = """
import json, time
from pathlib import Path
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from fedspam.flower import FedspamStrategy, to_arrays
from overhead.task import first, method

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    nodes, cohort, params = config["nodes"], config["cohort"], first(config["floats"])
    if config["strategy"] == "flower":
        strategy = FedAvg(
            fraction_train=cohort / nodes, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=nodes
        )
    else:
        strategy = FedspamStrategy(method(config["strategy"], cohort), params, min_available_nodes=nodes)
    push, sent, clock = grid.push_messages, [], []

    def noted(messages):
        messages = list(messages)
        if messages and messages[0].metadata.message_type.startswith("train"):
            sent.append(time.time())
        return push(messages)

    grid.push_messages = noted
    began = time.time()
    strategy.start(
        grid, to_arrays(params), num_rounds=config["rounds"], timeout=300,
        evaluate_fn=lambda round, arrays: clock.append(time.time()),
    )
    Path(config["told"]).write_text(json.dumps({"clock": clock, "message": sent[0] - began, "round": clock[1] - began}))
"""
ROUTES = {"flower": ("Flower's FedAvg", 1), "fedavg": ("fedspam, FedAvg", 1), "spam_pp": ("fedspam, SPAM-PP", 2)}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def prepare(folder: Path, port: int) -> dict[str, str]:
    app = folder / "app" / "overhead"
    app.mkdir(parents=True)
    (app.parent / "pyproject.toml").write_text(PROJECT)
    for name, text in {"__init__": "", "task": TASK, "client": CLIENT, "server": SERVER}.items():
        (app / f"{name}.py").write_text(text)
    (folder / "home").mkdir()
    (folder / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    return {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
        "FLWR_HOME": str(folder / "home"),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        "RAY_USAGE_STATS_ENABLED": "0",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


def start(command: list[str], environment: dict[str, str], folder: Path, name: str) -> subprocess.Popen:
    with open(folder / f"{name}.log", "w") as log:
        return subprocess.Popen(
            [str(BIN / command[0]), *command[1:]],
            env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip


def stop(processes: list[subprocess.Popen]) -> None:
    """End each with what it has started; who does not listen within a second is killed."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, how)
        time.sleep(1)
    for process in processes:
        process.wait()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as answer:
            return answer.status == 200
    except OSError:
        return False


def measure(
    folder: Path, environment: dict[str, str], strategy: str, floats: int, nodes: int, flags: argparse.Namespace
) -> tuple[list[float], float, float]:
    """The seconds of each round but the first; and from the start to the first message and the end of that round."""
    told = folder / f"{strategy}-{floats}.json"
    config = {
        "strategy": strategy,
        "floats": floats,
        "rounds": flags.rounds + 1,
        "nodes": nodes,
        "cohort": 10 if flags.scale else nodes,
        "told": str(told),
    }
    command = ["flwr", "run", "app", "here", "--stream", "--run-config"]
    command.append(" ".join(f"{name}={json.dumps(value)}" for name, value in config.items()))
    if flags.simulation:
        command += ["--federation-config", f"num-supernodes={nodes} client-resources-num-cpus=1"]
    process = start(command, environment, folder, "flwr")
    try:
        process.wait(LONGEST)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    if not told.exists():
        raise SystemExit(f"{strategy}: the run failed\n" + (folder / "flwr.log").read_text()[-3000:])
    found = json.loads(told.read_text())
    told.unlink()
    return (
        [after - before for before, after in itertools.pairwise(found["clock"][1:])],
        found["message"],
        found["round"],
    )


def compare(folder: Path, environment: dict[str, str], flags: argparse.Namespace) -> None:
    """Print the seconds per exchange, by the number of floats."""
    print("| floats | strategy | seconds per exchange | median | least | most |")
    print("|---:|---|---:|---:|---:|---:|")
    for floats in flags.floats:
        times: dict[str, list[float]] = {strategy: [] for strategy in ROUTES}
        for strategy in [*ROUTES] * flags.repeats:  # in turns: whatever else the machine does, it does to all
            times[strategy] += measure(folder, environment, strategy, floats, flags.nodes, flags)[0]
        for strategy, (title, exchanges) in ROUTES.items():
            print(f"| {floats:,} | {title} | {_numbers([each / exchanges for each in times[strategy]])} |", flush=True)


def scale(folder: Path, environment: dict[str, str], flags: argparse.Namespace) -> None:
    """Print the seconds until the first round and per exchange, by the number of nodes."""
    print("| nodes | strategy | first message | first round | seconds per exchange | median | least | most | of runs |")
    print("|---:|---|---:|---:|---:|---:|---:|---:|---|")
    for nodes in flags.scale:
        found = {strategy: [] for strategy in ROUTES}
        for strategy in [*ROUTES] * flags.repeats:
            found[strategy].append(measure(folder, environment, strategy, flags.floats[0], nodes, flags))
        for strategy, (title, exchanges) in ROUTES.items():
            seconds = [each / exchanges for rounds, _, _ in found[strategy] for each in rounds]
            message, round = (_scatter(run[part] for run in found[strategy]) for part in (1, 2))
            runs = _scatter(statistics.mean(rounds) / exchanges for rounds, _, _ in found[strategy])
            print(f"| {nodes:,} | {title} | {message} | {round} | {_numbers(seconds)} | {runs} |", flush=True)


def _numbers(seconds: list[float]) -> str:
    numbers = (statistics.mean(seconds), statistics.median(seconds), min(seconds), max(seconds))
    return " | ".join(f"{each:.2f}" for each in numbers)


def _scatter(values: Iterable[float]) -> str:
    """The mean of the runs, and between which values they lie."""
    found = list(values)
    return f"{statistics.mean(found):.2f} ({min(found):.2f} to {max(found):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--floats", type=int, nargs="+", default=[1000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--simulation", action="store_true")
    parser.add_argument("--scale", type=int, nargs="+", default=[], metavar="NODES")
    flags = parser.parse_args()
    flags.simulation = flags.simulation or bool(flags.scale)
    processes: list[subprocess.Popen] = []
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        environment = prepare(folder, port)
        try:
            link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
            link += ["--disable-runtime-dependency-installation", *(["--simulation"] if flags.simulation else [])]
            processes.append(start(link, environment, folder, "superlink"))
            end = time.monotonic() + 60
            while not healthy(port):
                if time.monotonic() > end:
                    raise SystemExit((folder / "superlink.log").read_text()[-3000:])
                time.sleep(0.1)
            for id in range(0 if flags.simulation else flags.nodes):
                node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
                node += ["--port", str(free_port()), "--node-config", f"partition-id={id} num-partitions={flags.nodes}"]
                processes.append(start(node, environment, folder, f"supernode{id}"))
            engine = "simulation under Ray" if flags.simulation else "deployment on 127.0.0.1"
            clients = "cohorts of 10" if flags.scale else f"{flags.nodes} clients"
            print(f"{engine}, {clients}, {os.cpu_count()} cores, Python {platform.python_version()}\n")
            (scale if flags.scale else compare)(folder, environment, flags)
        finally:
            stop(processes)


if __name__ == "__main__":
    main()
