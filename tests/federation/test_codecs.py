"""Codecs: unbiased and within their variance, exact bytes, refused when damaged, and the same in every world."""

import functools
import math
from tomllib import loads as read_toml
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from fedspam import simulate, simulate_many, spam_pp
from fedspam._internal.strict import MalformedError
from fedspam._internal.trees import struct
from fedspam.app.config import ConfigError, decode as config_of, to_toml
from fedspam.app.experiment.build import make
from fedspam.federation import ledger, loopback, on_client, wire
from fedspam.federation.codecs import (
    Cast,
    Codecs,
    Grid,
    LowRank,
    Natural,
    Quantize,
    RandK,
    TernGrad,
    TopK,
    decode,
    encode,
    encode_numpy,
    parse,
    rounded,
    size,
)
from fedspam.federation.codecs.fields import CHECKSUM, signed, verified
from fedspam.methods import fedavg, page, scaffold
from fedspam.problems import quadratics
from fedspam.simulation import records
from fedspam.solvers import GradientDescent

pytestmark = pytest.mark.x64  # in float32 a rounding may turn a code into the next one

UNBIASED = [Quantize(2), Quantize(4), Quantize(8), TernGrad(), Natural(), RandK(0.3)]
BIASED = [TopK(0.3), LowRank(2), Cast("float16"), Cast("bfloat16"), Cast("float32")]
ALL = [Quantize(3), Quantize(8), Quantize(16), Grid(5, 3.0), TernGrad(), Natural(), RandK(0.3), *BIASED]
of = lambda codecs: pytest.mark.parametrize("codec", codecs, ids=str)
DRAWS = 100_000
SHAPE = (7, 40)  # two blocks
one_rounding = jax.jit(rounded)


