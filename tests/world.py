"""A federation of Flower processes on 127.0.0.1 that tests start, and the app that runs on it."""

import contextlib
import json
import urllib.request
from pathlib import Path

from processes import Processes, free_port

CLIENTS = 3


LONGEST = 900  # seconds after which something hangs; on two idle cores a run takes about 30


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
exchanges = -1
quorum = 1.0
metrics = 0
"""


TASK = """
import jax.numpy as jnp
from fedspam import fedavg, spam, spam_pp
from fedspam.problems import synthetic_logistic
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.solvers import GradientDescent

secure = None
clients = synthetic_logistic(0, clients=3, dimension=4)
first = jnp.ones(4)
solver = GradientDescent(steps=5, smoothness=2.0)
methods = {
    "fedavg": fedavg(clients.size, 2, 0.1),
    "spam": spam(step_size=0.5, fresh_weight=0.3, solver=solver),
    "spam_pp": spam_pp(2, step_size=0.5, fresh_weight=0.3, solver=solver),
    "secure": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=solver),
}

def method(context):
    return methods[context.run_config["method"]]
"""


CLIENT = """
import os
from fedspam.flower import client_app, clients_of
from fedspam.flower.wire import envelope
from trial.task import first, method, clients, secure

app = client_app(clients_of(clients), method, first, secure=secure)
envelope.WIRE = int(os.environ.get("WIRE", envelope.WIRE))  # a site may have another release
"""


SERVER = """
import os, signal
from flwr.serverapp import ServerApp
from fedspam.flower import FedspamStrategy, Replies, to_arrays
from trial.task import first, method, secure

app = ServerApp()

@app.main()
def main(grid, context):
    config = context.run_config
    left, push = [config["exchanges"]], grid.push_messages

    def mortal(messages):  # killed once the messages of this many exchanges, and of one more, are on their way
        messages = list(messages)
        pushed = push(messages)
        if messages[0].metadata.message_type.startswith("train"):
            left[0] -= 1
            if left[0] == -1:
                os.kill(os.getpid(), signal.SIGKILL)
        return pushed

    if left[0] >= 0:
        grid.push_messages = mortal
    strategy = FedspamStrategy(
        method(context), first, seed=7, min_available_nodes=config["nodes"],
        replies=Replies(quorum=config["quorum"], retries=config["retries"]), folder=config["folder"],
        resume=config["resume"], secure=secure, metrics=config["metrics"] or None,
    )
    strategy.start(grid, to_arrays(first), num_rounds=config["rounds"], timeout=config["timeout"])
"""


class World(Processes):
    """A SuperLink, SuperNodes, and runs of the app above."""

    def __init__(self, folder: Path, secure: str = "None", clients: int = CLIENTS) -> None:
        super().__init__(folder)
        self.clients = clients
        self.port = free_port()
        self.environment |= {
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        }
        app, settings = folder / "app" / "trial", self.home / ".flwr"
        app.mkdir(parents=True)
        (app.parent / "pyproject.toml").write_text(PROJECT)
        task = TASK.replace("secure = None", f"secure = {secure}").replace("clients=3", f"clients={clients}")
        for name, text in {"__init__": "", "task": task, "client": CLIENT, "server": SERVER}.items():
            (app / f"{name}.py").write_text(text)
        settings.mkdir()
        (settings / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )

    def superlink(self, *more: str) -> None:
        link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(self.port)]
        self.start("superlink", [*link, "--disable-runtime-dependency-installation", *more], self.folder)
        self.wait(self._healthy, 60, "the SuperLink to answer")

    def supernode(self, id: int, config: str = "", **more: str) -> None:
        """Start the SuperNode of this client, with more entries of the node-config and more environment."""
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self.port}", "--host", "127.0.0.1"]
        node += [
            "--port",
            str(free_port()),
            "--node-config",
            f"partition-id={id} num-partitions={self.clients} {config}",
        ]
        self.start(f"supernode{id}", node, self.folder, more)

    def federation(self, *more: str) -> "World":
        """A SuperLink, with these options, and three SuperNodes."""
        self.superlink(*more)
        for id in range(CLIENTS):
            self.supernode(id)
        return self

    def begin(self, run: str, federation: str = "", app: str = "app", **config: object) -> None:
        """`flwr run` of the app in this folder with this configuration; the run's folder is that of its name."""
        values = {"folder": str(self.folder / run), **config}
        settings = " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())
        command = ["flwr", "run", str(self.folder / app), "here", "--run-config", settings, "--stream"]
        command += ["--federation-config", federation] if federation else []
        self.start("flwr", command, self.folder)

    def end(self) -> None:
        """Wait for the end of the run, which must be a good one."""
        assert self.finish("flwr", LONGEST) == 0, self.logs()

    def until(self, run: str, round: int) -> None:
        """Wait until the run has that many rounds on disk; it goes on."""
        checkpoint = self.folder / run / f"checkpoint-{round:09d}.safetensors"
        ended = self._started["flwr"].poll  # a run that has failed will have no more rounds
        self.wait(lambda: checkpoint.exists() or ended() is not None, LONGEST, f"round {round}")
        assert checkpoint.exists(), self.logs()

    def servers(self) -> list[int]:
        """The processes of the ServerApp."""
        found = []
        for pid in self.ours():
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if b"flwr-serverapp" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found.append(pid)
        return found

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=1) as answer:
                return answer.status == 200
        except OSError:
            return False
