"""The rows and probes of runs as one table of Arrow, pandas and polars."""

import sys

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import fedavg, simulate, simulate_many
from fedspam.problems import quadratics
from fedspam.simulation.stopping import Target

pytest.importorskip("pyarrow")

CLIENTS = quadratics(0, clients=6, dimension=3, delta=0.2)


def probe(x):
    return {"norm": jnp.linalg.norm(x), "x": x, "void": x[0]}


@pytest.fixture(scope="module")
def run():
    return simulate(fedavg(3, 2, 0.1), CLIENTS, jnp.ones(3), rounds=7, key=0, probe=probe, every=3)


def test_a_line_per_round_the_start_first(run):
    table = run.to_arrow()
    assert table.column("round").to_pylist() == list(range(8))
    assert table.column("bytes_up").to_pylist() == [None, *run.rows["bytes_up"].tolist()]
    assert table.column("void").to_pylist() == [None, *[False] * 7]
    values = run.probes["norm"].tolist()
    assert table.column("norm").to_pylist() == [values[0], None, None, values[1], None, None, values[2], None]
    assert table.column("x").to_pylist()[3] == run.probes["x"][1].tolist()
    assert table.column("probe.void").to_pylist()[0] == 1.0  # not the row of this name
    assert "setting" not in table.column_names


def test_many_runs_follow_each_other_up_to_their_ends():
    methods = [fedavg(3, 2, rate) for rate in (0.01, 0.1)]
    target = Target("norm", at_most=1.0)
    many = simulate_many(methods, CLIENTS, jnp.ones(3), rounds=9, keys=[4, 5, 6], probe=probe, until=target)
    assert len(np.unique(many.rounds_done)) > 1
    table = many.to_arrow()
    assert table.num_rows == (many.rounds_done + 1).sum()
    setting, seed, round = (np.array(table.column(name)) for name in ("setting", "seed", "round"))
    norm, sent = np.array(table.column("norm")), np.array(table.column("bytes_up"), float)
    for (i, j), done in np.ndenumerate(many.rounds_done):
        mine = (setting == i) & (seed == j)
        np.testing.assert_array_equal(round[mine], np.arange(done + 1))
        np.testing.assert_array_equal(norm[mine], many.probes["norm"][i, j, : done + 1])
        np.testing.assert_array_equal(sent[mine][1:], many.rows["bytes_up"][i, j, :done])


@pytest.mark.parametrize("name", ["pandas", "polars"])
def test_frames(run, name):
    pytest.importorskip(name)
    frame = getattr(run, f"to_{name}")()
    assert frame.shape == (8, run.to_arrow().num_columns)
    assert list(frame["round"]) == list(range(8))


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_package_that_is_missing_is_named(run, name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"this needs {name}, which is not installed; pip install {name}"):
        getattr(run, "to_polars" if name == "polars" else "to_pandas")()
