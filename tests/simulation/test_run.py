"""The simulator: faults, void rounds, branches, resuming, recording, and what it refuses."""

import json
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedspam import Faults, Generated, Keep, Ragged, on_client, simulate, simulate_many, spam, spam_pp, spam_ppa
from fedspam._internal import prng
from fedspam._internal.trees import struct
from fedspam.methods import mvr
from fedspam.problems import Quadratics, quadratics
from fedspam.simulation import records
from fedspam.solvers import Exact


@pytest.fixture(scope="module")
def clients():
    return quadratics(jax.random.key(0), clients=12, dimension=4, delta=0.2, condition=4.0)


METHOD = spam_pp(5, 0.8, 0.3, solver=Exact())
ROUNDING = 1e-4  # of some rounds in float32; near the optimum little of a number is left


def norm_of(clients):
    return lambda x: {"norm": jnp.linalg.norm(clients.gradient(x))}


# --- faults ---


@pytest.mark.slow
def test_fault_rates_are_those_asked_for(clients):
    run = simulate(METHOD, clients, jnp.ones(4), rounds=2000, key=0, faults=Faults(dropout=0.2, nan=0.1, late=0.15))
    asked = run.rows["difference.asked"].sum()
    assert asked == 10_000
    assert abs(run.rows["difference.replied"].sum() / asked - 0.8) < 0.015
    assert abs(run.rows["difference.accepted"].sum() / asked - 0.55) < 0.02


@pytest.mark.slow
def test_it_converges_through_faults(clients):
    faults = Faults(dropout=0.2, nan=0.1)
    run = simulate(METHOD, clients, jnp.ones(4), rounds=400, key=0, faults=faults, probe=norm_of(clients))
    assert np.isfinite(run.probes["norm"]).all()
    assert np.median(run.probes["norm"][-50:]) < 0.1 * run.probes["norm"][0]


def test_a_void_round_changes_nothing_and_is_charged(clients):
    run = simulate(
        spam(0.8, 0.3, solver=Exact(), start="zero"), clients, jnp.ones(4), rounds=3, key=0, faults=Faults(nan=1.0)
    )
    assert run.rows["void"].all()
    np.testing.assert_array_equal(run.params, jnp.ones(4))
    assert int(run.state.k) == 0
    assert (run.rows["bytes_down"] > 0).all()
    assert (run.rows["bytes_up"] > 0).all()
    silent = simulate(
        spam(0.8, 0.3, solver=Exact(), start="zero"), clients, jnp.ones(4), rounds=3, key=0, faults=Faults(dropout=1.0)
    )
    assert (silent.rows["bytes_up"] == 0).all()


@pytest.mark.slow
def test_a_missed_quorum_is_void(clients):
    faults = Faults(dropout=0.5)
    run = simulate(METHOD, clients, jnp.ones(4), rounds=200, key=0, faults=faults, quorum=0.8)
    missed = run.rows["difference.accepted"] < 4
    assert 0.5 < missed.mean() < 1
    assert run.rows["void"][missed].all()
    assert int(run.state.k) == (~run.rows["void"]).sum()


@pytest.mark.slow
def test_a_client_that_is_lost_vanishes_from_both_gradients(clients):
    """The mean over those who answered: a round with faults equals the round of the smaller cohort."""
    faults = Faults(dropout=0.4)
    start = clients.gradient(jnp.ones(4))
    method = spam_ppa(5, 0.8, 0.3, solver=Exact(), start=start, first="update")
    run = simulate(method, clients, jnp.ones(4), rounds=1, key=3, faults=faults)
    assert 0 < int(run.rows["difference.accepted"][0]) < 5
    # equal Hessians would hide a mistake; with these, c_i = p grad f_i(x_0), so g lies in their span
    assert np.isfinite(run.params).all()


@pytest.mark.slow
def test_no_usable_start_is_an_error(clients):
    with pytest.raises(RuntimeError, match="start of the method"):
        simulate(METHOD, clients, jnp.ones(4), rounds=1, key=0, faults=Faults(nan=1.0))


