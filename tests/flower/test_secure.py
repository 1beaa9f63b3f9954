"""The secure sum: its arithmetic, its protocol on clients that come and go, and what it refuses."""

import copy
import hashlib
import itertools
import secrets
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, Error, Message, RecordDict

from fedspam import simulate, spam_pp
from fedspam._internal.trees import struct
from fedspam.federation import on_client
from fedspam.federation.aggregation import Median
from fedspam.federation.codecs import Codecs
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.client.app import RefusedError
from fedspam.flower.privacy import masks
from fedspam.flower.privacy.mods import GRADIENTS, Clipping, Coverage, clipping_mod, opened
from fedspam.flower.privacy.secure_client import KEYS, RECORD, SHARES, UNMASK, SecureSum
from fedspam.flower.privacy.words import words_of
from fedspam.flower.wire import envelope
from fedspam.methods import mvr, spam_ppa
from fedspam.problems import Quadratics, quadratics
from fedspam.solvers import Exact

CLIENTS, DIMENSION = 6, 4
TOLERANCE = 1e-6  # of some rounds in float32
PROX = ("train.prox",)


# --- arithmetic ---


def a_party(count, length, seed=0):
    """The words of some clients, and what each sends."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(count, length))
    words = [masks.to_fixed(row, 32, count) for row in values]
    pairs, seeds = [masks.Pair.fresh() for _ in range(count)], [secrets.token_bytes(masks.SEED) for _ in range(count)]
    publics = {id: pair.public for id, pair in enumerate(pairs)}
    sent = {id: masks.mask(words[id], id, seeds[id], pairs[id], publics, "session") for id in range(count)}
    return values, words, pairs, dict(enumerate(seeds)), publics, sent


def test_masks_cancel_exactly():
    _, words, _, seeds, publics, sent = a_party(5, 40)
    total = masks.unmask(sent, seeds, {}, publics, "session")
    np.testing.assert_array_equal(total, sum(words[1:], words[0]))


@pytest.mark.parametrize("lost", [[0], [4], [1, 3]])
def test_masks_of_lost_clients_come_off(lost):
    values, words, pairs, seeds, publics, sent = a_party(5, 40)
    here = [id for id in range(5) if id not in lost]
    arrived = {id: sent[id] for id in here}
    total = masks.unmask(
        arrived, seeds, {id: {other: pairs[other] for other in lost} for id in here}, publics, "session"
    )
    np.testing.assert_array_equal(total, np.sum([words[id] for id in here], axis=0, dtype=np.uint64))
    np.testing.assert_allclose(masks.to_floats(total, 32), values[here].sum(0), atol=5 * 2.0**-33)
    without_recovery = masks.unmask(arrived, seeds, {}, publics, "session")
    assert np.all(without_recovery != total)


def test_a_single_masked_vector_looks_uniform():
    """The largest deviation from the uniform distribution is that of a uniform sample, at the level 1e-4."""
    _, words, _, _, _, sent = a_party(3, 20_000)
    words_of_one, clear = sent[1].astype(np.float64) / 2.0**64, words[1]
    ordered = np.sort(words_of_one)
    steps = np.arange(len(ordered)) / len(ordered)
    deviation = max(np.max(ordered - steps), np.max(steps + 1 / len(ordered) - ordered))
    assert deviation < np.sqrt(-0.5 * np.log(1e-4 / 2) / len(ordered))  # Kolmogorov-Smirnov
    assert abs(np.corrcoef(words_of_one, masks.to_floats(clear, 32))[0, 1]) < 4 / np.sqrt(len(ordered))
    # one more of the masks known, the other still hides it
    far = masks.to_floats(sent[1] - clear, 32)
    assert np.median(np.abs(far)) > 2.0**28


def test_masks_depend_on_the_session_and_on_both_keys():
    one, two, three = (masks.Pair.fresh() for _ in range(3))
    assert masks.pair_seed(one, two.public, "a") == masks.pair_seed(two, one.public, "a")
    assert masks.pair_seed(one, two.public, "a") != masks.pair_seed(one, two.public, "b")
    assert masks.pair_seed(one, two.public, "a") != masks.pair_seed(one, three.public, "a")
    assert masks.Pair.of(one.scalar).public == one.public


# named: workers that draw other bytes would otherwise collect tests with other names
SECRETS = {
    "random": secrets.token_bytes(masks.SEED),
    "zeros": bytes(masks.SCALAR),
    "ones": b"\xff" * masks.SCALAR,
    "empty": b"",
}


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_any_three_of_five_shares_are_the_secret(secret):
    shares = dict(enumerate(masks.split(secret, 3, 5), start=1))
    for chosen in itertools.combinations(shares, 3):
        assert masks.join({place: shares[place] for place in reversed(chosen)}, 3) == secret
    assert masks.join(shares, 3) == secret


def test_shares_below_the_threshold_reveal_nothing():
    secret = secrets.token_bytes(masks.SEED)
    shares = masks.split(secret, 3, 5)
    with pytest.raises(ValueError, match="2 shares are not enough; 3 are needed"):
        masks.join({1: shares[0], 2: shares[1]}, 3)
    with pytest.raises(ValueError, match="do not belong to one secret"):
        masks.join({1: shares[0], 2: shares[1]}, 2)
    # every other secret has a third share that goes with these two: the value at 3 of the polynomial through it
    other = secrets.token_bytes(masks.SEED)
    marked = b"\x01" + other + hashlib.sha256(other).digest()[: masks.DIGEST]
    first, second, zero = map(int.from_bytes, (shares[0], shares[1], marked))
    third = (zero - 3 * first + 3 * second) % masks.PRIME
    assert masks.join({1: shares[0], 2: shares[1], 3: third.to_bytes(masks.SHARE)}, 3) == other
    assert len({*shares, *masks.split(secret, 3, 5)}) == 10  # drawn anew


def test_a_wrong_share_is_noticed():
    """A single wrong bit gives another secret; a wrong seed would leave its mask in the sum."""
    shares = dict(enumerate(masks.split(bytes(masks.SEED), 3, 5), start=1))
    for place, bit in itertools.product((1, 2, 3), (0, 100, 520)):
        bad = {**shares, place: (int.from_bytes(shares[place]) ^ 1 << bit).to_bytes(masks.SHARE)}
        with pytest.raises(ValueError, match="do not belong to one secret"):
            masks.join(bad, 3)
    with pytest.raises(ValueError, match="at most 48 bytes, not 49"):
        masks.split(bytes(49), 2, 3)


def test_entries_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="fewer fraction_bits"):
        masks.to_fixed(np.array([2.0**30]), 32, clients=2)
    with pytest.raises(ValueError, match="NaN or infinite"):
        masks.to_fixed(np.array([np.nan]), 32, clients=2)
    largest = np.full(3, 2.0**28)
    total = masks.to_fixed(largest, 32, clients=4) * np.uint64(4)
    np.testing.assert_array_equal(masks.to_floats(total, 32), 4 * largest)


# --- on a federation ---


def a_world(method, secure, *, twist=None, mods=None, quorum=1.0, clients=CLIENTS, retries=2, patience=1):
    population = quadratics(0, clients=clients, dimension=DIMENSION, delta=0.2)
    x = jnp.ones(DIMENSION)
    app = client_app(clients_of(population), method, x, secure=secure, mods=mods)
    grid = LoopbackGrid(app, clients, twist=twist)
    strategy = FedspamStrategy(
        method, x, seed=3, secure=secure, replies=Replies(quorum=quorum, retries=retries, patience=patience)
    )
    return population, grid, lambda rounds: strategy.start(grid, to_arrays(x), num_rounds=rounds, timeout=5)


def result_of(result):
    return result.arrays["params"].numpy()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "secure"),
    [
        (spam_pp(4, step_size=0.5, fresh_weight=0.3, solver=Exact()), SecureSum(in_clear=PROX)),
        (spam_ppa(4, step_size=0.5, fresh_weight=0.3, solver=Exact()), SecureSum((*GRADIENTS, "prox"))),
        (mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum()),
    ],
    ids=["spam_pp", "spam_ppa", "mvr"],
)
def test_a_secure_run_ends_where_the_simulation_does(method, secure):
    population, _, run = a_world(method, secure)
    expected = simulate(method, population, jnp.ones(DIMENSION), rounds=4, key=3).params
    # every entry of every sum is rounded to 2^-33 on each of 4 clients, which float32 hides: it has 2^-24
    np.testing.assert_allclose(result_of(run(4)), expected, rtol=TOLERANCE, atol=TOLERANCE)


def test_the_server_never_sees_a_clear_reply():
    seen = []

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train.difference":
            seen.append(opened(reply)[1])
        return [reply]

    _, _, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist)
    run(2)
    assert len(seen) >= 4
    assert all(list(values) == ["masked"] for values in seen)
    assert (
        min(np.min(np.abs(masks.to_floats(values["masked"], 32))) for values in seen) > 1e3
    )  # a clear entry is near 1


class Two(NamedTuple):
    near: jax.Array
    x: jax.Array
    weight: jax.Array


@struct
class Averaging:
    """The reply has three arrays: codes, codes of a difference from x, and a number in clear."""

    def init(self, params, key, fed):
        return params

    def round(self, x, key, fed):
        mean = fed.mean(fed.sample(key, 4), self.change, x=x)
        return x - 0.1 * mean.near, {"weight": mean.weight, "moved": jnp.sum(mean.x - x)}

    @on_client
    def change(self, oracle, key, *, x):
        g = jax.grad(oracle)(x, key)
        return Two(g, x + 0.01 * g, jnp.float32(2.5))

    def params(self, state):
        return state

    def client_state(self, params):
        return ()


@pytest.mark.slow
def test_codes_of_a_grid_add_under_masks():
    """The mean is that of a simulation with the same codecs; a reply takes the bits of its codes and of their sum."""
    size, codecs = 67, {"near": "grid-5-4", "up": "grid-3-0.1"}
    population, x, seen = quadratics(0, clients=CLIENTS, dimension=size, delta=0.2), jnp.ones(size), []

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train.change":
            seen.append(opened(reply)[1])
        return [reply]

    app = client_app(clients_of(population), Averaging(), x, secure=SecureSum(), codecs=codecs)
    grid = LoopbackGrid(app, CLIENTS, twist=twist)
    strategy = FedspamStrategy(Averaging(), x, seed=3, secure=SecureSum(), codecs=codecs, replies=Replies(patience=1))
    result = strategy.start(grid, to_arrays(x), num_rounds=3, timeout=5)
    run = simulate(Averaging(), population, x, rounds=3, key=3, codecs=codecs)
    np.testing.assert_allclose(result_of(result), run.params, rtol=TOLERANCE)
    moved = [result.train_metrics_clientapp[k + 1]["moved"] for k in range(3)]
    np.testing.assert_allclose(moved, run.rows["moved"], rtol=TOLERANCE, atol=TOLERANCE)
    # 5 bits and 2 more for a sum over 4 clients; the bytes of 67 codes of 3 bits have place for 69
    shapes = {name: value.shape for name, value in seen[0].items()}
    assert shapes == {"masked": (1,), "codes": ((67 + 69) * 7 // 8,)}
    assert all(list(values) == ["codes", "masked"] for values in seen)


def test_codes_that_do_not_add_are_refused():
    method = mvr(4, step_size=0.1, fresh_weight=0.3)
    strategy = FedspamStrategy(method, jnp.ones(70), secure=SecureSum(), codecs={"up": "quantize-8"})
    grid = LoopbackGrid(client_app(clients_of(quadratics(0, 6, 70)), method, jnp.ones(70)), CLIENTS)
    with pytest.raises(ValueError, match=r"do not add; give codecs=\{'.*': Grid\(8"):
        strategy.start(grid, to_arrays(jnp.ones(70)), num_rounds=1, timeout=5)
    values = {"reply": np.zeros(70, np.uint8)}
    with pytest.raises(ValueError, match="do not add"):
        words_of(values, "difference", Codecs.of({"up": "quantize-8"}), 32, 4)
    with pytest.raises(ValueError, match="needs 33 bits"):
        words_of(values, "difference", Codecs.of({"up": "grid-16-1"}), 32, 2**17)


@pytest.mark.parametrize("kind", [KEYS, SHARES, "train.difference", UNMASK])
@pytest.mark.slow
def test_a_client_that_drops_out_is_left_out(kind):
    """Whenever it is lost: the mean is that of the others, or of all if it was lost after its reply."""
    gone = []

    def twist(client, message, answer):
        asked = message.metadata.message_type
        if asked == kind and message.content.config_records[RECORD]["session"].split()[2] == "difference":
            if not gone:
                gone.append(client)
            if client in gone:
                return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]
        return [answer()]

    method = mvr(CLIENTS, step_size=0.1, fresh_weight=1.0, start="zero", first="update")  # g is the mean gradient
    population, _, run = a_world(method, SecureSum(), twist=twist, quorum=0.6, retries=0)
    result = run(1)
    assert len(gone) == 1
    counted = [id for id in range(CLIENTS) if kind == UNMASK or id not in gone]
    x = jnp.ones(DIMENSION)
    expected = np.mean([jax.grad(population.client(jnp.uint32(id)))(x) for id in counted], axis=0)
    np.testing.assert_allclose(result_of(result), x - 0.1 * expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert result.train_metrics_clientapp[1]["difference.accepted"] == len(counted)


@pytest.mark.parametrize("lost", [(), (0, 5, 11)])
def test_a_sparse_graph_gives_the_same_sum_and_each_client_knows_its_neighbors_alone(lost):
    """Bell et al. 2020. Masks and shares are those of a client and its neighbors, also if some of them are lost."""
    asked, clients, near = [], 20, 8

    def twist(client, message, answer):
        record = message.content.config_records.get(RECORD, {})
        asked.extend(len(record[name]) for name in ("ids", "arrived") if name in record)
        if client in lost and message.metadata.message_type == "train.difference":
            return [Message(Error(code=2, reason="down"), reply_to=message)]
        return [answer()]

    method = mvr(clients, step_size=0.1, fresh_weight=1.0, start="zero", first="update")
    secure = SecureSum(neighbors=near)
    population, _, run = a_world(method, secure, twist=twist, clients=clients, quorum=0.6, retries=1)
    gradients = [gradient_of(population, id) for id in range(clients) if id not in lost]
    np.testing.assert_allclose(result_of(run(1)), 1 - 0.1 * np.mean(gradients, axis=0), rtol=TOLERANCE, atol=TOLERANCE)
    assert max(asked) == near + 1
    assert min(asked) >= secure.needed(near + 1)


def test_who_lies_among_neighbors_is_named(caplog):
    caplog.set_level("INFO", "flwr")

    def twist(client, message, answer):
        reply = answer()
        if client == 0 and message.metadata.message_type == UNMASK:
            wrong_shares(reply.content.config_records[RECORD])
        if client == 1 and message.metadata.message_type == SHARES:
            record = reply.content.config_records[RECORD]
            record["sealed"] = [b"nonsense"] * len(record["sealed"])
        return [reply]

    method = mvr(20, step_size=0.1, fresh_weight=1.0, start="zero", first="update")
    _, _, run = a_world(method, SecureSum(neighbors=8), twist=twist, clients=20, quorum=0.6, retries=1)
    assert run(1).train_metrics_clientapp[1]["void"] == 0
    said = {record.getMessage().split(":")[0] for record in caplog.records if "\t> client" in record.getMessage()}
    assert said == {"\t> client 0", "\t> client 1"}


def test_with_a_full_quorum_others_stand_in():
    gone = []

    def twist(client, message, answer):
        if message.metadata.message_type == "train.difference" and not gone:
            gone.append(client)
            return [Message(Error(code=2, reason="out of memory"), reply_to=message)]
        return [answer()]

    _, grid, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist)
    result = run(2)
    assert [result.train_metrics_clientapp[k]["void"] for k in (1, 2)] == [0, 0]
    assert [result.train_metrics_clientapp[k]["difference.accepted"] for k in (1, 2)] == [4, 4]
    # the first session was given up before any mask came off
    sessions = [m.content.config_records[RECORD]["session"] for m in grid.messages if m.metadata.message_type == UNMASK]
    broken = {
        m.content.config_records[RECORD]["session"]
        for m in grid.messages
        if m.metadata.message_type == "train.difference"
    } - set(sessions)
    assert len(broken) == 1


def test_a_secure_run_is_resumed_to_the_same_bits(tmp_path):
    method, population = (
        mvr(4, step_size=0.1, fresh_weight=0.3),
        quadratics(0, clients=5, dimension=DIMENSION, delta=0.2),
    )
    x, secure = jnp.ones(DIMENSION), SecureSum()

    def run(rounds, folder, resume=False):
        grid = LoopbackGrid(client_app(clients_of(population), method, x, secure=secure), 5)
        strategy = FedspamStrategy(method, x, secure=secure, folder=tmp_path / folder, resume=resume)
        return result_of(strategy.start(grid, to_arrays(x), num_rounds=rounds, timeout=5))

    whole, first = run(4, "whole"), run(2, "parts")
    assert not np.array_equal(first, whole)
    np.testing.assert_array_equal(run(4, "parts", resume=True), whole)


def wrong_shares(record):
    record["shares"] = [bytes([share[0], share[1] ^ 1]) + share[2:] for share in record["shares"]]


def no_keys(record):
    record["masking"] = b"nonsense"


def the_same_key_twice(record):
    record["masking"] = record["sealing"]


def keys_of_another_curve(record):
    record["sealing"] = masks.public_key_to_bytes(ec.generate_private_key(ec.SECP256R1()).public_key())


def shares_without_bytes(record):
    record["shares"] = [b""] * len(record["shares"])


@pytest.mark.parametrize(
    ("kind", "fault", "reason"),
    [
        (UNMASK, wrong_shares, "the shares that it returns are wrong"),
        (UNMASK, shares_without_bytes, "the shares that it returns are wrong"),
        (KEYS, no_keys, "its keys are not public keys"),
        (KEYS, keys_of_another_curve, "its keys are not public keys"),
        (KEYS, the_same_key_twice, "one of its keys is used twice"),
    ],
)
def test_a_wrong_key_or_share_is_named_and_the_sum_goes_on(kind, fault, reason, caplog):
    """The others are not blamed, and the mean is that of the clients whose replies arrived."""
    caplog.set_level("INFO", "flwr")
    bad = 0

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == kind and client == bad:
            fault(reply.content.config_records[RECORD])
        return [reply]

    method = mvr(CLIENTS, step_size=0.1, fresh_weight=1.0, start="zero", first="update")  # g is the mean gradient
    population, _, run = a_world(method, SecureSum(), twist=twist, quorum=0.6, retries=0)
    result = run(1)
    counted = [id for id in range(CLIENTS) if kind == UNMASK or id != bad]
    x = jnp.ones(DIMENSION)
    expected = np.mean([jax.grad(population.client(jnp.uint32(id)))(x) for id in counted], axis=0)
    np.testing.assert_allclose(result_of(result), x - 0.1 * expected, rtol=TOLERANCE, atol=TOLERANCE)
    said = [record.getMessage() for record in caplog.records if "\t> client" in record.getMessage()]
    assert said == [f"\t> client {bad}: {reason}"]


@pytest.mark.parametrize("fixed", [True, False])
def test_who_seals_nonsense_is_named_alone_and_the_sum_is_made_without_it(fixed, caplog):
    """The others cannot read its shares, and they are not to blame; nobody could remove its masks."""
    caplog.set_level("INFO", "flwr")
    bad = 0

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == SHARES and client == bad:
            record = reply.content.config_records[RECORD]
            record["sealed"] = [b"nonsense"] * len(record["sealed"])
        return [reply]

    cohort = CLIENTS if fixed else CLIENTS - 1
    method = mvr(cohort, step_size=0.1, fresh_weight=1.0, start="zero", first="update")
    _, _, run = a_world(method, SecureSum(), twist=twist, quorum=0.6, retries=1)
    result = run(3)
    assert [result.train_metrics_clientapp[k]["void"] for k in (1, 2, 3)] == [0, 0, 0]
    said = {record.getMessage() for record in caplog.records if "\t> client" in record.getMessage()}
    assert said == {f"\t> client {bad}: most others cannot read the shares that it sealed"}


def test_a_secret_whose_shares_do_not_combine_costs_one_round(monkeypatch, caplog):
    """Such a client can be told only when its masks do not come off; from then on sums are made without it."""
    caplog.set_level("INFO", "flwr")
    split = masks.split

    def garbled(secret, threshold, count):
        shares = split(secret, threshold, count)
        return [secrets.token_bytes(2).rjust(len(share), b"\0") for share in shares] if lying else shares

    lying = False

    def twist(client, message, answer):
        nonlocal lying
        lying = client == 0
        return [answer()]

    monkeypatch.setattr(masks, "split", garbled)
    method = mvr(CLIENTS, step_size=0.1, fresh_weight=1.0, start="zero", first="update")
    _, _, run = a_world(method, SecureSum(), twist=twist, quorum=0.6, retries=0, patience=2)
    result = run(3)
    assert [result.train_metrics_clientapp[k]["void"] for k in (1, 2, 3)] == [1, 0, 0]
    said = {record.getMessage().split(":")[0] for record in caplog.records if "\t> client" in record.getMessage()}
    assert said == {"\t> client 0"}


def test_five_of_twenty_wrong_shares_are_found_at_once(caplog):
    """To try all sets of wrong shares would take long, and with more of them forever."""
    caplog.set_level("INFO", "flwr")

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == UNMASK and client < 5:
            wrong_shares(reply.content.config_records[RECORD])
        return [reply]

    method = mvr(20, step_size=0.1, fresh_weight=1.0, start="zero", first="update")
    population, _, run = a_world(method, SecureSum(), twist=twist, clients=20, retries=0)
    x = jnp.ones(DIMENSION)
    expected = np.mean([jax.grad(population.client(jnp.uint32(id)))(x) for id in range(20)], axis=0)
    np.testing.assert_allclose(result_of(run(1)), x - 0.1 * expected, rtol=TOLERANCE, atol=TOLERANCE)
    said = {record.getMessage() for record in caplog.records if "\t> client" in record.getMessage()}
    assert said == {f"\t> client {id}: the shares that it returns are wrong" for id in range(5)}


def test_shares_that_nothing_can_correct_make_the_round_void():
    """All shares are needed, and one is wrong; the round has no effect, and the run goes on."""

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == UNMASK and client == 0 and "difference 1" in str(message.content[RECORD]):
            wrong_shares(reply.content.config_records[RECORD])
        return [reply]

    method = mvr(3, step_size=0.1, fresh_weight=0.3, start="zero", first="update")
    population = quadratics(0, clients=3, dimension=DIMENSION, delta=0.2)
    app = client_app(clients_of(population), method, jnp.ones(DIMENSION), secure=SecureSum())
    strategy = FedspamStrategy(method, jnp.ones(DIMENSION), secure=SecureSum(), replies=Replies(retries=0))
    result = strategy.start(LoopbackGrid(app, 3, twist=twist), to_arrays(jnp.ones(DIMENSION)), 2, 5)
    assert [result.train_metrics_clientapp[k]["void"] for k in (1, 2)] == [1, 0]


def test_too_few_clients_make_the_round_void():
    def twist(client, message, answer):
        if message.metadata.message_type == "train.difference" and client != 0:
            return [Message(Error(code=2, reason="down"), reply_to=message)]
        return [answer()]

    _, grid, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist, quorum=0.1)
    with pytest.raises(RuntimeError, match="too few clients stayed for a secure sum over 4"):
        run(1)
    asked = [m.content.config_records[RECORD]["session"] for m in grid.messages if m.metadata.message_type == UNMASK]
    assert all("starting_gradient" in session for session in asked)


def test_a_sum_is_not_unmasked_again_over_other_clients():
    """All shares are lost on the way back. A second sum over other clients would reveal the replies in only one sum."""
    sessions = set()

    def twist(client, message, answer):
        reply = answer()
        session = str(message.content.config_records.get(RECORD, {}).get("session"))
        if message.metadata.message_type == UNMASK and " difference " in session:
            sessions.add(session)
            return [Message(Error(code=2, reason="lost"), reply_to=message)]
        return [reply]

    _, _, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist)
    with pytest.raises(RuntimeError, match=r"was unmasked already"):
        run(1)
    assert len(sessions) == 1


def test_another_name_for_a_run_does_not_make_a_second_sum():
    """The name is the server's word. The client counts rounds and exchanges itself."""

    def twist(client, message, answer):
        if message.metadata.message_type.startswith("train"):
            message.content[envelope.HEADER]["run"] = secrets.token_hex(8)
        reply = answer()
        if message.metadata.message_type == UNMASK and " difference " in str(message.content[RECORD]["session"]):
            return [Message(Error(code=2, reason="lost"), reply_to=message)]
        return [reply]

    _, _, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist)
    with pytest.raises(RuntimeError, match=r"was unmasked already"):
        run(1)


