"""A reply that is not finite is left out of the mean, also where the mean client does the work of all."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Keep, Ragged, simulate, simulate_many, spam_pp
from fedspam.datasets import FederatedData
from fedspam.methods import mvr, page
from fedspam.problems import quadratics
from fedspam.simulation.host_data import Stored
from fedspam.simulation.stopping import Target, Watch
from fedspam.solvers import Exact

BROKEN, COHORT = 7, 4
ROUNDS = 40


def squares(x, rows):
    return 0.5 * jnp.sum((x - rows["x"]) ** 2, axis=1)


def people(broken=BROKEN, size=20):
    """Clients of one row each; one of them has NaN in it."""
    rows = np.random.default_rng(0).normal(size=(size, 2))
    if broken is not None:
        rows[broken] = np.nan
    return FederatedData.of([(str(i), {"x": row[None]}) for i, row in enumerate(rows)])


def ragged(broken=BROKEN):
    return Ragged.of_sizes(people(broken).examples, people(broken).sizes, squares)


CLIENTS = ragged()
METHOD = mvr(COHORT, step_size=0.2, fresh_weight=0.5, start="zero")
START = jnp.zeros(2)
LEFT_OUT = pytest.warns(UserWarning, match=r"in \d+ of \d+ rounds a reply was not finite, and was left out")


def first(x):
    return {"first": x[0]}


def go(clients=CLIENTS, method=METHOD, **options):
    return simulate(method, clients, START, **{"rounds": ROUNDS, "key": 0, "every": 3, "probe": first} | options)


def same(one, other):
    np.testing.assert_array_equal(one.params, other.params)
    assert one.rows.keys() == other.rows.keys()
    for name, column in (one.rows | one.probes).items():
        np.testing.assert_array_equal(column, (other.rows | other.probes)[name], err_msg=name)


def test_the_reply_of_a_broken_client_is_left_out_and_counted():
    with LEFT_OUT as told:
        run = go()
    assert told[0].filename == __file__
    assert run.status.kind == "completed"
    assert not run.rows["void"].any()
    alone = go(per_client=True)
    np.testing.assert_allclose(run.params, alone.params, rtol=1e-5)  # in float32
    np.testing.assert_allclose(run.probes["first"], alone.probes["first"], rtol=1e-5)  # in float32
    for name in ("asked", "replied", "accepted"):
        np.testing.assert_array_equal(run.rows[f"difference.{name}"], alone.rows[f"difference.{name}"])
    for name in ("bytes_up", "bytes_down"):
        np.testing.assert_array_equal(run.rows[name], alone.rows[name])
    assert 0 < (run.rows["difference.accepted"] == COHORT - 1).sum() < ROUNDS


def test_rounds_without_it_keep_their_bits():
    """A run that never asks the broken client does not know of it."""
    ids = np.random.default_rng(1).integers(0, 6, size=(ROUNDS, COHORT))
    same(go(replay={"cohort": ids}), go(ragged(broken=None), replay={"cohort": ids}))


@pytest.mark.parametrize("length", [1, 4, 9])
def test_segments_and_folders_change_no_bit(tmp_path, length):
    with LEFT_OUT:
        whole = go()
    with LEFT_OUT:
        same(go(keep=Keep(every=length)), whole)
    with LEFT_OUT:
        go(rounds=17, keep=Keep(every=length), folder=tmp_path)
    with LEFT_OUT:
        same(go(keep=Keep(every=5), folder=tmp_path, resume=True), whole)


def test_data_on_the_host():
    with LEFT_OUT:
        same(go(Stored.of(people(), squares, window=7)), go())


def test_a_start_that_asks_everyone():
    method = mvr(20, step_size=0.2, fresh_weight=0.5, start="cohort")
    with LEFT_OUT, pytest.warns(UserWarning, match="left out of the start"):
        run = go(method=method)
    alone = go(method=method, per_client=True)
    np.testing.assert_allclose(run.params, alone.params, rtol=1e-5)  # in float32
    assert (run.rows["difference.accepted"] == 19).all()


def test_the_quorum_counts_the_replies_that_are_left():
    with pytest.warns(UserWarning, match="rounds were void"):
        strict = go(quorum=1.0)
    with LEFT_OUT:
        lenient = go(quorum=0.7)
    assert not lenient.rows["void"].any()
    np.testing.assert_array_equal(strict.rows["void"], lenient.rows["difference.accepted"] < COHORT)


def test_a_branch_that_asks_everyone():
    """PAGE asks everyone now and then: the counts of a branch are those of the replies."""
    method = page(COHORT, step_size=0.2, probability=0.3)
    with LEFT_OUT:
        run = go(method=method)
    alone = go(method=method, per_client=True)
    assert not run.rows["void"].any()
    for name in (name for name in alone.rows if name.endswith((".asked", ".accepted"))):
        np.testing.assert_array_equal(run.rows[name], alone.rows[name], err_msg=name)


def test_a_reply_that_nothing_replaces_makes_the_round_void():
    """SPAM-PP asks one client for the prox."""
    clients = quadratics(0, clients=12, dimension=2, delta=0.2)
    broken = {name: getattr(clients, name).at[BROKEN].set(np.nan) for name in ("linears", "eigenvalues")}
    clients = dataclasses.replace(clients, **broken)
    with LEFT_OUT, pytest.warns(UserWarning, match="rounds were void"):
        run = go(clients, spam_pp(COHORT, 0.8, 0.3, solver=Exact(), start="zero"), rounds=100)
    assert 0 < run.rows["void"].sum() < (run.rows["difference.accepted"] < COHORT).sum()


@pytest.mark.parametrize(
    "options",
    [{"side_by_side": True}, {"side_by_side": False}, {"until": Target("first", at_least=1e9), "lanes": 1}],
    ids=["beside", "after", "lanes"],
)
def test_many_runs_leave_it_out(options):
    methods = [mvr(COHORT, step_size=rate, fresh_weight=0.5, start="zero") for rate in (0.1, 0.3)]
    with LEFT_OUT as told:
        many = simulate_many(methods, CLIENTS, START, rounds=ROUNDS, keys=[0, 3], probe=first, every=3, **options)
    assert told[0].filename == __file__
    assert many.status.kind == "completed"
    assert not many.rows["void"].any()
    for i, method in enumerate(methods):
        for j, key in enumerate((0, 3)):
            alone = go(method=method, key=key, per_client=True)
            np.testing.assert_allclose(many.params[i, j], alone.params, rtol=1e-5)  # in float32
            np.testing.assert_allclose(many.probes["first"][i, j], alone.probes["first"], rtol=1e-5)  # in float32
            accepted = many.rows["difference.accepted"][i, j]
            np.testing.assert_array_equal(accepted, alone.rows["difference.accepted"])


def test_many_runs_that_ask_everyone_leave_it_out():
    """Every round asks the broken client, so that none of them is valid before its reply is left out."""
    method = mvr(20, step_size=0.2, fresh_weight=0.5, start="cohort")
    with LEFT_OUT:
        many = simulate_many(method, CLIENTS, START, rounds=6, keys=[0])
    assert many.status.kind == "completed"
    assert (many.rows["difference.accepted"] == 19).all()
    assert np.isfinite(many.params).all()


def test_a_setting_that_diverges_is_not_repeated():
    """All replies of a diverging run are infinite: nothing is left of it, and its rows say so."""
    methods = [mvr(COHORT, step_size=rate, fresh_weight=0.5, start="zero") for rate in (0.1, 1e80)]
    clients = ragged(broken=None)
    with pytest.warns(UserWarning, match="rounds were void"):
        many = simulate_many(methods, clients, START, rounds=12, keys=[0], watch=Watch(patience=4))
    assert not many.rows["void"][0].any()
    assert many.rows["void"][1].sum() == 4
    assert (many.rows["difference.accepted"][1, 0] == np.where(many.rows["void"][1, 0], 0, COHORT))[
        : many.rounds_done[1, 0]
    ].all()