@pytest.mark.parametrize("faults", [{"dropout": -0.1}, {"nan": 1.1}, {"dropout": 0.6, "late": 0.6}])
def test_impossible_faults_are_refused(faults):
    with pytest.raises(ValueError, match=r"must (lie in|be at most 1)"):
        Faults(**faults)


def test_divergence_stops_with_the_last_good_state():
    clients = Quadratics.of([[[-1.0]], [[-1.0]]], [[0.0], [0.0]])  # unbounded below
    method = spam(1.9, 1.0, solver=Exact(), first="update")
    run = simulate(method, clients, jnp.ones(1), rounds=20_000, key=0, keep=Keep(every=500))
    assert str(run.status).startswith("stopped")
    assert np.isfinite(run.params).all()
    assert run.rounds < 20_000


# --- branches ---


class CoinState(NamedTuple):
    x: jax.Array


class CoinInfo(NamedTuple):
    heads: jax.Array


@struct
class Coin:
    """Asks everyone with probability 1/4, else one client: a condition around exchanges, and one after it."""

    chance: float = 0.25

    def init(self, params, key, fed):
        return CoinState(params)

    def round(self, state, key, fed):
        heads = jax.random.uniform(key) < self.chance
        everyone = lambda: fed.mean(fed.everyone(key), self.gradient, x=state.x)
        one = lambda: fed.mean(fed.sample(key, 1), self.gradient, x=state.x)
        g = fed.cond(heads, everyone, one)
        again = fed.mean(fed.sample(key, 2, role="second"), self.gradient, x=state.x)
        return CoinState(state.x - 0.1 * (g + again)), CoinInfo(heads)

    @on_client(affine=True)
    def gradient(self, oracle, key, *, x):
        return jax.grad(oracle)(x, key)

    def params(self, state):
        return state.x

    def client_state(self, params):
        return ()


@pytest.mark.slow
def test_a_condition_charges_the_branch_that_was_taken(clients):
    from fedspam.federation import loopback

    run = simulate(Coin(), clients, jnp.ones(4), rounds=40, key=0)
    heads = run.rows["heads"]
    assert 0 < heads.sum() < 40
    np.testing.assert_array_equal(run.rows["gradient@yes.asked"], np.where(heads, 12, 0))
    np.testing.assert_array_equal(run.rows["gradient@no.asked"], np.where(heads, 0, 1))
    np.testing.assert_array_equal(run.rows["floats_up"], np.where(heads, 14 * 4, 3 * 4))
    state, fed = loopback.run(Coin(), clients, jnp.ones(4), rounds=40, key=0)
    np.testing.assert_allclose(state.x, run.params, rtol=ROUNDING)
    assert fed.bytes_down == run.rows["bytes_down"].sum()
    assert run.plan.branches


# --- disk ---


@pytest.mark.slow
def test_resuming_gives_the_bits_of_the_undisturbed_run(clients, tmp_path):
    options = {"key": 5, "keep": Keep(every=10), "probe": norm_of(clients), "every": 5}
    whole = simulate(METHOD, clients, jnp.ones(4), rounds=50, **options)
    options["probe"] = norm_of(clients)
    simulate(METHOD, clients, jnp.ones(4), rounds=20, folder=tmp_path / "run", **options)
    resumed = simulate(METHOD, clients, jnp.ones(4), rounds=50, folder=tmp_path / "run", resume=True, **options)
    assert np.asarray(resumed.params).tobytes() == np.asarray(whole.params).tobytes()
    for name, column in whole.rows.items():
        np.testing.assert_array_equal(resumed.rows[name], column)
    np.testing.assert_array_equal(resumed.probes["norm"], whole.probes["norm"])


def test_a_folder_may_be_anything_that_names_a_path(clients, tmp_path):
    class Place:
        def __fspath__(self):
            return str(tmp_path / "run")

    simulate(METHOD, clients, jnp.ones(4), rounds=1, key=5, folder=Place())  # type: ignore[arg-type]
    assert (tmp_path / "run" / "manifest.json").is_file()


