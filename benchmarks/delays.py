"""Seconds to a target where clients are slow: rounds that wait, that ask more clients, and that do not wait.

    python benchmarks/delays.py                       # simulated seconds, two kinds of delay
    python benchmarks/delays.py --processes wait      # a SuperLink and SuperNodes on 127.0.0.1 whose clients sleep
    python benchmarks/delays.py --processes ask-more  # one client more than needed, and the first replies count
    python benchmarks/delays.py --processes buffered  # four clients are busy, and no round waits for all of them

The simulation trains on quadratics of 500 clients, 10 replies per update. Every way gets the same local rates to choose
from and as many updates, and shows its best rate: the median over seeds of the simulated seconds until the gradient is
a hundredth of the first. Delays are independent of the clients and have the median 1 second; the heavy tail is Pareto's
with an infinite variance.

Over processes, FedAvg with two clients of six per round, which sleep as long as a Pareto's delay says. Each client
draws its own delays, the same in every run. The target is a tenth of the first gradient, and the seconds are those of
the exchanges, Flower's own included.
"""

import argparse
import json
import os
import platform
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedspam import fedavg, simulate_many, spam_pp
from fedspam.app.arrival import arrivals, percentiles
from fedspam.clients import OverSelected, ParetoDelay, RandomDelay
from fedspam.methods import buffered, mvr
from fedspam.problems import quadratics
from flower import free_port, healthy, prepare, start, stop

CLIENTS, DIMENSION, COHORT, STEPS, TARGET = 500, 20, 10, 5, 0.01
RATES = (0.03, 0.1, 0.2, 0.3)  # of local steps, where L = 1
DELAYS = {
    "log-normal": RandomDelay(median=1.0, spread=1.0),
    "heavy tail": ParetoDelay(least=2 ** (-1 / 1.2), tail=1.2),
}


def ways() -> dict[str, tuple[float, list[Any]]]:
    """The share of further clients, and the methods with every rate."""
    average = [fedavg(COHORT, STEPS, rate) for rate in RATES]
    spam = [spam_pp(COHORT, step_size=2 * STEPS * rate, fresh_weight=0.3) for rate in RATES]
    estimate = [mvr(COHORT, step_size=STEPS * rate, fresh_weight=0.3, first="update") for rate in RATES]
    found: dict[str, tuple[float, list[Any]]] = {}
    for more in (0.0, 0.3, 1.0):
        title = f"over-selected by {more:.0%}" if more else "synchronous"
        found[f"FedAvg, {title}"] = (more, average)
        found[f"SPAM-PP, {title}"] = (more, spam)
    for busy in (20, 50):
        found[f"FedAvg, buffered, {busy} busy"] = (0.0, [buffered(method, busy) for method in average])
    found["MVR, synchronous"] = (0.0, estimate)
    found["MVR, buffered, 20 busy"] = (0.0, [buffered(method, 20) for method in estimate])
    return found


def simulated(rounds: int, seeds: int) -> None:
    clients = quadratics(0, clients=CLIENTS, dimension=DIMENSION, delta=0.1, curvature=0.01, condition=100.0)
    first = 3 * jnp.ones(DIMENSION)
    scale = jnp.linalg.norm(clients.gradient(first))
    error = jax.tree_util.Partial(lambda x: {"error": jnp.linalg.norm(clients.gradient(x)) / scale})
    print(f"{CLIENTS} clients, {COHORT} replies per update, {seeds} seeds, at most {rounds} updates\n")
    print("| delay | way | seconds to the target | updates | seconds per update | replies sent |")
    print("|---|---|---:|---:|---:|---:|")
    for kind, delay in DELAYS.items():
        for way, (more, methods) in ways().items():
            slow = OverSelected(clients, delay, more=more)
            run = simulate_many(methods, slow, first, rounds=rounds, keys=range(seeds), probe=error, record=())
            at = arrivals(run.probes["error"], TARGET)  # [rates, seeds]
            clock = np.concatenate([np.zeros((*at.shape, 1)), np.cumsum(run.rows["seconds"], axis=-1)], axis=-1)
            reached = np.where(np.isfinite(at), at, 0).astype(int)
            seconds = np.where(np.isfinite(at), np.take_along_axis(clock, reached[..., None], -1)[..., 0], np.inf)
            middle = percentiles(seconds, (50,), axis=1)[0]
            best = int(np.argmin(middle))
            updates, each = percentiles(at[best], (50,))[0], run.rows["seconds"][best].mean()
            exchanges = 2 if way.startswith("SPAM-PP") else 1
            sent = updates * (COHORT * (1 + more) + exchanges - 1)
            print(f"| {kind} | {way} | {middle[best]:.0f} | {updates:.0f} | {each:.2f} | {sent:,.0f} |", flush=True)