def test_a_sum_of_an_earlier_round_is_not_unmasked():
    _, _, run = a_world(mvr(CLIENTS, step_size=0.1, fresh_weight=0.3, start="zero", first="update"), SecureSum())
    run(2)
    with pytest.raises(RuntimeError, match=r"in round 1 was unmasked already, or one of a later round"):
        run(1)


def test_two_questions_at_the_same_time_reveal_one_secret(tmp_path):
    """Two processes that both read the state before either has written it: the folder of the node lets one pass."""
    refusals = []

    def twist(client, message, answer):
        if message.metadata.message_type != UNMASK or client != 0:
            return [answer()]
        context, record = grid.contexts[message.metadata.dst_node_id], message.content.config_records[RECORD]
        before, arrived = copy.deepcopy(context.state), list(record["arrived"])
        reply = answer()
        context.state = before
        refusals.append(answer_of(app, context, UNMASK, session=record["session"], arrived=arrived[:-1]))
        return [reply]

    population, x = quadratics(0, clients=CLIENTS, dimension=DIMENSION, delta=0.2), jnp.ones(DIMENSION)
    method = mvr(CLIENTS, step_size=0.1, fresh_weight=0.3, start="zero", first="update")
    app = client_app(clients_of(population), method, x, secure=SecureSum())
    nodes = [{"partition-id": id, "num-partitions": CLIENTS, "memory-folder": str(tmp_path)} for id in range(CLIENTS)]
    grid = LoopbackGrid(app, nodes, twist=twist)
    FedspamStrategy(method, x, secure=SecureSum()).start(grid, to_arrays(x), num_rounds=1, timeout=5)
    assert len(refusals) == 1
    assert "was unmasked already" in refusals[0]