@pytest.mark.slow
def test_another_run_is_not_resumed(clients, tmp_path):
    simulate(METHOD, clients, jnp.ones(4), rounds=10, key=5, folder=tmp_path)
    with pytest.raises(records.RecordError, match=r"step_size.*0\.8.*0\.7"):
        simulate(
            spam_pp(5, 0.7, 0.3, solver=Exact()), clients, jnp.ones(4), rounds=20, key=5, folder=tmp_path, resume=True
        )
    with pytest.raises(records.RecordError, match="already holds a run"):
        simulate(METHOD, clients, jnp.ones(4), rounds=10, key=5, folder=tmp_path)


@pytest.mark.parametrize("damage", ["truncate", "flip", "remove"])
@pytest.mark.slow
def test_a_damaged_checkpoint_falls_back_to_the_one_before(clients, tmp_path, damage):
    options = {"rounds": 30, "key": 5, "keep": Keep(every=10), "folder": tmp_path}
    whole = simulate(METHOD, clients, jnp.ones(4), **options)
    newest = sorted(tmp_path.glob("checkpoint-*"))[-1]
    data = newest.read_bytes()
    if damage == "truncate":
        newest.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        newest.write_bytes(data[:-3] + bytes([data[-3] ^ 1]) + data[-2:])
    else:
        newest.unlink()
    if damage == "remove":
        resumed = simulate(METHOD, clients, jnp.ones(4), **options, resume=True)
    else:
        with pytest.warns(UserWarning, match="damaged"):
            resumed = simulate(METHOD, clients, jnp.ones(4), **options, resume=True)
    assert np.asarray(resumed.params).tobytes() == np.asarray(whole.params).tobytes()
    assert resumed.rounds == 30


def test_the_manifest_says_what_was_run(clients, tmp_path):
    simulate(METHOD, clients, jnp.ones(4), rounds=5, key=5, folder=tmp_path)
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest["identity"]["method"]["fresh_weight"]["value"] == 0.3
    assert manifest["identity"]["method"]["name"] == "spam_pp"
    assert {"fedspam", "jax", "python", "device"} <= manifest.keys()


# --- many ---


@pytest.mark.slow
def test_many_step_sizes_and_seeds_in_one_call(clients):
    methods = [spam_pp(5, gamma, 0.3, solver=Exact()) for gamma in (0.2, 0.8, 3.0)]
    many = simulate_many(methods, clients, jnp.ones(4), rounds=15, keys=[4, 5], probe=norm_of(clients))
    assert many.params.shape == (3, 2, 4)
    assert many.probes["norm"].shape == (3, 2, 16)
    alone = simulate(methods[2], clients, jnp.ones(4), rounds=15, key=5)
    np.testing.assert_allclose(many.params[2, 1], alone.params, rtol=ROUNDING)


@pytest.mark.parametrize("side_by_side", [True, False])
def test_many_of_a_method_without_numbers(clients, side_by_side):
    @struct
    class Halving:
        """Asks nobody, and has no number that could differ."""

        def init(self, params, key, fed):
            return params

        def round(self, state, key, fed):
            return state / 2, {}

        def params(self, state):
            return state

        def client_state(self, params):
            return ()

    run = simulate_many([Halving()] * 3, clients, jnp.ones(4), rounds=2, keys=[0, 1], side_by_side=side_by_side)
    np.testing.assert_array_equal(run.params, np.full((3, 2, 4), 0.25))


def test_methods_of_other_structure_are_not_run_together(clients):
    with pytest.raises(ValueError, match="more than numbers"):
        simulate_many([METHOD, spam(0.1, 0.5)], clients, jnp.ones(4), rounds=1, keys=[0])
    with pytest.raises(ValueError, match="give at least one method"):
        simulate_many([], clients, jnp.ones(4), rounds=1, keys=[0])


