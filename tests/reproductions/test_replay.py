"""The replay of authors' code refuses what was not compared, and has every case that it names."""

import numpy as np
import pytest

import replay
from fedspam.methods import METHODS

pytestmark = pytest.mark.x64


def test_a_clone_must_be_the_one_that_was_compared(tmp_path):
    with pytest.raises(SystemExit, match=r"sdane.py does not exist; clone https://github.com/mlolab/S-DANE"):
        replay.load(tmp_path, "sdane.py")
    folder = tmp_path / "src" / "optimizers"
    folder.mkdir(parents=True)
    (folder / "sdane.py").write_text("raise RuntimeError('this must not run')")
    with pytest.raises(SystemExit, match=r"has the digest [0-9a-f]{64}, not a81b16a3.*; check out commit 577d002"):
        replay.load(tmp_path, "sdane.py")


def test_our_side_of_every_case_moves():
    population, rows = replay.clients()
    assert sum(len(labels) for _, labels in rows) == sum(replay.ROWS)
    found = replay.cases()
    assert set(found) <= set(METHODS)
    points, steps = replay.ours(found["fedred"], population)
    assert points.shape == (replay.ROUNDS + 1, replay.DIMENSION)
    assert len(set(steps)) > 2  # coins decide
    assert np.abs(points[-1] - points[0]).max() > 0.5