# --- what it does not protect against ---


def gradient_of(population, id):
    return np.asarray(jax.grad(population.client(jnp.uint32(id)))(jnp.ones(DIMENSION)))


def mean_gradient(result):
    return (1 - result_of(result)) / 0.1


MEAN = mvr(7, step_size=0.1, fresh_weight=1.0, start="zero", first="update")  # g is the mean gradient


def test_without_settings_the_server_sees_every_reply():
    seen = {}

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "train.difference":
            seen[client] = opened(reply)[1]["reply"]
        return [reply]

    population, _, run = a_world(MEAN, None, twist=twist, clients=7)
    run(1)
    for id in range(7):
        np.testing.assert_allclose(seen[id], gradient_of(population, id), rtol=TOLERANCE)


def test_six_of_seven_learn_the_seventh():
    """The server and six clients: the sum less what the six know that they sent."""
    population, _, run = a_world(MEAN, SecureSum(), clients=7)
    learned = 7 * mean_gradient(run(1)) - sum(gradient_of(population, id) for id in range(6))
    np.testing.assert_allclose(learned, gradient_of(population, 6), rtol=1e-3, atol=1e-4)


def scaled(factors):
    """Seven clients whose gradients are multiplied by these factors."""
    found, factors = quadratics(0, clients=7, dimension=DIMENSION, delta=0.2), np.asarray(factors, float)
    return Quadratics.of(found.hessians * factors[:, None, None], found.linears * factors[:, None])