# --- refusals ---


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"chunk": 0}, "chunk = 0"),
        ({"quorum": 2.0}, "quorum = 2.0"),
        ({"params": jnp.array([1.0, jnp.nan, 0.0, jnp.inf])}, "2 values that are NaN or infinite"),
        ({"params": jnp.arange(4)}, "dtype"),
        ({"params": {"x": "hello"}}, "is a str"),
        ({"params": ()}, "no arrays"),
        ({"method": spam_pp(13, 0.1, 0.5)}, "larger than the population of 12"),
        ({"record": ("certificat.decrease",)}, "does not report"),
        ({"replay": {"cohort": np.zeros((2, 5), int)}}, "has 2 rounds, but rounds=3; shorten the run"),
        ({"replay": {"cohort": np.full((3, 5), 99)}}, "names client 99"),
        ({"replay": {"cohort": np.full((3, 5), 0.7)}}, "has dtype float64; ids of clients must be integers"),
        ({"replay": {"cohort": np.full((3, 5), np.nan)}}, "has dtype float64; ids of clients must be integers"),
        ({"replay": {"cohort": 3}}, "is one value; give ids of clients for each round"),
        ({"replay": {"cohort": np.zeros((3, 4), int)}}, "has 4 clients per round, but the method draws 5"),
        (
            {"replay": {"cohorts": np.zeros((3, 5), int)}},
            "replay\\['cohorts'\\] is not a draw of this method; it draws cohort",
        ),
        ({"every": 0}, "every = 0"),
        ({"key": 2**40}, "key = 1099511627776 must be below"),
        ({"key": -1}, "key = -1"),
        ({"key": 0.5}, "key = 0.5"),
        ({"key": np.array([1, 2])}, r"key = array\(\[1, 2\]\) must be a whole number .* made by jax.random.key"),
        ({"key": jnp.array([1, 2])}, "made by jax.random.key"),
        ({"key": jnp.float32(5)}, "made by jax.random.key"),
    ],
)
def test_bad_input_is_refused(clients, change, says):
    arguments = {"method": METHOD, "population": clients, "params": jnp.ones(4), "rounds": 3, "key": 0} | change
    with pytest.raises(ValueError, match=says):
        simulate(arguments.pop("method"), arguments.pop("population"), arguments.pop("params"), **arguments)


@pytest.mark.parametrize("seed", [jnp.int32(5), jnp.uint32(5), np.array(5), np.int64(5)])
def test_a_seed_may_be_an_integer_of_any_library(seed):
    assert prng.key_of(seed) == jax.random.key(5)
    assert jax.jit(prng.key_of)(seed) == jax.random.key(5)


def test_keys_may_be_arrays_of_seeds():
    expected = jnp.stack([jax.random.key(1), jax.random.key(2)])
    for keys in ([1, 2], range(1, 3), np.array([1, 2]), jnp.array([1, 2]), expected):
        np.testing.assert_array_equal(jax.random.key_data(prng.keys_of(keys)), jax.random.key_data(expected))
    for wrong, says in ((5, "keys = 5 must be several"), ([], r"keys = \[\] is empty"), ([0.5], "key = 0.5")):
        with pytest.raises(ValueError, match=says):
            prng.keys_of(wrong)


def test_everyone_of_an_endless_population_is_refused():
    endless = Generated(make=lambda key: jax.random.normal(key, (4,)), loss=lambda x, c: jnp.sum((x - c) ** 2))
    with pytest.raises(ValueError, match="endless"):
        simulate(Coin(), endless, jnp.ones(4), rounds=1, key=0)


@pytest.mark.parametrize("value", ["0.1", -0.1, np.float32(-0.1), jnp.float32(-0.1), np.array(-0.1), jnp.nan])
def test_a_step_size_that_is_no_positive_number_is_refused(value):
    with pytest.raises(ValueError, match="step_size"):
        spam_pp(5, value, 0.3)


@pytest.mark.slow
def test_many_runs_do_all_rounds_that_were_asked_for(clients):
    run = simulate_many(METHOD, clients, jnp.ones(4), rounds=30, keys=[0, 1], every=7, probe=norm_of(clients))
    alone = simulate(METHOD, clients, jnp.ones(4), rounds=30, key=1, every=7, probe=norm_of(clients))
    assert run.rounds == alone.rounds == 30
    assert run.probes["norm"].shape == (1, 2, 5)  # the start, and after 7, 14, 21 and 28 rounds
    np.testing.assert_allclose(run.probes["norm"][0, 1], alone.probes["norm"], rtol=ROUNDING)
    np.testing.assert_allclose(run.params[0, 1], alone.params, rtol=ROUNDING)
    with pytest.raises(ValueError, match="every = 0"):
        simulate_many(METHOD, clients, jnp.ones(4), rounds=3, keys=[0], every=0)


