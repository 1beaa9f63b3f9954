"""Processes that a test starts, all of which end with the test."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
# ends a process if the process of the tests ends without cleanup
TIED = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []
P = TypeVar("P", bound="Processes")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Processes:
    """The processes of one test, each in its own group; the folder in their environment identifies them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home = folder, folder / "home"
        self.home.mkdir()
        self._started: dict[str, subprocess.Popen[bytes]] = {}
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "FLWR_"))},
            "PATH": f"{BIN}:/usr/bin:/bin",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'client' / 'src'}",
            "HOME": str(self.home),
            "FLWR_HOME": str(self.home / ".flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(folder / "cache"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
            "OMP_NUM_THREADS": "1",
        }

    def start(self, name: str, command: Sequence[str], cwd: Path, more: Mapping[str, str] | None = None) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self._started[name] = subprocess.Popen(
                [*TIED, *command], cwd=cwd, env={**self.environment, **(more or {})}, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip

    def finish(self, name: str, seconds: float) -> int:
        """Wait until a process ends by itself, and return its exit code."""
        process = self._started[name]
        self.wait(lambda: process.poll() is not None, seconds, f"{name} to end")
        return process.returncode

    def run(
        self, name: str, command: Sequence[str], cwd: Path, seconds: float, more: Mapping[str, str] | None = None
    ) -> str:
        """Run a command, which must succeed, and return its output."""
        self.start(name, command, cwd, more)
        assert self.finish(name, seconds) == 0, self.logs()
        return self.log(name)

    def kill(self, name: str) -> None:
        """Kill a process with all of its group."""
        process = self._started.pop(name)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(300)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, ready: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not ready():
            assert time.monotonic() < end, f"waited {seconds} s for {what}; " + self.logs()
            time.sleep(0.1)

    def logs(self) -> str:
        paths = self.folder.glob("*.log")
        return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-2000:]}" for path in paths)

    def ours(self) -> list[int]:
        """All processes with this test's folder in their environment, however they were started."""
        found, mark = [], f"HOME={self.home}".encode()
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (path / "environ").read_bytes():
                    found.append(int(path.name))
        return found

    def close(self) -> None:
        for how, patience in ((signal.SIGTERM, 30), (signal.SIGKILL, 100)):
            for process in self._started.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, how)
            for pid in self.ours():  # those in other groups
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, how)
            for _ in range(patience):
                for process in self._started.values():
                    process.poll()
                if not self.ours():
                    break
                time.sleep(0.1)
        for process in self._started.values():
            process.wait(300)


@contextlib.contextmanager
def closing(found: P) -> Iterator[P]:
    """None of these processes outlives the block."""
    try:
        yield found
    finally:
        found.close()
    assert not found.ours(), f"processes {found.ours()} were left behind"