TASK = """
import time
import jax.numpy as jnp, numpy as np
from fedspam import fedavg
from fedspam.methods import buffered
from fedspam.problems import quadratics

clients = quadratics(0, clients=6, dimension=5, delta=0.5)
first = jnp.ones(5)

def method(context):
    average = fedavg(2, 5, 0.05)
    return buffered(average, 4) if context.run_config["strategy"] == "buffered" else average

def sleep(client, round):
    delay = 3 * np.random.default_rng([client, round]).pareto(1.2) + 3
    time.sleep(min(delay, 60))
"""
CLIENT = """
from fedspam.flower import client_app, clients_of
from overhead.task import clients, first, method, sleep

def slow(message, context, call_next):
    if message.metadata.message_type.startswith("train"):
        sleep(int(context.node_config["partition-id"]), int(message.metadata.group_id))
    return call_next(message, context)

app = client_app(clients_of(clients), method, first, mods=[slow])
"""
SERVER = """
import json
from pathlib import Path
import jax.numpy as jnp
from flwr.app import MetricRecord
from flwr.serverapp import ServerApp
from fedspam.flower import FedspamStrategy, Replies, to_arrays, to_params
from overhead.task import clients, first, method

app = ServerApp()

@app.main()
def main(grid, context):
    config, errors = context.run_config, []

    def measure(round, arrays):
        x = to_params(arrays, first)
        errors.append(float(jnp.linalg.norm(clients.gradient(x)) / jnp.linalg.norm(clients.gradient(first))))

    more = 0.5 if config["strategy"] == "ask-more" else 0.0
    strategy = FedspamStrategy(method(context), first, min_available_nodes=6, replies=Replies(over_selection=more))
    result = strategy.start(grid, to_arrays(first), config["rounds"], timeout=120, evaluate_fn=measure)
    seconds = [float(row["seconds"]) for row in result.train_metrics_clientapp.values()]
    Path(config["told"]).write_text(json.dumps({"errors": errors, "seconds": seconds}))
"""


def over_processes(way: str, rounds: int) -> None:
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        environment = prepare(folder, port)
        for file, text in {"task": TASK, "client": CLIENT, "server": SERVER}.items():
            (folder / "app" / "overhead" / f"{file}.py").write_text(text)
        try:
            link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
            processes.append(
                start([*link, "--disable-runtime-dependency-installation"], environment, folder, "superlink")
            )
            while not healthy(port):
                time.sleep(0.1)
            for id in range(6):
                node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--host", "127.0.0.1"]
                node += ["--port", str(free_port()), "--node-config", f"partition-id={id} num-partitions=6"]
                processes.append(start(node, environment, folder, f"supernode{id}"))
            told = folder / "told.json"
            config = {"strategy": way, "rounds": rounds, "told": str(told)}
            settings = " ".join(f"{name}={json.dumps(value)}" for name, value in config.items())
            run = start(
                ["flwr", "run", "app", "here", "--stream", "--run-config", settings], environment, folder, "flwr"
            )
            processes.append(run)
            run.wait(1200)
            if not told.exists():
                raise SystemExit((folder / "flwr.log").read_text()[-3000:])
            found = json.loads(told.read_text())
        finally:
            stop(processes)
    at = next((number for number, error in enumerate(found["errors"]) if error <= 0.1), None)
    waited = "never" if at is None else f"{sum(found['seconds'][:at]):.1f} s, {at} rounds"
    each = np.array(found["seconds"])
    middle, most = np.median(each), each.max()
    print(f"{way}: {waited} to the target; {each.mean():.1f} s per round, median {middle:.1f}, {most:.1f} at most")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--processes", choices=("wait", "ask-more", "buffered"))
    flags = parser.parse_args()
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, JAX {jax.__version__}")
    if flags.processes:
        over_processes(flags.processes, flags.rounds or 8)
    else:
        simulated(flags.rounds or 200, flags.seeds)


if __name__ == "__main__":
    main()