def run_of(population):
    x, secure = jnp.ones(DIMENSION), SecureSum()
    app = client_app(clients_of(population), MEAN, x, secure=secure)
    return FedspamStrategy(MEAN, x, secure=secure).start(LoopbackGrid(app, 7), to_arrays(x), num_rounds=1, timeout=5)


def test_a_server_that_invents_the_others_learns_a_reply():
    """Its own clients send zeros. Nobody certifies keys, so that the real client cannot tell."""
    population = scaled([1, 0, 0, 0, 0, 0, 0])
    learned = 7 * mean_gradient(run_of(population))
    np.testing.assert_allclose(learned, gradient_of(population, 0), rtol=1e-3, atol=1e-4)


def test_one_client_can_spoil_a_sum_in_silence(caplog):
    caplog.set_level("INFO", "flwr")
    honest = max(np.linalg.norm(gradient_of(scaled([1] * 7), id)) for id in range(7))
    assert np.linalg.norm(mean_gradient(run_of(scaled([1e4, 1, 1, 1, 1, 1, 1])))) > 100 * honest
    assert "\t> client" not in caplog.text


# --- refusals ---


def a_message(kind, **record):
    content = RecordDict({RECORD: ConfigRecord(record)} if record else {})
    return Message(content, 1, kind)