def like(shape, dtype=np.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def worst(codec, count):
    """A vector on which the variance of a codec is as large as it can be."""
    if isinstance(codec, Natural):
        return np.full(count, 4 / 3)
    if isinstance(codec, RandK):
        return np.linspace(1, 2, count)
    levels = codec.levels if isinstance(codec, Quantize) else 1
    shares = np.linspace(0, 1, 1001)[1:]
    others = shares[np.argmax((shares - shares**2) / (levels**2 + (count - 1) * shares**2))]
    return np.append(others * np.ones(count - 1), levels)


@of(UNBIASED)
@pytest.mark.slow
def test_it_is_unbiased_and_its_variance_within_omega(codec):
    """Over 10^5 draws, to five standard errors; on the worst vector the variance is omega itself."""
    keys = jax.random.split(jax.random.key(0), DRAWS)
    draws = jax.jit(jax.vmap(lambda key, x: rounded(codec, key, x), (0, None)))
    for x in (np.random.default_rng(1).normal(size=20), worst(codec, 20)):
        x = x.astype(np.float32)
        seen = np.asarray(draws(keys, x), np.float64)
        error = 5 * seen.std(axis=0) / math.sqrt(DRAWS) + 1e-6 * np.abs(x)
        assert np.all(np.abs(seen.mean(axis=0) - x) <= error)
        squares = np.sum((seen - x) ** 2, axis=1) / np.sum(x.astype(float) ** 2)
        spread = 5 * squares.std() / math.sqrt(DRAWS) + 1e-6
        assert squares.mean() <= codec.omega(x) + spread
    assert squares.mean() >= codec.omega(x) - spread


def test_a_grid_is_unbiased_within_its_bound_and_clips_beyond():
    x = np.array([0.3, -0.99, 0.0, 1.0, -7.0], np.float32)
    keys = jax.random.split(jax.random.key(0), 20_000)
    seen = np.asarray(jax.jit(jax.vmap(lambda key: rounded(Grid(3, 1.0), key, x)))(keys), np.float64)
    error = 5 * seen.std(axis=0) / math.sqrt(len(seen)) + 1e-6
    assert np.all(np.abs(seen.mean(axis=0) - np.clip(x, -1, 1)) <= error)
    assert np.abs(seen - np.clip(x, -1, 1)).max() <= 1 / 3
    assert np.isnan(rounded(Grid(3, 1.0), keys[0], np.array([np.nan, 1.0], np.float32))).all()


finite = st.floats(-1e4, 1e4, width=32).filter(lambda v: v == 0 or abs(v) > 1e-3)


@of(BIASED)
@settings(deadline=None, max_examples=20)
@given(x=hnp.arrays(np.float32, SHAPE, elements=finite))
@pytest.mark.slow
def test_a_biased_codec_contracts_by_alpha(codec, x):
    error = np.sum((decode(codec, encode(codec, jax.random.key(0), x), x).astype(float) - x) ** 2)
    assert error <= (1 - codec.alpha(x) + 1e-6) * np.sum(x.astype(float) ** 2)


OTHERS = [(codec, dtype) for codec in (Quantize(4), TopK(0.3), Cast("float16")) for dtype in ("float64", "bfloat16")]
OTHERS = [pytest.param(codec, dtype, marks=pytest.mark.slow) for codec, dtype in OTHERS]


@pytest.mark.parametrize(("codec", "dtype"), [*((codec, "float32") for codec in ALL), *OTHERS])
@pytest.mark.slow
def test_what_is_decoded_is_what_a_simulation_uses(codec, dtype):
    """To the bit, and in as many bytes as stated. Only a product of matrices may round otherwise."""
    x = jnp.asarray(np.random.default_rng(2).normal(size=SHAPE), dtype)
    x = x.at[0].set(0)
    payload = encode(codec, jax.random.key(3), x)
    assert payload.dtype == np.uint8
    assert len(payload) == size(codec, x)
    found, used = decode(codec, payload, x), one_rounding(codec, jax.random.key(3), x)
    assert (found.shape, found.dtype) == (x.shape, x.dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if isinstance(codec, LowRank) else {}
    check = np.testing.assert_allclose if tolerance else np.testing.assert_array_equal
    check(np.asarray(found, float), np.asarray(used, float), **tolerance)


@of(ALL)
def test_numpy_alone_makes_the_same_codes_from_the_same_draws(codec):
    x = np.random.default_rng(4).normal(size=SHAPE).astype(np.float32)
    drawn = codec.draw(jax.random.key(5), x)
    ours = jax.jit(codec.codes)(jnp.asarray(x), drawn)
    theirs = codec.codes(x, None if drawn is None else np.asarray(drawn))
    if isinstance(codec, LowRank):
        ours, theirs = ((codec.values(part, x),) for part in (ours, theirs))  # factors are unique up to signs
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=0, atol=1e-5 if isinstance(codec, LowRank) else 0)
    again = decode(codec, encode_numpy(codec, np.random.default_rng(0), x), x)
    assert np.all(np.isfinite(again))
    with pytest.raises(ValueError, match="NaN or infinity"):
        encode_numpy(codec, np.random.default_rng(0), x * np.inf)


@of(ALL)
@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_what_is_not_finite_is_never_hidden(codec, wrong):
    """In a simulation it arrives as such, and on the wire it is refused."""
    x = np.ones(SHAPE, np.float32)
    x[3, 4] = wrong
    assert not bool(jnp.all(jnp.isfinite(one_rounding(codec, jax.random.key(0), x))))
    with pytest.raises(MalformedError):
        decode(codec, encode(codec, jax.random.key(0), x), x)


@of(ALL)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_any_bytes_are_refused_or_stand_for_finite_numbers(codec, data):
    due = size(codec, like(SHAPE))
    payload = np.frombuffer(data.draw(st.binary(min_size=due, max_size=due)), np.uint8)
    try:
        found = decode(codec, payload, like(SHAPE))
    except MalformedError:
        return
    assert found.shape == SHAPE
    assert np.all(np.isfinite(found))


@of(ALL)
def test_a_payload_of_another_length_or_type_is_refused(codec):
    x = np.linspace(-1, 1, 280, dtype=np.float32).reshape(SHAPE)
    payload = encode(codec, jax.random.key(0), x)
    for wrong in (payload[:-1], np.append(payload, payload[:1]), payload.astype(np.int16), payload[None]):
        with pytest.raises(MalformedError, match="expected uint8"):
            decode(codec, wrong, x)


def test_damaged_scales_codes_and_places_are_refused():
    x = np.linspace(-1, 1, 100, dtype=np.float32)
    payload = encode(Quantize(4), jax.random.key(0), x)
    for scale in (np.nan, np.inf, -1.0):
        with pytest.raises(MalformedError, match="NaN, infinite or negative"):
            decode(Quantize(4), np.concatenate([np.array([scale], "<f4").view(np.uint8), payload[4:]]), x)
    with pytest.raises(MalformedError, match="above 14"):
        decode(Quantize(4), np.append(payload[:-1], np.uint8(255)), x)
    huge = np.array([3e38], "<f4").view(np.uint8)
    with pytest.raises(MalformedError, match="infinite"):
        decode(Quantize(4), np.concatenate([huge, payload[4:]]), x)
    twice = encode(TopK(0.1), jax.random.key(0), x)
    twice[:2] = 0
    with pytest.raises(MalformedError, match="out of order"):
        decode(TopK(0.1), twice, x)


def test_the_stated_bytes_and_constants():
    """Worked by hand for a thousand numbers in float32, 4000 bytes as they are."""
    x = like((1000,))
    stated = {
        "quantize-8": 4 * 4 + 1000,
        "quantize-4": 4 * 4 + 500,
        "quantize-3": 4 * 4 + 375,
        "terngrad": 4 + 200,
        "natural": 1000 + 125,
        "randk-0.1": 4 + 400,
        "topk-0.1": 125 + 400,  # 10 bits for each place
        "float16": 2000,
        "bfloat16": 2000,
    }
    assert {text: size(parse(text), x) for text in stated} == stated
    assert size(LowRank(3), like((20, 50))) == 4 * 3 * 70
    assert Quantize(2).omega(like((256,))) == 7.5 == TernGrad().omega(like((256,)))
    assert RandK(0.1).omega(x) == 9
    assert TopK(0.1).alpha(x) == 0.1
    assert LowRank(2).alpha(like((20, 50))) == 0.1


@pytest.mark.parametrize(
    ("given_", "match"),
    [
        ({"up": "quantise-4"}, "did you mean 'quantize'"),
        ({"up": "quantize-x"}, "not readable"),
        ({"up": "quantize-17"}, r"must lie in \[2, 16\]"),
        ({"up": 4}, "is not a codec"),
        ({"upp": "natural"}, "did you mean 'up'"),
    ],
)
def test_wrong_codecs_are_refused_in_words(given_, match):
    with pytest.raises(ValueError, match=match):
        simulate(METHODS["fedavg"], CLIENTS, FIRST, rounds=1, key=0, codecs=given_)


# --- the same in every world ---------------------------------------------------------------------------------------

D = 70
CLIENTS = quadratics(0, clients=6, dimension=D, delta=0.5)
FIRST = jnp.ones(D)
SOLVER = GradientDescent(steps=2, smoothness=2.0)
METHODS = {
    "spam_pp": spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=SOLVER),
    "fedavg": fedavg(3, 2, 0.02),
    "scaffold": scaffold(3, 2, 0.02),
    "page": page(3, 0.02, probability=0.5),
}
BOTH = {"up": Quantize(8), "down": Quantize(8)}


