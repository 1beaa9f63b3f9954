"""Every example runs on a small slice of its data, and the quick examples reach their stated results."""

import pytest

from fedspam import datasets
from loading import ROOT, load

pytestmark = pytest.mark.users
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py"))


@pytest.fixture(autouse=True)
def examples_find_data(monkeypatch, data):
    monkeypatch.setenv(datasets.FOLDER_VARIABLE, str(data))


def run(name: str, **options):
    return load(ROOT / "examples" / f"{name}.py").main(**options)


@pytest.mark.slow
def test_a9a(capsys):
    found = run("a9a", clients=5, rounds=60, rows=3000)
    assert found["gap"] <= 1e-6
    assert found["accuracy"] > 0.83
    assert "reached: loss" in capsys.readouterr().out


@pytest.mark.slow
def test_mushrooms():
    found = run("mushrooms", clients=5, rounds=60)
    assert found["spam_pp.gap"] < 0.1 * found["fedavg.gap"]
    assert found["spam_pp.accuracy"] == pytest.approx(0.999, abs=1e-3)


@pytest.mark.slow
def test_heart():
    found = run("heart", seeds=4, rounds=40)
    assert found["accuracy"] == pytest.approx(0.796, abs=0.03)  # four splits, of standard deviation 0.021 each


@pytest.mark.slow
def test_har():
    found = run("har", rounds=30, every=30)
    assert found["accuracy"] > 0.93  # on its way to 0.956
    assert found["accuracy.q10"] < found["accuracy.q50"]


@pytest.mark.slow
def test_digits(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    found = run("digits", rounds=60, target=0.7, methods=("fedavg",))
    assert found["fedavg.test"] >= 0.7
    assert capsys.readouterr().out.count("reached: test.accuracy") == 1


@pytest.mark.slow
def test_femnist():
    """One round with two writers: it runs and returns its evaluations."""
    found = run("femnist", rounds=1, cohort=2, batch=2, every=1, writers=2, hidden=8)
    assert {"images.accuracy", "images.accuracy.q10", "writers.accuracy"} <= found.keys()
    assert all(0 <= value <= 1 for value in found.values())


@pytest.mark.slow
def test_megabytes(tmp_path):
    """Two rounds with three writers, and a grid of one: every method pays, and the table has a row per round."""
    table = tmp_path / "megabytes.csv"
    found = run("megabytes", rounds=2, cohort=2, seeds=1, writers=3, hidden=4, steps=(2,), rates=(0.1,), out=str(table))
    assert len(table.read_text().splitlines()) == 1 + len(found) == 1 + 3 * 3
    assert all(row["megabytes"] > 0 for row in found if row["round"] == 2)


@pytest.mark.slow
def test_shakespeare(tmp_path):
    found = run(
        "shakespeare", rounds=2, cohort=2, batch=2, every=1, hidden=8, roles=3, plot=str(tmp_path / "curve.png")
    )
    assert 0 <= found["accuracy.q10"] <= found["accuracy.q90"] <= 1
    assert (tmp_path / "curve.png").stat().st_size > 0


def test_every_example_is_tried():
    assert {f"test_{name}" for name in EXAMPLES} <= globals().keys()
