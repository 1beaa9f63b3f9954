"""The problems that are kept apart from `auto` can be run; `research/auto/held_out.py` runs them."""

import json
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam.datasets import FederatedData
from fedspam.models import softmax_regression
from loading import ROOT, load


@pytest.fixture(scope="module")
def held_out():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(ROOT / "research" / "auto")])  # where it finds its problems
        return load(ROOT / "research" / "auto" / "held_out.py")


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


def test_no_network_is_in_two_sets(held_out):
    names = [name for each in held_out.NETWORKS.values() for name in each.tasks(None)]
    assert len(names) == len(set(names)) == 6 + 8


@pytest.mark.thorough
def test_networks_of_the_second_set_can_start(held_out, data):
    for make in held_out.NETWORKS["second"].tasks(data).values():
        task = make()
        clients = task.train.population(task.model.loss, batch=task.batch)
        params = task.model.init(1)
        losses = clients.loss(params, {name: column[:50] for name, column in clients.examples.items()})
        assert losses.shape == (50,)
        assert np.isfinite(losses).all()
        assert losses.max() > 0.1
        assert task.model.accuracy(params, task.test) < 0.6
        assert 2 <= task.cohort <= len(task.train) / 2
        assert sum(leaf.size for leaf in jax.tree.leaves(params)) < 300_000


def test_grids_of_networks_are_joined(held_out, monkeypatch, tmp_path, capsys):
    """Parts of FedAvg's grid as one file, and `auto` against them with their seeds and rounds."""
    rows = {"features": np.eye(4, dtype=np.float32), "label": np.arange(4)}
    train = FederatedData.of([("ann", rows), ("bob", rows)])
    model = softmax_regression(4, 4)
    task = held_out.held_out_networks.NetworkTask(train, {k: jnp.asarray(v) for k, v in rows.items()}, model, 2, 4)
    tiny = SimpleNamespace(tasks=lambda data: {"left": lambda: task, "right": lambda: task})
    monkeypatch.setattr(held_out, "NETWORKS", {"second": tiny})
    monkeypatch.setattr(held_out, "STEPS", (2,))
    monkeypatch.setattr(jax.config, "update", lambda *_: None)  # the precision of other tests
    asked = []

    def untuned(task, targets, rounds, seeds):
        asked.append((targets, rounds, seeds))
        return {**{cost: [1.0, 1.0, 2.0] for cost in held_out.COSTS}, "best accuracy": 1.0, "ended in NaN": 0}

    monkeypatch.setattr(held_out, "untuned", untuned)

    def go(*options):
        monkeypatch.setattr(sys, "argv", ["held_out", "--networks", *map(str, options)])
        held_out.main()

    left, right, both, other = (tmp_path / name for name in ("left", "right", "both", "other"))
    for part in (left, right):
        go("--hindsight", part, "--problems", part.name, "--rounds", 3, "--seeds", 1, "--rates", 1)
    monkeypatch.setattr(held_out, "tuned", None)  # nothing runs twice
    go("--against", left, right, "--hindsight", both)
    go("--against", both)
    found = json.loads(both.read_text())
    assert found == {"seeds": 1, "rounds": 3, "rates": 1, "hindsight": found["hindsight"]}
    assert list(found["hindsight"]) == ["left", "right"]
    assert found["hindsight"]["left"]["best accuracy"] == 1.0
    assert asked == [(found["hindsight"][name]["targets"], 3, 1) for name in ("left", "right")]
    assert "on 2 problems" in capsys.readouterr().out

    other.write_text(json.dumps({**found, "seeds": 2}))
    for options, says in (
        (["--against", both, other], "join those with the same settings"),
        (["--set", "third"], "there is no third set of networks; take one of second"),
    ):
        with pytest.raises(SystemExit):
            go(*options)
        assert says in capsys.readouterr().err