def answer_of(app, context, kind, **record):
    reply = app(a_message(kind, **record), context)
    refused = reply.content.config_records.get(envelope.HEADER, {}).get("refused")
    return refused if refused else dict(reply.content.config_records[RECORD])


@pytest.fixture
def three():
    """Three clients that have exchanged keys, and the record with all keys."""
    population = quadratics(0, clients=3, dimension=DIMENSION, delta=0.2)
    app = client_app(
        clients_of(population), mvr(3, step_size=0.1, fresh_weight=0.3), jnp.ones(DIMENSION), secure=SecureSum()
    )
    contexts = list(LoopbackGrid(app, 3).contexts.values())
    keys = [answer_of(app, context, KEYS, session="s") for context in contexts]
    listed = {"ids": [0, 1, 2], **{name: [key[name] for key in keys] for name in ("sealing", "masking")}}
    return app, contexts, listed


def test_a_client_refuses_keys_that_are_not_in_order(three):
    app, contexts, listed = three
    mine = contexts[0]
    assert "not at step 'keys'" in answer_of(app, mine, SHARES, session="other", **listed)
    forged = {**listed, "masking": [masks.Pair.fresh().public, *listed["masking"][1:]]}
    assert "in place of its own" in answer_of(app, mine, SHARES, session="s", **forged)
    twice = {**listed, "sealing": [listed["sealing"][0]] * 3}
    assert "share keys" in answer_of(app, mine, SHARES, session="s", **twice)
    two = {name: values[:2] for name, values in listed.items()}
    assert "too few" in answer_of(app, mine, SHARES, session="s", **two)
    assert len(answer_of(app, mine, SHARES, session="s", **listed)["sealed"]) == 3
    assert "at 'shared'" in answer_of(app, mine, SHARES, session="s", **listed)