@pytest.mark.slow
def test_a_run_without_a_valid_round_does_not_say_completed(clients):
    silent = Faults(dropout=1.0)
    method = spam_pp(5, 0.8, 0.3, solver=Exact(), start="zero")
    run = simulate(method, clients, jnp.ones(4), rounds=3, key=0, faults=silent)
    assert str(run.status) == "stopped: all 3 rounds were void; the first parameters are kept"
    np.testing.assert_array_equal(run.params, jnp.ones(4))
    many = simulate_many(method, clients, jnp.ones(4), rounds=3, keys=[0, 1], faults=silent)
    assert str(many.status) == "stopped: in 2 of 2 runs all rounds were void"


def with_a_broken_client():
    """A method, and four clients of which one has a loss of NaN."""
    data = {"x": jnp.array([[1.0], [2.0], [jnp.nan], [4.0]])}
    clients = Ragged.of_sizes(data, [1, 1, 1, 1], lambda x, rows: 0.5 * jnp.sum((x - rows["x"]) ** 2, axis=1))
    return mvr(2, step_size=0.1, fresh_weight=0.5, start="zero"), clients


@pytest.mark.slow
def test_many_runs_report_void_rounds_and_need_no_evaluation():
    """Void rounds passed in silence, and fewer rounds than `every` ended in an IndexError."""
    method, clients = with_a_broken_client()
    first = lambda x: {"first": x[0]}
    options = {"every": 20, "probe": first, "quorum": 1.0}
    with pytest.warns(UserWarning, match=r"of 24 rounds were void.*look for the client") as told:
        run = simulate_many(method, clients, jnp.zeros(1), rounds=12, keys=[0, 1], **options)
    assert told[0].filename == __file__
    assert run.status.kind == "completed"
    np.testing.assert_array_equal(run.probes["first"], np.zeros((1, 2, 1)))  # the start alone
    assert np.all(run.params != 0)


@pytest.mark.slow
def test_void_rounds_without_faults_are_reported():
    """One client whose loss is NaN voids every round that asks it, if the quorum needs all."""
    method, clients = with_a_broken_client()
    with pytest.warns(UserWarning, match="rounds were void, because a reply was not finite"):
        run = simulate(method, clients, jnp.zeros(1), rounds=12, key=0, quorum=1.0)
    assert 0 < run.rows["void"].sum() < 12
    np.testing.assert_array_equal(run.rows["void"], run.rows["difference.accepted"] < 2)


# --- wrong uses ---


@pytest.mark.slow
def test_a_list_that_ends_before_the_run_is_said(clients) -> None:
    method = spam_pp(2, step_size=[0.1, 0.2], fresh_weight=0.3)
    with pytest.warns(UserWarning, match="2 values for 3 rounds; later rounds use the last one. Give one value per"):
        simulate(method, clients, jnp.zeros(4), rounds=3, key=0)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"method": spam_pp}, r"method = spam_pp is a constructor, not a method; call it: spam_pp\("),
        ({"method": "fedavg"}, "method = fedavg is a constructor, not a method"),
        ({"method": type(METHOD)}, "is a constructor, not a method"),
        ({"devices": "gpu"}, r"devices = 'gpu' must be a list of devices, such as jax.devices\(\)"),
        ({"devices": [0]}, "must be a list of devices"),
        ({"record": [["step_size"]]}, r"record holds \['step_size'\]; it must be names of columns"),
    ],
)
def test_simulate_names_what_is_wrong(options: dict, told: str, clients) -> None:
    given = {"method": METHOD, "rounds": 2, "key": 0, **options}
    with pytest.raises(ValueError, match=told):
        simulate(given.pop("method"), clients, jnp.zeros(4), **given)
