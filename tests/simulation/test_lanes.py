"""Sweeps whose runs end early: where they end, what they return, and what stands in the rounds that they did not do."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Patience, Target, Watch, simulate, simulate_many
from fedspam.methods import scaffold
from fedspam.problems import quadratics

pytestmark = pytest.mark.x64  # the same runs one by one, to the last digits

ROUNDS, SEEDS, GOAL, TWICE, GROWTH = 40, (3, 4), 0.3, 2, 1e4
RATES = (0.01, 0.05, 1.0, 0.1, 5.0)  # too slow, arrives, grows, arrives, grows fast


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(0), clients=9, dimension=3, delta=0.2, condition=4.0)


def sweep(clients, **options):
    probe = jax.tree_util.Partial(lambda clients, x: {"norm": jnp.linalg.norm(clients.gradient(x)), "x": x}, clients)
    methods = [scaffold(3, 2, rate) for rate in RATES]
    return simulate_many(methods, clients, jnp.ones(3), keys=SEEDS, probe=probe, **{"rounds": ROUNDS, **options})


def stopping():
    until = Target("norm", at_most=GOAL, evaluations=TWICE)
    return {"until": until, "watch": Watch(growth=GROWTH)}


@pytest.fixture(scope="module")
def whole(clients):
    return {beside: sweep(clients, side_by_side=beside) for beside in (False, True)}


@pytest.fixture(scope="module")
def ended(clients):
    return {
        False: sweep(clients, side_by_side=False, **stopping()),
        True: sweep(clients, side_by_side=True, lanes=2, **stopping()),
    }


def ends(whole):
    """Where every run has to end, round by round from all its probes, and why."""
    done, why = np.full((len(RATES), len(SEEDS)), ROUNDS), {}
    for run in np.ndindex(done.shape):
        norms = whole.probes["norm"][run]
        for k in range(1, ROUNDS + 1):
            if np.linalg.norm(whole.probes["x"][run][k]) > GROWTH * np.sqrt(3):
                done[run], why[run] = k, "grew"
            elif np.all(norms[k - TWICE + 1 : k + 1] <= GOAL) and k >= TWICE - 1:
                done[run], why[run] = k, "reached"
            if run in why:
                break
    return done, why


@pytest.mark.parametrize("beside", [False, True])
def test_runs_end_where_they_reach_the_target_or_diverge(whole, ended, beside):
    full, run = whole[beside], ended[beside]
    done, why = ends(full)
    assert {"grew", "reached"} == set(why.values())
    assert np.any(done == ROUNDS)
    np.testing.assert_array_equal(run.rounds_done, done)
    grew, reached = (sum(each == word for each in why.values()) for word in ("grew", "reached"))
    assert str(run.status) == (
        f"stopped: in {grew} of 10 runs ‖x‖ grew to 10000 times its first value, in {reached} of 10 runs norm is at "
        "most 0.3"
    )
    assert full.status.kind == "completed"
    np.testing.assert_array_equal(full.rounds_done, np.full((5, 2), ROUNDS))


@pytest.mark.parametrize("beside", [False, True])
def test_rounds_that_were_done_are_as_without_an_end_and_others_hold_nothing(whole, ended, beside):
    """One after another to the bit; side by side up to the last bits, as for other numbers of runs."""
    full, run = whole[beside], ended[beside]
    same = np.testing.assert_array_equal if not beside else lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-11)
    assert run.rows.keys() == full.rows.keys()
    assert {"void", "bytes_up"} < run.rows.keys()
    for each in np.ndindex(run.rounds_done.shape):
        done = run.rounds_done[each]
        for table, cut in (("rows", done), ("probes", done + 1)):
            for name, column in getattr(run, table).items():
                reference = getattr(full, table)[name]
                assert (column.shape, column.dtype) == (reference.shape, reference.dtype)
                same(column[each][:cut], reference[each][:cut])
                nothing = np.isnan if column.dtype.kind == "f" else np.logical_not
                assert np.all(nothing(column[each][cut:]))
        same(run.params[each], full.probes["x"][each][done])


def test_state_and_memory_are_those_after_the_last_round(clients, ended):
    which = (1, 1)
    done = int(ended[False].rounds_done[which])
    assert 1 < done < ROUNDS
    alone = simulate(scaffold(3, 2, RATES[1]), clients, jnp.ones(3), rounds=done, key=SEEDS[1])
    for run in ended.values():
        pairs = zip(jax.tree.leaves((run.state, run.memory)), jax.tree.leaves((alone.state, alone.memory)), strict=True)
        for many, one in pairs:
            np.testing.assert_allclose(many[which], one, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("beside", [False, True])
def test_every_method_can_have_rounds_of_its_own(clients, ended, beside):
    rounds = (7, 1, ROUNDS, ROUNDS, 1)
    run = sweep(clients, rounds=rounds, side_by_side=beside, lanes=2 if beside else None, **stopping())
    done = np.minimum(ended[beside].rounds_done, np.array(rounds)[:, None])
    np.testing.assert_array_equal(run.rounds_done, done)
    assert "in 2 of 10 runs ‖x‖ grew" in run.status.reason  # one round of the fast one is not enough
    np.testing.assert_array_equal(run.probes["x"][0, :, :8], ended[beside].probes["x"][0, :, :8])
    assert np.all(np.isnan(run.probes["x"][0, :, 8:]))
    np.testing.assert_array_equal(run.params[0], run.probes["x"][0, :, 7])


@pytest.mark.thorough
def test_evaluations_every_few_rounds_lanes_and_a_watched_probe(clients):
    """The same ends for any number of lanes, and as one after another; the last rounds have no evaluation."""
    options = {"every": 7, "until": Target("norm", at_most=GOAL), "watch": Watch(growth=GROWTH, probe="norm")}
    reference = sweep(clients, side_by_side=False, **options)
    assert len(np.unique(reference.rounds_done)) > 2
    assert np.all((reference.rounds_done % 7 == 0) | (reference.rounds_done == ROUNDS))
    for lanes in (1, 5):
        run = sweep(clients, side_by_side=True, lanes=lanes, **options)
        np.testing.assert_array_equal(run.rounds_done, reference.rounds_done)
        np.testing.assert_allclose(run.probes["x"], reference.probes["x"], rtol=1e-11)
        assert run.status == reference.status
        assert "norm grew to" in run.status.reason


@pytest.mark.slow
@pytest.mark.parametrize("beside", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_run_of_void_rounds_ends(clients, beside):
    methods = [scaffold(3, 2, rate) for rate in (0.05, 1e60)]
    with pytest.warns(UserWarning, match="rounds were void"):
        run = simulate_many(
            methods, clients, jnp.ones(3), rounds=12, keys=[0], side_by_side=beside, watch=Watch(patience=4)
        )
    assert str(run.status) == "stopped: in 1 of 2 runs 4 rounds in a row were void"
    done = int(run.rounds_done[1, 0])
    assert run.rounds_done[0, 0] == 12 > done
    np.testing.assert_array_equal(run.rows["void"][1, 0], [False] * (done - 4) + [True] * 4 + [False] * (12 - done))
    assert np.all(np.isfinite(run.params))  # void rounds leave the parameters as they were


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"lanes": 0}, "lanes = 0"),
        ({"rounds": (3, 4)}, "rounds has 2 numbers for 5 methods"),
        ({"rounds": (3, 4, 0, 1, 1)}, "rounds = 0"),
        ({"until": Patience("norm", 3)}, "end with a Target, or a Watch"),
        ({"until": Target("loss", at_most=1.0)}, r"'loss' is not a probe of this run; it has \['norm', 'x'"),
        ({"watch": Watch(growth=9.0, probe="loss")}, "watch.probe = 'loss'"),
    ],
)
def test_wrong_ends_are_refused(clients, options, says):
    with pytest.raises(ValueError, match=says):
        sweep(clients, **options)
