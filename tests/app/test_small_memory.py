"""Machines with little memory: nothing is allocated because it may be allowed, and every command runs in 4 GB."""

import os
import pkgutil
import re
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedspam._internal import strict
from fedspam.app import commands

LIMIT = 4_000_000 * 1024  # as ulimit -v 4000000
# Stacks and memory pools are reserved per thread, and threads are made per core: two cores, wherever the test runs.
LIMITED = """
import os, resource, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell ignores it for what it starts in the background
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]), int(sys.argv[1])))
os.execv(sys.executable, [sys.executable, "-m", "fedspam.app", *sys.argv[2:]])
"""
CONFIG = """
[data]
kind = "csv"
path = "rows.csv"
client = "site"
label = "ill"
test = 0.25
[model]
name = "softmax"
[method]
name = "fedavg"
cohort_size = 2
local_rate = 0.1
local_steps = 2
[run]
rounds = 4
"""
COMMANDS = {
    "run": ["experiment.toml", "--out", "run"],
    "predict": ["run", "rows.csv"],
    "export": ["run", "--to", "flax"],
    "registry": ["models", "add", "run"],
    "compare": ["experiment.toml", "--methods", "fedavg,mvr", "--budget", "1", "--rounds", "3", "--targets", "0.9"],
    "report": ["run"],
    "measure": ["experiment.toml"],
    "data": [],
    "methods": ["--json"],
    "theory": ["--rounds", "10", "--seeds", "2", "--clients", "4", "--cohort", "2"],
    "new": ["project"],
    "cite": ["scaffold"],
    "docs": ["choosing"],
    "completions": ["bash"],
    "reproduce": ["--seeds", "1"],
}


def test_reading_a_small_file_takes_little_memory(tmp_path):
    (tmp_path / "small").write_bytes(b"few bytes")
    tracemalloc.start()
    try:
        assert strict.read(tmp_path / "small", 16 * strict.GIB) == b"few bytes"
        assert tracemalloc.get_traced_memory()[1] < strict.MIB
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table of 40 rows and an experiment on it."""
    place = tmp_path_factory.mktemp("small")
    random = np.random.default_rng(0)
    lines = [f"{'abcd'[row % 4]},{random.normal():.3f},{random.normal():.3f},{row % 3 % 2}" for row in range(40)]
    (place / "rows.csv").write_text("site,age,pulse,ill\n" + "\n".join(lines) + "\n")
    (place / "experiment.toml").write_text(CONFIG)
    return place


def limited(*arguments):
    return [sys.executable, "-c", LIMITED, str(LIMIT), *arguments]


def environment():
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}


@pytest.mark.users
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
@pytest.mark.slow
def test_every_command_runs_in_four_gigabytes(folder):
    """In their order: the later ones use the run of the first."""
    for name, arguments in COMMANDS.items():
        done = subprocess.run(
            limited(name, *arguments),
            cwd=folder,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"fedspam {name}: {done.stdout}{done.stderr}"


@pytest.mark.users
@pytest.mark.skipif(sys.platform != "linux", reason="other systems do not limit the address space")
@pytest.mark.slow
def test_the_lab_runs_in_four_gigabytes(folder):
    lab = subprocess.Popen(
        limited("lab", "--port", "0"), cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert re.search(rb"http://127\.0\.0\.1:\d+", lab.stdout.readline())
    finally:
        lab.send_signal(signal.SIGINT)
        lab.communicate(timeout=600)
    assert lab.returncode == 130


def test_no_command_is_left_out():
    names = {each.name for each in pkgutil.iter_modules(commands.__path__) if not each.name.startswith("_")}
    assert names == {*COMMANDS, "lab"}