def test_a_client_does_not_unmask_what_it_did_not_mask(three):
    app, contexts, listed = three
    answer_of(app, contexts[0], SHARES, session="s", **listed)
    assert "not at step 'masked'" in answer_of(app, contexts[0], UNMASK, session="s", arrived=[0, 1, 2])


def test_seed_and_key_of_a_client_are_never_both_revealed():
    """A client refuses a second request, and a list that is too short, has unknown members, or lacks the client."""
    refusals = []

    def twist(client, message, answer):
        if message.metadata.message_type != UNMASK:
            return [answer()]
        record = message.content.config_records[RECORD]
        context = grid.contexts[message.metadata.dst_node_id]
        arrived = list(record["arrived"])
        others = [id for id in arrived if id != client]
        ask = lambda listed: answer_of(grid._app, context, UNMASK, session=record["session"], arrived=listed)
        refusals.extend(map(ask, ([client, others[0]], others, [*arrived, 7], [client, *arrived])))
        reply = answer()
        refusals.append(ask(arrived))
        return [reply]

    _, grid, run = a_world(mvr(4, step_size=0.1, fresh_weight=0.3), SecureSum(), twist=twist)
    run(1)
    assert refusals
    assert all(isinstance(refused, str) for refused in refusals)


def test_a_covered_work_is_never_answered_in_clear():
    method, population = (
        mvr(4, step_size=0.1, fresh_weight=0.3),
        quadratics(0, clients=4, dimension=DIMENSION, delta=0.2),
    )
    app = client_app(clients_of(population), method, jnp.ones(DIMENSION), secure=SecureSum())
    with pytest.raises(RuntimeError, match="needs a secure sum"):
        FedspamStrategy(method, jnp.ones(DIMENSION), replies=Replies(patience=1, retries=0)).start(
            LoopbackGrid(app, 4), to_arrays(jnp.ones(DIMENSION)), num_rounds=1, timeout=5
        )