@functools.cache
def simulated(name):
    return simulate(METHODS[name], CLIENTS, FIRST, rounds=4, key=1, codecs=BOTH)


LONG = ("spam_pp", "scaffold")  # to compile; flower/test_codecs.py has SPAM-PP, too


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in LONG else ()) for n in METHODS])
@pytest.mark.slow
def test_simulation_and_bytes_agree_and_the_ledger_counts_them(name):
    """With a branch (PAGE), with memories (SCAFFOLD), with fields that a cohort holds already (SPAM-PP)."""
    run = simulated(name)
    state, fed = loopback.run(METHODS[name], CLIENTS, FIRST, rounds=4, key=1, codecs=BOTH)
    np.testing.assert_allclose(METHODS[name].params(state), run.params, rtol=1e-12, atol=1e-12)
    for way in ("up", "down"):
        first = sum(exchange.cohort * getattr(exchange, f"bytes_{way}") for exchange in run.plan.start)
        assert first + run.rows[f"bytes_{way}"].sum() == getattr(fed, f"bytes_{way}")


@of(ALL[:-1])
def test_the_ledger_counts_the_bytes_of_every_codec(codec):
    params = {"matrix": jnp.ones(SHAPE, jnp.float32), "vector": jnp.ones(5)}
    method = fedavg(2, 1, 0.1)
    (exchange,) = ledger.plan(method, params, codecs=Codecs({"up": codec, "down": codec})).round
    sent = Codecs({"down": codec}).sent(jax.random.key(0), {"x": params})("x", {})
    assert (
        sum(leaf.nbytes for leaf in jax.tree.leaves(sent.payload))
        == size(codec, params["matrix"]) + params["vector"].nbytes
    )
    raw = {"@key": np.zeros(2, np.uint32), "@client": np.uint32(0), "@round": np.uint32(0), CHECKSUM: np.uint32(0)}
    rest = {name: np.zeros(due.shape, due.dtype) for name, due in exchange.sent.items() if name != "x"}
    assert exchange.bytes_down == len(wire.encode({**raw, **rest, "x": sent.payload}))


