"""Several processes on loopback: the bits of one process with as many devices, their own files, and one that dies."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedspam import models
from fedspam.app import UsageError, distributed
from fedspam.app.cli import main
from fedspam.clients import Sharded
from fedspam.datasets import write_mapped
from fedspam.simulation import records

ROOT = Path(__file__).parents[2]
PARTS = 5
PROCESSES = 4

# the command, which also notes the data files that it opens
SCRIPT = """
import sys
opened = set()
sys.addaudithook(lambda name, given: opened.add(str(given[0])) if name == "open" and ".npy" in str(given[0]) else None)
from fedspam.app import cli
code = cli.main(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write("\\n".join(sorted(opened)))
sys.argv = ["fedspam"]
cli.main = lambda: code
cli.command()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five parts of clients, test rows, and the configuration of a run."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def client(rows: int) -> dict[str, np.ndarray]:
        features = rng.normal(size=(rows, 4))
        return {"features": features, "label": (features @ np.arange(4) > 0).astype(np.int32)}

    for part in range(PARTS):
        clients = [(f"{part}-{number}", client(int(rng.integers(3, 9)))) for number in range(part + 2)]
        write_mapped(clients, folder / "parts" / f"part-{part}")
    write_mapped([("test", client(20))], folder / "test")
    (folder / "run.toml").write_text(
        """
data = {kind = "parts", path = "parts", test_path = "test"}
model = {name = "logistic"}
method = {name = "scaffold", cohort_size = 6, local_rate = 0.1, local_steps = 3}
run = {rounds = 12, precision = "float64"}
keep = {every = 3}
"""
    )
    return folder


def start(config: Path, out: Path, *more: str, processes: int = PROCESSES) -> list[subprocess.Popen[str]]:
    """Start the command in so many processes of one device, or in one process of as many devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    devices = PROCESSES // processes
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "FEDSPAM_CACHE": str(config.parent / "cache"),
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices} --xla_backend_optimization_level=0",
    }
    flags = lambda number: (
        "--distributed",
        f"--coordinator=127.0.0.1:{port}",
        f"--processes={processes}",
        f"--process={number}",
    )
    return [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, f"{out}-opened-{number}", "run", str(config), "--device=cpu", "--quiet",
             f"--out={out}", *more, *(flags(number) if processes > 1 else ())],
            env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for number in range(processes)
    ]  # fmt: skip


def end(started: list[subprocess.Popen[str]], code: int | None = 0) -> list[tuple[str, str]]:
    """What the processes printed; all must end with this code within a minute."""
    try:
        printed = [process.communicate(timeout=600) for process in started]
    finally:
        for process in started:
            process.kill()
    if code is not None:
        assert [process.returncode for process in started] == [code] * len(started), printed[0][1][-2000:]
    return printed


def newest(folder: Path) -> Path:
    return max(folder.glob("checkpoint-*"))


def same(one: Path, other: Path) -> None:
    """The newest states, the rows and the probes of two runs have the same bits."""
    tables = [(load_file(newest(folder)), *records.read(folder)[1:]) for folder in (one, other)]
    for first, second in zip(*tables, strict=True):
        assert first.keys() == second.keys()
        for name, column in first.items():
            np.testing.assert_array_equal(column, second[name], err_msg=name)


@pytest.fixture(scope="module")
def alone(data: Path) -> Path:
    """The run of one process with four devices."""
    end(start(data / "run.toml", data / "alone", processes=1))
    return data / "alone"


@pytest.mark.thorough
def test_four_processes_have_the_bits_of_one_and_files_of_their_own(data: Path, alone: Path) -> None:
    printed = end(start(data / "run.toml", data / "four"))
    same(alone, data / "four")
    assert [out for out, _ in printed] == [f"{data / 'four'}\n", "", "", ""]  # one process speaks and writes
    opened = [Path(f"{data / 'four'}-opened-{number}").read_text().split() for number in range(PROCESSES)]
    parts = [{path for path in paths if "/parts/" in path} for paths in opened]
    assert all(parts)
    assert sum(map(len, parts)) == len(set.union(*parts)) == 2 * PARTS  # disjoint, and all of them
    facts = json.loads((data / "four" / "summary.json").read_text())
    assert facts["rounds"] == 12
    assert facts["accuracy"] > 0.5


def killed(data: Path, out: Path, victim: int) -> list[str]:
    """Start a long run, kill one process in the middle, and return what the others said; they must end soon."""
    started = start(data / "run.toml", out, "--rounds", "1000000")
    deadline = time.monotonic() + 600
    while len(list(out.glob("checkpoint-*"))) < 2:
        assert time.monotonic() < deadline
        assert all(process.poll() is None for process in started), end(started)
        time.sleep(0.05)
    started[victim].kill()
    printed = end(started, None)  # within its patience, long before a million rounds
    assert all(process.returncode != 0 for process in started)
    return [error for number, (_, error) in enumerate(printed) if number != victim]


@pytest.mark.thorough
def test_a_killed_process_ends_the_others_and_the_run_resumes_to_the_same_bits(data: Path) -> None:
    out = data / "killed"
    for error in killed(data, out, 2):
        assert re.search(r"process \d of 4 has lost another one.*Start all of them again with --resume", error)
    rounds = str(int(newest(out).stem.removeprefix("checkpoint-")) + 6)
    end(start(data / "run.toml", out, "--rounds", rounds, "--resume"))
    end(start(data / "run.toml", data / "whole", "--rounds", rounds, processes=1))
    same(data / "whole", out)


@pytest.mark.thorough
def test_the_death_of_the_first_process_ends_the_others(data: Path) -> None:
    for error in killed(data, data / "headless", 0):  # it connects them: where JAX notices first, JAX ends the rest
        assert "lost another one" in error or "another task died" in error


@pytest.mark.thorough
def test_what_fails_in_one_process_fails_in_all(data: Path) -> None:
    end(start(data / "run.toml", data / "twice", "--rounds", "1", processes=1))
    printed = end(start(data / "run.toml", data / "twice"), None)
    assert "already holds a run; continue it with --resume" in printed[0][1]
    assert all("already holds a run" in error or "another task died" in error for _, error in printed[1:])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((False, "h:1", None, None), "--coordinator belongs to --distributed"),
        ((True, "h:1", None, 0), "--coordinator and --process without --processes"),
        ((True, None, 2, 0), "--processes and --process without --coordinator"),
        ((True, "host", 2, 0), "must be HOST:PORT"),
        ((True, "h:1", 2, 2), "--process 2 must be below --processes 2"),
    ],
)
def test_flags_that_do_not_fit_together_are_refused(given: tuple[Any, ...], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        distributed.check(*given)


def test_fewer_parts_than_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 0 parts for 1 devices; give every device at least one part"):
        Sharded.of([], lambda part: part, lambda params, rows: rows["x"])


def test_a_folder_of_parts_is_read_by_one_process_too(data: Path, tmp_path: Path) -> None:
    flags = ["--rounds", "2", "--run.precision", "float32", "--quiet", "--no-cache", "--out", str(tmp_path / "out")]
    assert main(["run", str(data / "run.toml"), *flags]) == 0
    assert models.load(tmp_path / "out").facts["task"] == "classes"


def test_wrong_parts_are_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(words: str, *flags: str) -> None:
        with pytest.raises(SystemExit, match="2"):
            main(["run", str(data / "run.toml"), "--out", str(tmp_path / "out"), "--no-cache", *flags])
        assert words in capsys.readouterr().err

    refused("holds no parts", "--data.path", str(tmp_path))
    write_mapped([("a", {"x": np.ones((2, 1))})], tmp_path / "other")
    refused("has no column 'features'", "--data.path", str(tmp_path / "other"))
    write_mapped([("a", {"features": np.ones((2, 1)), "label": np.array([-1, 1])})], tmp_path / "signs")
    refused("labels run from -1 to 1", "--data.path", str(tmp_path / "signs"))