def test_a_mod_refuses_unknown_messages():
    method = spam_pp(4, step_size=0.5, fresh_weight=0.3, solver=Exact())
    _, _, run = a_world(method, SecureSum())
    with pytest.raises(RuntimeError, match=r"'train.prox' is neither covered.*in_clear"):
        run(1)
    _, _, run = a_world(method, None, mods=[clipping_mod(1.0)])
    with pytest.raises(RuntimeError, match=r"'train.prox' is neither covered.*in_clear"):
        run(1)
    with pytest.raises(RefusedError, match="'evaluate'"):
        Coverage().covers("evaluate")
    with pytest.raises(RefusedError, match="'train'"):
        Coverage().covers("train")
    with pytest.raises(RefusedError, match=r"'query.gradient'"):
        Coverage().covers("query.gradient")


def test_clients_without_the_secure_sum_are_named():
    method, population = (
        mvr(4, step_size=0.1, fresh_weight=0.3),
        quadratics(0, clients=4, dimension=DIMENSION, delta=0.2),
    )
    app = client_app(clients_of(population), method, jnp.ones(DIMENSION))
    with pytest.raises(RuntimeError, match="secure_keys"):
        FedspamStrategy(method, jnp.ones(DIMENSION), replies=Replies(patience=1, retries=0), secure=SecureSum()).start(
            LoopbackGrid(app, 4), to_arrays(jnp.ones(DIMENSION)), num_rounds=1, timeout=5
        )