@pytest.mark.slow
def test_float32_of_float32_leaves_every_bit():
    """A codec that would make nothing smaller is not used: not even the shortcuts of a simulation change."""
    first = FIRST.astype(jnp.float32)
    clients = jax.tree.map(lambda leaf: leaf.astype(jnp.float32) if leaf.dtype == float else leaf, CLIENTS)
    plain = simulate(METHODS["spam_pp"], clients, first, rounds=3, key=1)
    same = simulate(METHODS["spam_pp"], clients, first, rounds=3, key=1, codecs={"up": "float32", "down": "float32"})
    assert np.asarray(plain.params).tobytes() == np.asarray(same.params).tobytes()
    assert plain.rows.keys() == same.rows.keys()
    assert all(np.array_equal(plain.rows[name], same.rows[name]) for name in plain.rows)


@pytest.mark.slow
def test_many_seeds_are_those_of_single_runs():
    many = simulate_many(METHODS["fedavg"], CLIENTS, FIRST, rounds=4, keys=[2, 1], codecs=BOTH)
    one = simulated("fedavg")
    np.testing.assert_allclose(many.params[0, 1], one.params, rtol=1e-12, atol=1e-12)
    assert np.array_equal(many.rows["bytes_up"][0, 1], one.rows["bytes_up"])


def test_a_run_resumes_to_the_bit_and_with_its_own_codecs_only(tmp_path):
    go = lambda folder, rounds, codecs, **options: simulate(
        METHODS["fedavg"], CLIENTS, FIRST, rounds=rounds, key=1, codecs=codecs, folder=tmp_path / folder, **options
    )
    whole = simulated("fedavg")
    go("cut", 2, BOTH)
    with pytest.raises(records.RecordError, match="codecs"):
        go("cut", 4, {"up": Quantize(4), "down": Quantize(8)}, resume=True)
    with pytest.raises(records.RecordError, match="codecs"):
        go("cut", 4, None, resume=True)
    again = go("cut", 4, BOTH, resume=True)
    assert np.asarray(again.params).tobytes() == np.asarray(whole.params).tobytes()


def test_a_configuration_names_its_codecs():
    tables = {"data": {"kind": "quadratics", "dimension": D, "clients": 4}, "method": {"name": "fedavg"}}
    tables["method"] |= {"cohort_size": 2, "local_steps": 1, "local_rate": 0.1}
    config = config_of({**tables, "codecs": {"up": "quantize-4", "fields": {"x": "none"}}})
    assert read_toml(to_toml(config))["codecs"] == {"up": "quantize-4", "fields": {"x": "none"}}
    assert make(config).codecs.named["up"].bits == 4
    assert make(config).codecs.named["x"] is None
    assert config_of(tables).codecs is None
    for wrong, match in (({"up": "quantize-99"}, "must lie in"), ({"fields": {"y": "natural"}}, "not a field")):
        with pytest.raises(ConfigError, match=match):
            make(config_of({**tables, "codecs": wrong}))
    with pytest.raises(ConfigError, match="a table of names"):
        config_of({**tables, "codecs": {"fields": 3}})


class Pair(NamedTuple):
    x: jax.Array
    weight: jax.Array


@struct
class Echo:
    """Clients return what they received, so that a round shows what arrived where."""

    def init(self, params, key, fed):
        return params

    def round(self, state, key, fed):
        cohort = fed.sample(key, 3)
        first = fed.mean(cohort, self.show, x=state, x_prev=state + 0.01, small=state[:5])
        second = fed.mean(cohort.one(key), self.again, x=state, g=2 * state)
        furthest = lambda a, b: jnp.max(jnp.abs(a - b))
        return state, {
            "held": furthest(first[0], second[0]),
            "g": furthest(second[1], 2 * state),
            "prev": furthest(first[1], first[0] + 0.01),
            "small": furthest(first[2], state[:5]),
        }

    @on_client
    def show(self, oracle, key, *, x, x_prev, small):
        return x, x_prev, small

    @on_client
    def again(self, oracle, key, *, x, g):
        return x, g

    params = staticmethod(lambda state: state)
    client_state = staticmethod(lambda params: ())


