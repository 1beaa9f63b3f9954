"""A sweep on disk: killed at any moment, it resumes to the same bits."""

import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import simulate_many
from fedspam._internal import files
from fedspam.methods import mvr, page
from fedspam.problems import quadratics
from fedspam.simulation import sweep_folder
from fedspam.simulation.records import RecordError
from fedspam.simulation.stopping import Target, Watch

CLIENTS = quadratics(0, clients=8, dimension=3, delta=0.2)
WAYS = {
    "beside": {"side_by_side": True, "lanes": 2},
    "beside, some end early": {"lanes": 2, "until": Target("norm", at_most=0.1), "watch": Watch(growth=1e3)},
    "one by one": {"side_by_side": False},
}


def norm(x):
    return {"norm": jnp.linalg.norm(CLIENTS.gradient(x))}


def go(folder=None, resume=False, methods=None, **options):
    rates = (0.05, 0.1, 0.2)
    methods = methods or [mvr(3, step_size=rate, fresh_weight=0.5, start="zero") for rate in rates]
    options = {"rounds": 40, "keys": [0, 1], "probe": norm, "every": 4} | options
    return simulate_many(methods, CLIENTS, jnp.ones(3), folder=folder, resume=resume, **options)


def bits(run):
    parts = (run.params, run.state, run.memory, dict(run.rows), dict(run.probes), run.rounds_done)
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(parts)]


def same_bits(run, other):
    assert bits(run) == bits(other)
    assert run.status == other.status


@pytest.fixture(autouse=True)
def states_after_every_step(monkeypatch):
    """Otherwise writing takes a twentieth of the time at most."""
    monkeypatch.setattr(sweep_folder, "SPACING", 0)


@pytest.mark.parametrize("way", WAYS)
def test_a_sweep_on_disk_is_the_sweep_in_memory(way, tmp_path):
    options = WAYS[way]
    there = go(tmp_path / "sweep", **options)
    here = go(**options)
    assert there.status == here.status
    np.testing.assert_array_equal(there.rounds_done, here.rounds_done)
    np.testing.assert_allclose(there.params, here.params, rtol=1e-11)
    for name, column in (here.rows | here.probes).items():
        np.testing.assert_allclose((there.rows | there.probes)[name], column, rtol=1e-9, atol=1e-12, err_msg=name)


def test_a_sweep_that_is_done_takes_no_step(tmp_path, monkeypatch):
    there = go(tmp_path)
    monkeypatch.setattr(sweep_folder.InLanes, "step", None)
    same_bits(go(tmp_path, resume=True), there)


@pytest.mark.parametrize("way", WAYS)
def test_a_sweep_that_died_at_any_write_resumes(way, tmp_path, monkeypatch):
    """Writes leave half of their bytes behind, as a kill does."""
    whole = go(tmp_path / "whole", **WAYS[way])
    for at in (1, 2, 3, 4, 7, 11):
        writes = 0

        def torn(file, data, at=at):
            nonlocal writes
            writes += 1
            file.write(bytes(data[: len(data) // 2 if writes == at else len(data)]))
            if writes == at:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(files, "_write_all", torn)
            with pytest.raises(KeyboardInterrupt):
                go(tmp_path / str(at), **WAYS[way])
        same_bits(go(tmp_path / str(at), resume=True, **WAYS[way]), whole)


SCRIPT = """
import hashlib, os, signal, sys, jax
jax.config.update("jax_enable_x64", True)
sys.path[:0] = {tests!r}
from test_sweep_folder import WAYS, bits, files, go, sweep_folder
sweep_folder.SPACING = 0
folder, way, lives = sys.argv[1], sys.argv[2], int(sys.argv[3])
true = files._write_all
def write(file, data):
    global lives
    lives -= 1
    if lives == 0:
        file.write(bytes(data[: len(data) // 2]))
        os.kill(os.getpid(), signal.SIGKILL)
    true(file, data)
files._write_all = write
print(hashlib.sha256(b"".join(bits(go(folder, resume=True, **WAYS[way])))).hexdigest())
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["beside", pytest.param("one by one", marks=pytest.mark.thorough)])
def test_a_process_that_is_killed_resumes(way, tmp_path):
    """SIGKILL in the middle of a write, and again, and then the rest of the way."""
    script = SCRIPT.format(tests=[str(Path(__file__).parent), str(Path(__file__).parents[1])])
    run = lambda folder, lives: subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / folder), way, str(lives)], capture_output=True, check=False
    )
    for lives in (8, 6):
        assert run("killed", lives).returncode == -signal.SIGKILL
    assert list((tmp_path / "killed").glob("checkpoint-*"))
    ends = [run(folder, 0) for folder in ("killed", "whole")]
    assert [end.returncode for end in ends] == [0, 0]
    assert ends[0].stdout == ends[1].stdout


def test_another_sweep_is_refused(tmp_path):
    go(tmp_path)
    with pytest.raises(RecordError, match="already holds a run"):
        go(tmp_path)
    with pytest.raises(RecordError, match="holds another run"):
        go(tmp_path, resume=True, rounds=44)


def test_a_branching_method_goes_one_by_one(tmp_path):
    methods = [page(3, step_size=rate, probability=0.3) for rate in (0.05, 0.1)]
    there = go(tmp_path, methods=methods)
    np.testing.assert_array_equal(there.params, go(methods=methods).params)


@pytest.mark.parametrize(
    ("options", "says"),
    [({"resume": True}, "needs the folder"), ({"folder": "x", "devices": jax.devices()}, "one device")],
)
def test_what_does_not_go_together(options, says):
    with pytest.raises(ValueError, match=says):
        go(**options)
