"""The methods on real processes: a SuperLink and three SuperNodes on 127.0.0.1, and Flower's simulation under Ray.

Each test is bounded in time, and everything it starts ends with it.
"""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import records, simulate, spam, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.prox import GradientDescent
from fedspam.simulation import restore

pytest.importorskip("flwr", reason="needs Flower: pip install 'fedspam[flower]'")
pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CLIENTS = 3
LONGEST = 150  # seconds that anything may take; on two idle cores a run takes about 30

# starts a program that ends with its parent, should that end in a way that runs no clean-up
MORTAL = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 15); os.execv(sys.argv[1], sys.argv[1:])"

PROJECT = """
[project]
name = "trial"
version = "1.0.0"
dependencies = []
[tool.flwr.app]
publisher = "fedspam"
[tool.flwr.app.components]
serverapp = "trial.server:app"
clientapp = "trial.client:app"
[tool.flwr.app.config]
method = "spam"
rounds = 2
folder = ""
resume = false
timeout = 60.0
retries = 2
nodes = 3
"""
TASK = """
import jax.numpy as jnp
from fedspam import spam, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.prox import GradientDescent

people = synthetic_logistic(0, clients=3, dimension=4)
first = jnp.ones(4)
solver = GradientDescent(steps=5, smoothness=2.0)
methods = {
    "spam": spam(step_size=0.5, momentum=0.3, solver=solver),
    "spam_pp": spam_pp(2, step_size=0.5, momentum=0.3, solver=solver),
}

def method(context):
    return methods[context.run_config["method"]]
"""
CLIENT = """
from fedspam.flower import client_app, clients_of
from trial.task import first, method, people

app = client_app(clients_of(people), method, first)
"""
SERVER = """
from flwr.serverapp import ServerApp
from fedspam.flower import Federated, to_arrays
from trial.task import first, method

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    strategy = Federated(
        method(context), first, seed=7, min_available_nodes=config["nodes"], retries=config["retries"],
        folder=config["folder"], resume=config["resume"],
    )
    strategy.start(grid, to_arrays(first), num_rounds=config["rounds"], timeout=config["timeout"])
"""


def a_method(name):
    solver = GradientDescent(steps=5, smoothness=2.0)
    if name == "spam":
        return spam(step_size=0.5, momentum=0.3, solver=solver)
    return spam_pp(2, step_size=0.5, momentum=0.3, solver=solver)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class World:
    """The processes of one test, each in a group of its own, so that its children end with it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self._groups: dict[str, subprocess.Popen] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XLA_", "PYTEST"))},
            "PATH": f"{BIN}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
            "RAY_USAGE_STATS_ENABLED": "0",
            "JAX_PLATFORMS": "cpu",
            "JAX_ENABLE_X64": "1",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",
        }
        app = folder / "app" / "trial"
        app.mkdir(parents=True)
        (app.parent / "pyproject.toml").write_text(PROJECT)
        for name, text in {"__init__": "", "task": TASK, "client": CLIENT, "server": SERVER}.items():
            (app / f"{name}.py").write_text(text)
        (folder / "home").mkdir()
        (folder / "home" / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
        )

    def start(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.log", "w") as log:
            self._groups[name] = subprocess.Popen(
                [sys.executable, "-c", MORTAL, str(BIN / command[0]), *command[1:]],
                env=self.environment, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def superlink(self, *more: str) -> None:
        self.start(
            "superlink", "flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port),
            "--disable-runtime-dependency-installation", *more,
        )  # fmt: skip
        self.wait(self._healthy, 60, "the SuperLink to answer")

    def supernode(self, id: int) -> None:
        self.start(
            f"supernode{id}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}",
            "--host", "127.0.0.1", "--port", str(free_port()),
            "--node-config", f"partition-id={id} num-partitions={CLIENTS}",
        )  # fmt: skip

    def command(self, run: str, federation: str = "", **config: object) -> list[str]:
        """`flwr run` with this configuration; its folder is that of the run's name."""
        values = {"folder": str(self.folder / run), **config}
        told = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        command = ["flwr", "run", str(self.folder / "app"), "here", "--run-config", told, "--stream"]
        return [*command, "--federation-config", federation] if federation else command

    def run(self, run: str, federation: str = "", **config: object) -> None:
        """A run to its end."""
        self.start("flwr", *self.command(run, federation, **config))
        process = self._groups["flwr"]
        self.wait(lambda: process.poll() is not None, LONGEST, "the run to end")
        assert process.returncode == 0, self.logs()
        self.kill("flwr")

    def until(self, run: str, round: int, **config: object) -> None:
        """A run until it has that many rounds on disk; it goes on."""
        self.start("flwr", *self.command(run, **config))
        checkpoint = self.folder / run / f"checkpoint-{round:09d}.safetensors"
        self.wait(checkpoint.exists, LONGEST, f"round {round}")

    def kill(self, name: str, how: int = signal.SIGKILL) -> None:
        process = self._groups.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        process.wait(30)

    def close(self) -> None:
        for name in list(self._groups):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._groups[name].pid, signal.SIGTERM)
        time.sleep(0.5)
        for name in list(self._groups):
            self.kill(name)

    def wait(self, ready, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, f"waited {seconds} s for {what}; " + self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in self.folder.glob("*.log"))

    def ours(self) -> list[int]:
        """The processes that belong to this test: they carry its folder in their environment."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if str(self.folder / "home").encode() in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False


@contextlib.contextmanager
def bounded(folder: Path):
    """A world of processes; none of them outlives it."""
    world = World(folder, free_port())
    try:
        yield world
    finally:
        world.close()
        for _ in range(100):
            if not (left := world.ours()):
                break
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert not left, f"processes {left} were left behind"


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A SuperLink and three SuperNodes."""
    with bounded(tmp_path_factory.mktemp("federation")) as world:
        world.superlink()
        for id in range(CLIENTS):
            world.supernode(id)
        yield world