@pytest.mark.slow
def test_a_held_field_is_the_one_that_arrived_and_differences_are_fine():
    """x is sent once; x_prev travels as its difference from x, in steps of 0.01/7; five numbers travel as they are."""
    x = jax.random.normal(jax.random.key(0), (D,))
    run = simulate(Echo(), CLIENTS, x, rounds=2, key=0, codecs={"down": "quantize-4"})
    assert np.all(run.rows["held"] < 1e-12)
    assert np.all(run.rows["g"] > 0.1)
    assert np.all(run.rows["prev"] < 0.01 / 7)
    assert np.all(run.rows["small"] < 1e-12)


@struct
class Constant:
    """Clients reply with the same vector in every round, and remember nothing of their own but a number."""

    def init(self, params, key, fed):
        return params, jnp.zeros(D)

    def round(self, state, key, fed):
        x, total = state
        return (x, total + fed.mean(fed.everyone(key), self.report, x=x)), {}

    @on_client(stateful=True)
    def report(self, oracle, key, memory, *, x):
        return x, memory + 1

    params = staticmethod(lambda state: state[0])
    client_state = staticmethod(lambda params: jnp.zeros(()))


@pytest.mark.slow
def test_feedback_loses_nothing_for_ever():
    """With a fifth of the numbers per round, the sum of what arrived lacks only what the clients still remember."""
    x = jnp.linspace(0.5, 1.0, D)
    codecs = {"up": "feedback-topk-0.2"}
    run = simulate(Constant(), CLIENTS, x, rounds=40, key=0, codecs=codecs)
    errors = run.memory.errors["report"][""]
    np.testing.assert_allclose(run.state[1] + errors.mean(axis=0), 40 * x, rtol=1e-9)
    assert float(jnp.abs(errors).max()) < 15
    assert run.memory.own.tolist() == [40] * 6
    state, _ = loopback.run(Constant(), CLIENTS, x, rounds=40, key=0, codecs=codecs)
    np.testing.assert_allclose(state[1], run.state[1], rtol=1e-9)
    plain = simulate(Constant(), CLIENTS, x, rounds=40, key=0, codecs={"up": "topk-0.2"})
    assert float(plain.state[1].min()) == 0


def test_feedback_of_replies_needs_clients_with_a_memory():
    with pytest.raises(ValueError, match="needs clients with a memory"):
        simulate(METHODS["fedavg"], CLIENTS, FIRST, rounds=1, key=0, codecs={"up": "feedback-topk-0.2"})


@pytest.mark.slow
def test_a_reply_with_the_name_of_a_field_travels_as_a_difference():
    """The prox of SPAM-PP returns an x close to the one it was sent: 4 bits of the move are better than 8 of x."""
    codecs, far = Codecs.of({"up": "quantize-4"}), jnp.full(D, 100.0)
    move = jax.random.normal(jax.random.key(0), (D,))
    key = jax.random.key(1)
    arrived = codecs.replied(key, "prox", Pair(far + move, jnp.float64(3)), {"x": far})
    assert float(jnp.max(jnp.abs(arrived.x - far - move))) <= float(jnp.max(jnp.abs(move))) / 7 * (1 + 1e-6)
    assert float(arrived.weight) == 3
    alone = codecs.replied(key, "prox", Pair(far + move, jnp.float64(3)), {})
    assert float(jnp.max(jnp.abs(alone.x - far - move))) > 5
    sent = codecs.answered(key, "prox", Pair(far + move, jnp.float64(3)), {"x": far})
    found = codecs.accepted("prox", sent, Pair(like((D,), float), like((), float)), {"x": far})
    np.testing.assert_array_equal(found.x, arrived.x)


@settings(deadline=None, max_examples=50)
@given(data=st.data())
def test_no_flipped_bit_of_a_coded_message_goes_unnoticed(data):
    due = Codecs.of({"down": "quantize-4"}).shapes_of_fields({"x": like((100,))})
    codes = np.frombuffer(data.draw(st.binary(min_size=54, max_size=54)), np.uint8)
    fields = signed({"x": codes}, due)
    assert verified(fields)["x"] is codes
    flipped = codes.copy()
    flipped[data.draw(st.integers(0, 53))] ^= np.uint8(1 << data.draw(st.integers(0, 7)))
    with pytest.raises(MalformedError, match="damaged"):
        verified({**fields, "x": flipped})
