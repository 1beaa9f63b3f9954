"""The problems that are kept apart from `auto` can be run; `benchmarks/held_out.py` runs them."""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from loading import ROOT, benchmark


@pytest.fixture(scope="module")
def held_out():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "benchmarks")])  # where it finds its problems
        return benchmark("held_out")


def assert_can_start(problem):
    """One finite loss per row, a gradient to follow, and a cohort that its clients can fill."""
    losses = problem.population.loss(jnp.asarray(problem.start), problem.population.examples)
    assert losses.shape == (int(problem.population.offsets[-1]),)
    gradient = jax.grad(problem.objective)(jnp.asarray(problem.start))
    assert gradient.shape == problem.start.shape
    assert gradient.dtype == jnp.float64
    assert np.isfinite(losses).all()
    assert np.isfinite(gradient).all()
    assert jnp.linalg.norm(gradient) > 1e-2
    assert 2 <= problem.cohort <= problem.population.size
    assert problem.rounds == 400


def test_no_problem_is_in_two_sets(held_out):
    names = [name for each in held_out.SETS.values() for name in each.problems(None)]
    assert len(names) == len(set(names)) == 36 + 26 + 28
    assert held_out.HINDSIGHT.keys() == held_out.SETS.keys()


@pytest.mark.thorough
def test_problems_of_the_third_set_can_start(held_out, data):
    for make in held_out.SETS["third"].problems(data).values():
        assert_can_start(make())


def test_hindsight_of_chosen_problems(held_out, monkeypatch, tmp_path):
    """The best setting of one problem with a smaller grid, and a file by names, so that parts can be joined."""
    monkeypatch.setattr(held_out, "FRESH_WEIGHTS", (0.9,))
    monkeypatch.setattr(held_out, "DECAYS", {"constant": (0.0, 0.0)})
    written = tmp_path / "part.json"
    monkeypatch.setattr(sys, "argv", ["held_out", "--hindsight", str(written), "--seeds", "1", "--problems", "Doses"])
    held_out.main()
    found = json.loads(written.read_text())
    assert found["seeds"] == 1
    assert list(found["hindsight"]) == ["doses, all of four"]
    rounds = found["hindsight"]["doses, all of four"]["rounds"]
    assert 0 < rounds[0] <= rounds[1] <= rounds[2] <= 400


def test_a_set_without_its_hindsight_says_how_to_get_it(held_out, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sys, "argv", ["held_out", "--against", str(tmp_path / "none.json")])
    with pytest.raises(SystemExit):
        held_out.main()
    assert "write it with --set third --hindsight" in capsys.readouterr().err