def told(name: str, rounds: int):
    people = synthetic_logistic(0, clients=CLIENTS, dimension=4)
    return simulate(a_method(name), people, jnp.ones(4), rounds=rounds, key=7)


def found(folder: Path, name: str):
    return restore(a_method(name), synthetic_logistic(0, clients=CLIENTS, dimension=4), jnp.ones(4), folder)


def assert_like_the_simulation(folder: Path, name: str, rounds: int) -> None:
    run, (params, done) = told(name, rounds), found(folder, name)
    assert done == rounds
    np.testing.assert_allclose(params, run.params, rtol=1e-12, atol=1e-12)
    _, rows, _ = records.read(folder)
    for column in ("bytes_down", "bytes_up", "floats_down", "floats_up"):
        np.testing.assert_array_equal(rows[column], run.rows[column])


@pytest.mark.parametrize("name", ["spam", "spam_pp"])
def test_a_federation_of_processes_ends_where_the_simulation_does(world, name):
    world.run(name, method=name, rounds=2)
    assert_like_the_simulation(world.folder / name, name, 2)


def test_a_killed_server_is_resumed_by_a_new_run(world):
    """It ends with the bits of the run that nobody killed (the test before, if it ran; the simulation's anyway)."""
    world.until("killed", 1, method="spam_pp", rounds=2)
    servers = [pid for pid in world.ours() if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert servers
    for pid in servers:
        os.kill(pid, signal.SIGKILL)
    world.kill("flwr")
    assert found(world.folder / "killed", "spam_pp")[1] == 1
    world.run("killed", method="spam_pp", rounds=2, resume=True)
    params, done = found(world.folder / "killed", "spam_pp")
    assert done == 2
    np.testing.assert_allclose(params, told("spam_pp", 2).params, rtol=1e-12, atol=1e-12)
    undisturbed = world.folder / "spam_pp"
    if undisturbed.exists():
        np.testing.assert_array_equal(params, found(undisturbed, "spam_pp")[0])


@pytest.mark.thorough  # Flower takes a minute to notice
def test_a_killed_supernode_is_replaced(world):
    """The last test of this world. Whoever else is there stands in; no round is void."""
    world.until("lost", 1, method="spam_pp", rounds=3, timeout=20.0)
    process = world._groups["flwr"]
    world.kill("supernode2")
    world.wait(lambda: process.poll() is not None, LONGEST, "the run to end without client 2")
    assert process.returncode == 0, world.logs()
    _, rows, _ = records.read(world.folder / "lost")
    assert rows["void"].tolist() == [False] * 3
    assert rows["difference.accepted"].tolist() == [2] * 3
    asked = rows["difference.asked"].sum() + rows["prox.asked"].sum()
    assert asked > 3 * 3  # client 2 was asked, and others after it


def test_flowers_own_simulation_ends_where_ours_does(tmp_path):
    with bounded(tmp_path) as world:
        world.superlink("--simulation")
        resources = "num-supernodes=3 client-resources-num-cpus=1 client-resources-num-gpus=0.0"
        world.run("ray", resources, method="spam_pp", rounds=3)
        assert_like_the_simulation(world.folder / "ray", "spam_pp", 3)