def test_settings_that_protect_nothing_are_refused():
    for wrong in (
        {"threshold": 0.5},
        {"least": 2},
        {"fraction_bits": 60},
        {"neighbors": 7},
        {"neighbors": 8, "least": 10},
        {"works": ()},
        {"in_clear": ("train.gradient",)},
    ):
        with pytest.raises(ValueError, match=r"must|cannot"):
            SecureSum(**wrong)
    _, _, run = a_world(mvr(2, step_size=0.1, fresh_weight=0.3), SecureSum())
    with pytest.raises(ValueError, match=r"has 2 clients.*raise cohort_size"):
        run(1)
    with pytest.raises(ValueError, match="give one of the two"):
        FedspamStrategy(mvr(4, step_size=0.1, fresh_weight=0.3), secure=SecureSum(), aggregate=Median())


# --- clipping ---


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_no_rounding_lifts_a_clipped_reply_above_the_bound(dtype):
    """Half of them were, with the numbers next to the exact ones."""
    random = np.random.default_rng(0)
    for _ in range(50):
        values = {name: random.normal(size=20).astype(jnp.dtype(dtype)) for name in "ab"}
        clipped = Clipping(1.0)(values)
        assert all(value.dtype == jnp.dtype(dtype) for value in clipped.values())
        norm = np.sqrt(sum(np.sum(value.astype(np.float64) ** 2) for value in clipped.values()))
        assert 1 - 2 * float(jnp.finfo(dtype).eps) - 1e-9 < norm <= 1


def test_replies_are_clipped_to_the_bound_and_small_ones_are_left_alone():
    norms = []

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type in ("train.difference", "train.starting_gradient"):
            norms.append(np.linalg.norm(opened(reply)[1]["reply"].astype(np.float64)))
        return [reply]

    method = mvr(4, step_size=0.1, fresh_weight=0.3)
    _, _, run = a_world(method, None, twist=twist)
    plain = result_of(run(3))
    free, bound = list(norms), float(np.median(norms))
    norms.clear()
    _, _, run = a_world(method, None, twist=twist, mods=[clipping_mod(bound)])
    run(3)
    assert max(free) > bound
    assert max(norms) <= bound
    np.testing.assert_allclose(norms[:4], np.minimum(free[:4], bound), rtol=TOLERANCE)  # the start, at the same point
    _, _, run = a_world(method, None, mods=[clipping_mod(2 * max(free))])
    np.testing.assert_array_equal(result_of(run(3)), plain)


def test_clipping_refuses_points():
    with pytest.raises(ValueError, match="clip gradients only"):
        clipping_mod(1.0, works=("prox",))
    with pytest.raises(ValueError, match="must be greater than 0"):
        clipping_mod(0.0)
