"""The cells of a table side by side: what `simulate` computes, continued to the same bits, and never mixed up."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from fedspam import simulate
from fedspam.datasets import FederatedData
from fedspam.methods import Epochs, scaffold
from fedspam.models import softmax_regression
from fedspam.simulation import Evaluation
from fedspam.simulation.records import RecordError
from side_by_side import Cells, compile_all, run_cells

ROUNDS = 7  # a whole segment and a part of one


@pytest.fixture(scope="module")
def toy():
    """A method with a memory, two populations whose clients differ in size, and test rows."""
    random = np.random.default_rng(0)
    rows = {"features": random.normal(size=(40, 3)).astype(np.float32), "label": random.integers(0, 3, 40)}
    model = softmax_regression(3, 3)
    owners = np.repeat(np.arange(3), (20, 12, 8)), np.repeat(np.arange(3), (5, 30, 5))
    clients = [FederatedData.by(rows, owner).population(model.loss, batch=4) for owner in owners]
    clients = [dataclasses.replace(each, capacity=40) for each in clients]
    loss = lambda params, rows: {"accuracy": model.loss(params, rows)}  # unlike an accuracy, it shows every difference
    judge = Evaluation.of(FederatedData.by(rows, np.zeros(40, int)), loss, block=40)
    return scaffold(3, Epochs(1), 0.3), clients, Cells.of(clients, model.init(0), 5, judge), judge, model


@pytest.fixture(scope="module")
def whole(toy):
    method, _, cells, _, _ = toy
    return run_cells(method, cells, ROUNDS, identity={})


def test_a_cell_is_what_simulate_computes(toy, whole):
    method, clients, cells, judge, model = toy
    assert whole.shape == (ROUNDS + 1, 2)
    for place, each in enumerate(clients):
        alone = simulate(method, each, model.init(0), rounds=ROUNDS, key=5, probe=judge)
        np.testing.assert_array_equal(whole[:, place], alone.probes["accuracy"])
    assert len(np.unique(whole)) == 2 * ROUNDS + 1  # only the start is the same
    together = run_cells(method, dataclasses.replace(cells, together=True), ROUNDS, identity={})
    np.testing.assert_allclose(together, whole, atol=1e-6)


def test_a_stopped_run_continues_to_the_same_bits(toy, whole, tmp_path):
    method, _, cells, _, _ = toy
    seen = []

    def stop(done, accuracy, seconds):
        raise KeyboardInterrupt

    run = partial(run_cells, method, cells, ROUNDS, folder=tmp_path / "x", identity={"table": "toy"})
    with pytest.raises(KeyboardInterrupt):
        run(observe=stop)
    with pytest.raises(RecordError, match="already holds a run; resume it, or choose another folder"):
        run()
    with pytest.raises(RecordError, match='holds another run: table changed from "toy" to "other"'):
        run_cells(method, cells, ROUNDS, folder=tmp_path / "x", identity={"table": "other"}, resume=True)
    np.testing.assert_array_equal(run(resume=True, observe=lambda done, *_: seen.append(done)), whole)
    assert seen == [ROUNDS]  # the first five rounds were not run again
    np.testing.assert_array_equal(run(resume=True, observe=stop), whole)  # it is finished: nothing runs


def test_compiling_together_changes_nothing(toy, whole):
    method, _, cells, _, _ = toy
    compile_all([(method, cells)])
    np.testing.assert_array_equal(run_cells(method, cells, ROUNDS, identity={}), whole)
