"""The Flower room: the checks of every reply, the effect of every fault, resume, and the conventions of Flower."""

import dataclasses
import functools
import logging
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from fedspam import simulate, spam, spam_pp
from fedspam.clients import DataOracle, Ragged
from fedspam.federation import wire
from fedspam.federation.aggregation import Median
from fedspam.methods import dane, scaffold
from fedspam.models.adapters import from_equinox, from_flax, from_torch
from fedspam.problems import synthetic_logistic
from fedspam.simulation import records, restore
from fedspam.solvers import GradientDescent
from loading import load_code

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

from fedspam.flower import (
    FedspamStrategy,
    LoopbackGrid,
    Replies,
    client_app,
    clients_of,
    clients_with,
    to_arrays,
    to_params,
)
from fedspam.flower.client.app import perform
from fedspam.flower.client.state import Memory
from fedspam.flower.server.exchange import Trip
from fedspam.flower.server.plain import with_cohort
from fedspam.flower.wire import envelope
from fedspam.flower.wire.node import RefusedError
from fedspam.flower.wire.schema import Schema

CLIENTS, ROUNDS = 6, 3
TOLERANCE = 1e-5  # server and engine sum in other orders, in float32; some numbers are differences
POPULATION = synthetic_logistic(0, clients=CLIENTS, dimension=4)
FIRST = jnp.ones(4)
SOLVER = GradientDescent(steps=3, smoothness=2.0)
METHOD = spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=SOLVER)
MEMORY = scaffold(3, 2, 0.2)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


@functools.cache
def the_app(method=METHOD):
    return client_app(clients_of(POPULATION), method, FIRST)


def go(method=METHOD, *, grid=None, twist=None, rounds=ROUNDS, timeout=5.0, clients=CLIENTS, **options):
    grid = LoopbackGrid(the_app(method), clients, twist=twist) if grid is None else grid
    result = FedspamStrategy(method, FIRST, seed=7, **options).start(grid, to_arrays(FIRST), rounds, timeout)
    return Outcome(to_params(result.arrays, FIRST), result, grid)


@dataclasses.dataclass
class Outcome:
    params: jax.Array
    result: object
    grid: LoopbackGrid

    @property
    def bits(self):
        return np.asarray(self.params).tobytes()

    def column(self, name):
        return [metrics[name] for metrics in self.result.train_metrics_clientapp.values()]


@pytest.fixture(scope="module")
def undisturbed():
    return go()


@pytest.fixture(scope="module")
def silent():
    """The run in which client 2 never answers: whatever else it does wrong must come to the same."""
    return go(twist=on_training(lambda message, answer: []), timeout=0.05)


def on_training(fault, client=2):
    """A fault of one client in its training; it still says who it is."""

    def twist(id, message, answer):
        training = message.metadata.message_type.startswith("train")
        return fault(message, answer) if id == client and training else [answer()]

    return twist


def altered(reply, /, **changes):
    """The reply with other arrays in it."""
    fields = safetensors.numpy.load(envelope.enclosed(reply.content))
    for name, change in changes.items():
        name = name.replace("at_", "@")
        chosen = [key for key in fields if key == name or key.startswith(f"{name}.")]
        assert chosen
        fields |= {key: np.asarray(change(fields[key])) for key in chosen}
    reply.content["arrays"] = envelope.enclose(safetensors.numpy.save(fields))
    return reply


# what a reply may be


def with_nan(message, answer):
    return [altered(answer(), reply=lambda value: np.full_like(value, np.nan))]


def with_another_shape(message, answer):
    return [altered(answer(), reply=lambda value: np.append(value, value))]


def with_another_dtype(message, answer):
    return [altered(answer(), reply=lambda value: value.astype(np.float16))]


def of_another_round(message, answer):
    return [altered(answer(), at_round=lambda value: value + 1)]


def as_another_client(message, answer):
    return [altered(answer(), at_client=lambda value: value + 1)]


def of_another_exchange(message, answer):
    reply = answer()
    reply.content["fedspam"]["exchange"] = "something"
    return [reply]


def that_is_no_safetensors(message, answer):
    reply = answer()
    reply.content["arrays"] = envelope.enclose(b"nonsense")
    return [reply]


def with_two_arrays(message, answer):
    reply = answer()
    reply.content["more"] = envelope.enclose(b"")
    return [reply]


def that_is_empty(message, answer):
    return [Message(RecordDict(), reply_to=message)]


def an_error(message, answer):
    return [Message(Error(code=2, reason="it raised"), reply_to=message)]


FAULTS = [
    with_nan, with_another_shape, with_another_dtype, of_another_round, as_another_client, of_another_exchange,
    that_is_no_safetensors, with_two_arrays, that_is_empty, an_error,
]  # fmt: skip


@pytest.mark.slow
def test_the_iterates_rows_and_bytes_are_the_simulators(undisturbed):
    run = simulate(METHOD, POPULATION, FIRST, rounds=ROUNDS, key=7)
    np.testing.assert_allclose(undisturbed.params, run.params, rtol=TOLERANCE, atol=TOLERANCE)
    for name in ("bytes_down", "bytes_up", "floats_down", "floats_up"):
        assert undisturbed.column(name) == run.rows[name].tolist()
    for name in ("step_size", "gradients", "certificate.stationarity"):
        np.testing.assert_allclose(undisturbed.column(name), run.rows[name], rtol=TOLERANCE)


@pytest.mark.slow
def test_bytes_are_those_that_flower_carried(undisturbed):
    """The bytes that the ledger priced are those in the messages; Flower's own records are counted separately."""
    training = [m for m in undisturbed.grid.messages if m.metadata.message_type.startswith("train")]
    start = METHOD.start.cohort_size
    assert sum(undisturbed.column("bytes_down")) == sum(len(envelope.enclosed(m.content)) for m in training[start:])
    assert sum(undisturbed.column("flower_down")) == sum(envelope.size(m.content) for m in training[start:])
    messages = sum(undisturbed.column("difference.asked")) + sum(undisturbed.column("prox.asked"))
    overhead = (sum(undisturbed.column("flower_down")) - sum(undisturbed.column("bytes_down"))) / messages
    assert 0 < overhead < 400


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.slow
def test_a_bad_reply_changes_nothing(fault, silent, undisturbed):
    outcome = go(twist=on_training(fault))
    assert outcome.bits == silent.bits != undisturbed.bits
    assert outcome.column("difference.accepted") == silent.column("difference.accepted") == [3] * ROUNDS
    assert sum(outcome.column("difference.asked")) > 3 * ROUNDS


@pytest.mark.slow
def test_the_substitutes_iterates_are_those_of_the_simulator_with_the_same_clients(silent):
    """Client 2 is silent and others stand in: the simulator with the same clients agrees."""
    took_part = {"train.difference": [], "train.prox": []}
    for message in silent.grid.messages:
        kind = message.metadata.message_type
        fields = safetensors.numpy.load(envelope.enclosed(message.content)) if kind.startswith("train") else {}
        if kind in took_part and fields["@client"] != 2:
            took_part[kind].append((int(fields["@round"]) - 1, int(fields["@client"])))
    replay = {
        "cohort": [[client for k, client in took_part["train.difference"] if k == round] for round in range(ROUNDS)],
        "prox": [client for _, client in took_part["train.prox"]],
    }
    assert len(replay["prox"]) == ROUNDS
    run = simulate(started_like(silent), POPULATION, FIRST, rounds=ROUNDS, key=7, replay=replay)
    np.testing.assert_allclose(silent.params, run.params, rtol=TOLERANCE, atol=TOLERANCE)


def started_like(outcome):
    """The method with the first estimate that its start in this run led to."""
    ids = []
    for message in outcome.grid.messages:
        if message.metadata.message_type == "train.starting_gradient":
            client = int(safetensors.numpy.load(envelope.enclosed(message.content))["@client"])
            ids += [client] if client != 2 else []
    gradients = [jax.grad(POPULATION.client(jnp.uint32(id)))(FIRST) for id in ids]
    return spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=SOLVER, start=sum(gradients) / len(gradients))


def test_a_reply_that_comes_twice_counts_once(undisturbed):
    outcome = go(twist=lambda client, message, answer: [reply := answer(), reply])
    assert outcome.bits == undisturbed.bits
    assert outcome.column("difference.replied") == [3] * ROUNDS


class Late(LoopbackGrid):
    """The replies of one client come after the next exchange has begun."""

    def push_messages(self, messages):
        self.pushed = list(super().push_messages(messages))
        return self.pushed

    def pull_messages(self, message_ids):
        here = list(super().pull_messages(message_ids))
        on_time = [reply for reply in here if not self.is_late(reply)]
        for reply in here:
            if self.is_late(reply):
                self._replies[reply.metadata.reply_to_message_id] = [reply]
        return on_time

    def is_late(self, reply):
        slow = self._clients[reply.metadata.src_node_id] == 2 and reply.metadata.message_type.startswith("train")
        return slow and reply.metadata.reply_to_message_id in self.pushed


def test_a_late_reply_is_not_waited_for(silent):
    outcome = go(grid=Late(the_app(), CLIENTS), timeout=0.05)
    assert outcome.bits == silent.bits


def test_a_client_that_raises_is_replaced(silent):
    def oracle(context):
        if context.node_config["partition-id"] == 2:
            raise OSError("the disk of client 2 is full")
        return POPULATION.client(jnp.uint32(context.node_config["partition-id"]))

    outcome = go(grid=LoopbackGrid(client_app(oracle, METHOD, FIRST), CLIENTS))
    assert outcome.bits == silent.bits


def test_a_killed_node_is_replaced(silent, undisturbed):
    """Flower replies in its place, under its own id: only the message id identifies the client."""
    grid = LoopbackGrid(the_app(), CLIENTS)
    node = next(node for node, client in grid._clients.items() if client == 2)

    def lost(client, message, answer):
        if client != 2 or message.metadata.message_type.startswith("query"):
            return [answer()]
        reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        reply.metadata.__dict__["_src_node_id"] = 1
        grid.contexts.pop(node, None)
        return [reply]

    grid._twist = lost
    assert go(grid=grid).bits == silent.bits


def test_a_node_that_comes_back_takes_part_again():
    """A SuperNode that was restarted has another number, and nothing of what it held."""
    grid, again = LoopbackGrid(the_app(), CLIENTS), []

    def restarted(client, message, answer):
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "train.prox" and not again:
            context = grid.contexts.pop(node)
            again.append(node + 5000)
            grid.contexts[again[0]] = dataclasses.replace(context, node_id=again[0], state=RecordDict())
            grid._clients[again[0]] = client
            return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]
        return [answer()]

    grid._twist = restarted
    outcome = go(grid=grid, rounds=6)
    assert not any(outcome.column("void"))
    asked = [m.metadata.message_type for m in grid.messages if m.metadata.dst_node_id == again[0]]
    assert asked[0] == "query.whoami"
    assert "train.difference" in asked


@pytest.mark.slow
def test_a_client_that_lost_its_fields_is_sent_them_again():
    """A client whose earlier reply never arrived is sent the whole message, because it may not hold x."""

    def twist(client, message, answer):
        kind = message.metadata.message_type
        lost = (client == 2) == (kind == "train.difference") and kind in ("train.difference", "train.prox")
        return [Message(Error(code=0, reason="lost on its way"), reply_to=message)] if lost else [answer()]

    outcome = go(
        dataclasses.replace(METHOD, cohort_size=6), twist=twist, replies=Replies(quorum=0.5, retries=5), grid=None
    )
    prox = [m for m in outcome.grid.messages if m.metadata.message_type == "train.prox"]
    whole = [m for m in prox if m.content["fedspam"]["whole"]]
    assert len(whole) == ROUNDS
    assert {int(safetensors.numpy.load(envelope.enclosed(m.content))["@client"]) for m in whole} == {2}
    run = simulate(METHOD, POPULATION, FIRST, rounds=1, key=7)
    assert outcome.column("bytes_down")[0] > run.plan.round[0].bytes_down * 6


def test_the_prox_client_dies_between_the_exchanges(undisturbed):
    """g_k stays, another client of the cohort is asked, and it holds x already."""
    died = []

    def twist(client, message, answer):
        if message.metadata.message_type == "train.prox" and not died:
            died.append(client)
            return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]
        return [answer()]

    outcome = go(twist=twist)
    assert len(died) == 1
    assert outcome.bits != undisturbed.bits
    assert not any(outcome.column("void"))
    assert outcome.column("difference.asked") == [3] * ROUNDS  # nobody made the estimate again
    assert outcome.column("prox.asked") == [2, 1, 1]
    prox = [m for m in outcome.grid.messages if m.metadata.message_type == "train.prox"]
    assert [m.content["fedspam"]["whole"] for m in prox] == [False] * (ROUNDS + 1)
    asked = [int(safetensors.numpy.load(envelope.enclosed(m.content))["@client"]) for m in prox[:2]]
    cohort = [m for m in outcome.grid.messages if m.metadata.message_type == "train.difference"][:3]
    members = [int(safetensors.numpy.load(envelope.enclosed(m.content))["@client"]) for m in cohort]
    assert asked[0] != asked[1]
    assert set(asked) <= set(members)


def test_a_quorum_lets_a_round_go_on_without_some():
    outcome = go(twist=on_training(an_error), replies=Replies(quorum=0.5))
    assert min(outcome.column("difference.accepted")) == 2
    assert outcome.column("difference.asked") == [3] * ROUNDS


@pytest.mark.slow
def test_a_void_round_has_no_effect_and_is_charged(undisturbed):
    def second_round_fails(client, message, answer):
        fails = message.metadata.message_type == "train.prox" and message.content["config"]["server-round"] == 2
        return [an_error(message, answer)[0]] if fails else [answer()]

    outcome = go(twist=second_round_fails, rounds=4)
    assert outcome.column("void") == [0, 1, 0, 0]
    assert outcome.column("bytes_down")[1] > 0
    run = simulate(METHOD, POPULATION, FIRST, rounds=1, key=7)
    two = go(rounds=2, twist=second_round_fails)
    np.testing.assert_allclose(two.params, run.params, rtol=TOLERANCE, atol=TOLERANCE)


def test_retries_are_capped_and_the_error_says_why():
    with pytest.raises(
        RuntimeError, match=r"could not start in 3 attempts; starting_gradient: 0 replies were accepted.*it raised"
    ):
        go(
            twist=lambda client, message, answer: (
                an_error(message, answer) if "train" in message.metadata.message_type else [answer()]
            )
        )

    def later(client, message, answer):
        return an_error(message, answer) if message.metadata.message_type == "train.difference" else [answer()]

    with pytest.raises(RuntimeError, match=r"3 rounds in a row are void, the last is round 3: difference"):
        go(twist=later, rounds=9)


# the same method on both sides


def test_another_solver_is_refused_and_the_difference_is_named():
    other = client_app(
        clients_of(POPULATION),
        spam_pp(3, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(steps=4, smoothness=2.0)),
        FIRST,
    )
    with pytest.raises(
        RuntimeError,
        match=r"client 5 differs from the server.*method.solver.steps is 3 on the server, 4 on the client",
    ):
        go(grid=LoopbackGrid(other, CLIENTS))


@pytest.mark.parametrize(
    ("method", "params", "named"),
    [
        (spam(step_size=0.5, fresh_weight=0.3), FIRST, "method is spam_pp on the server, spam_inexact on the client"),
        (METHOD, jnp.ones(5), r"float32\[5\]"),
        (METHOD, jnp.ones(4, jnp.float16), r"float16\[4\]"),
        (METHOD, {"weights": FIRST}, "params.weights"),
    ],
)
def test_another_method_or_model_is_refused(method, params, named):
    with pytest.raises(RuntimeError, match=named):
        go(grid=LoopbackGrid(client_app(clients_of(POPULATION), method, params), CLIENTS))


def test_a_client_refuses_a_message_of_another_schema(undisturbed):
    message = next(m for m in undisturbed.grid.messages if m.metadata.message_type == "train.difference")
    message = Message(RecordDict(dict(message.content)), message.metadata.dst_node_id, "train.difference")
    head = dict(message.content["fedspam"])
    context = next(iter(undisturbed.grid.contexts.values()))
    for change, reason in (
        ({"schema": "0" * 32}, "another method, solver or model"),
        ({"exchange": "prox"}, "no exchange 'prox' of type 'train.difference'"),
        ({"memory": 5}, None),  # this method remembers nothing
    ):
        message.content["fedspam"] = ConfigRecord({**head, **change})
        reply = the_app()(message, context)
        refused = reply.content["fedspam"].get("refused")
        assert reason in refused if reason else "another client" in refused or refused is None


@pytest.mark.slow
def test_the_cohort_size_is_not_part_of_the_schema():
    smaller = dataclasses.replace(METHOD, cohort_size=2)
    assert Schema.of(smaller, FIRST).digest == Schema.of(METHOD, FIRST).digest
    outcome = go(grid=LoopbackGrid(the_app(), CLIENTS), fraction_train=0.4)
    assert outcome.column("difference.asked") == [2] * ROUNDS
    expected = simulate(with_cohort(METHOD, 2), POPULATION, FIRST, rounds=ROUNDS, key=7)
    np.testing.assert_allclose(outcome.params, expected.params, rtol=TOLERANCE, atol=TOLERANCE)
    with pytest.raises(ValueError, match="leave fraction_train out"):
        with_cohort(dane(1.0), 2)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ([{}] * 3, "partition-id = None"),
        ([{"partition-id": 1, "num-partitions": 3}] * 3, "give every SuperNode its own"),
        ([{"partition-id": 5, "num-partitions": 3}] * 3, "below num-partitions = 3"),
        (
            [{"partition-id": 0, "num-partitions": 3}, {"partition-id": 1, "num-partitions": 4}],
            "disagree on num-partitions",
        ),
    ],
)
def test_nodes_that_cannot_take_part_are_named(configs, reason):
    with pytest.raises(RuntimeError, match=reason):
        go(grid=LoopbackGrid(the_app(), configs), timeout=0.5)


def test_too_few_nodes_are_not_waited_for_without_end():
    with pytest.raises(RuntimeError, match=r"6 of at least 7 nodes can take part after 0.3 s"):
        go(timeout=0.3, min_available_nodes=7)


# resume


class KilledError(BaseException):
    """The server dies here."""


class Dying(LoopbackGrid):
    """A grid whose server dies at its n-th call of one kind, before or after it took effect."""

    def __init__(self, app, clients, when, number, twist=None):
        super().__init__(app, clients, twist=twist)
        self.when, self.left = when, number

    def count(self, when, messages):
        if when == self.when and any(
            str(m).startswith("message") or m.metadata.message_type.startswith("train") for m in messages
        ):
            self.left -= 1
            if self.left < 0:
                raise KilledError

    def push_messages(self, messages):
        messages = list(messages)
        self.count("before", messages)
        taken = super().push_messages(messages)
        self.count("after", messages)
        return taken


def nodes(folder=None):
    more = {} if folder is None else {"memory-folder": str(folder)}
    return [{"partition-id": id, "num-partitions": CLIENTS, **more} for id in range(CLIENTS)]


def rows_of(folder):
    _, rows, _ = records.read(folder)
    return {name: column.tolist() for name, column in rows.items() if "seconds" not in name}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("method", [METHOD, MEMORY], ids=["spam_pp", "scaffold"])
@pytest.mark.slow
def test_a_server_killed_at_every_exchange_ends_with_the_same_bits(method, when, tmp_path):
    """Each time all clients are new: nothing is left of them but, where they remember, their disks."""
    remembering = method is MEMORY
    whole = go(method, folder=tmp_path / "whole")
    exchanges = 1 + 2 * ROUNDS if not remembering else ROUNDS
    for number in range(exchanges):
        disk = tmp_path / f"disk{number}" if remembering else None
        with pytest.raises(KilledError):
            go(method, grid=Dying(the_app(method), nodes(disk), when, number), folder=tmp_path / str(number))
        again = go(method, grid=LoopbackGrid(the_app(method), nodes(disk)), folder=tmp_path / str(number), resume=True)
        assert again.bits == whole.bits
        assert again.column("void") == [0] * ROUNDS
        asked = sum(m.metadata.message_type.startswith("train") for m in again.grid.messages)
        all_asked = sum(m.metadata.message_type.startswith("train") for m in whole.grid.messages)
        first = {0: 0, 1: 3}.get(number)
        if first is not None:
            assert asked == all_asked - first  # complete exchanges are not repeated
        resumed, due = rows_of(tmp_path / str(number)), rows_of(tmp_path / "whole")
        costs = {"bytes_down", "floats_down", "flower_down"}  # a new prox client is sent x again
        assert {name: column for name, column in resumed.items() if name not in costs} == {
            name: column for name, column in due.items() if name not in costs
        }


def test_killed_again_and_again_it_still_arrives(tmp_path, undisturbed):
    deaths, outcome = 0, None
    while outcome is None:
        try:
            outcome = go(grid=Dying(the_app(), CLIENTS, "after", 1), folder=tmp_path, resume=True)
        except KilledError:
            deaths += 1
            assert deaths < 10
    assert deaths > 4
    assert outcome.bits == undisturbed.bits


def test_killed_while_a_client_is_faulty_the_same_others_stand_in(tmp_path, silent):
    for number in range(2, 6):
        grid = Dying(the_app(), CLIENTS, "after", number, twist=on_training(an_error))
        with pytest.raises(KilledError):
            go(grid=grid, folder=tmp_path / str(number))
        again = go(twist=on_training(an_error), folder=tmp_path / str(number), resume=True)
        assert again.bits == silent.bits


def test_a_client_that_lost_its_memory_refuses(tmp_path):
    """Without a folder the clients of a new run have no memory, and refuse instead of starting from zero."""
    with pytest.raises(KilledError):
        go(MEMORY, grid=Dying(the_app(MEMORY), CLIENTS, "before", 2), folder=tmp_path)
    with pytest.raises(RuntimeError, match=r"has lost its memory of exchange \d.*memory-folder"):
        go(MEMORY, folder=tmp_path, resume=True, rounds=9)


def test_the_memory_of_another_client_is_not_taken(tmp_path):
    def memory(client):
        config = {"memory-folder": str(tmp_path)}
        return Memory(Context(1, 1, config, RecordDict(), {}), b"first", "this run", client)

    memory(0).keep(b"of client 0", 1, set())
    assert memory(0).at(1) == b"of client 0"
    (tmp_path / "client-0.safetensors").rename(tmp_path / "client-1.safetensors")
    with pytest.raises(RefusedError, match="client 1 has lost its memory of exchange 1"):
        memory(1).at(1)


def test_what_a_client_remembers_follows_what_the_server_accepted():
    """A reply that is lost, and a round that is void, leave the client's memory as it was."""
    lost = {"train": 4}

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type.startswith("train") and client == 1 and lost["train"] > 0:
            lost["train"] -= 1
            return []  # the client did its work, the server never hears of it
        return [reply]

    outcome = go(MEMORY, twist=twist, replies=Replies(quorum=0.3, retries=0), timeout=0.05, rounds=6)
    run = go(MEMORY, twist=on_training_times(1, 4), replies=Replies(quorum=0.3, retries=0), timeout=0.05, rounds=6)
    assert lost["train"] == 0
    assert outcome.bits == run.bits


def on_training_times(client, times):
    """The client does not even begin, so many times."""
    left = [times]

    def twist(id, message, answer):
        if message.metadata.message_type.startswith("train") and id == client and left[0] > 0:
            left[0] -= 1
            return []
        return [answer()]

    return twist


@pytest.mark.slow
def test_a_run_folder_is_that_of_the_simulator(tmp_path, undisturbed):
    go(folder=tmp_path)
    params, done = restore(METHOD, POPULATION, FIRST, tmp_path)
    assert done == ROUNDS
    np.testing.assert_array_equal(params, undisturbed.params)
    manifest, rows, _ = records.read(tmp_path)
    assert manifest["status"]["kind"] == "completed"
    expected = simulate(METHOD, POPULATION, FIRST, rounds=ROUNDS, key=7).rows
    assert set(expected) <= set(rows)
    with pytest.raises(records.RecordError, match="already holds a run"):
        go(folder=tmp_path)
    with pytest.raises(records.RecordError, match=r"holds another run: .*quorum"):
        go(folder=tmp_path, resume=True, replies=Replies(quorum=0.5))


def test_a_finished_run_goes_on(tmp_path):
    go(folder=tmp_path, rounds=2)
    assert go(folder=tmp_path, resume=True, rounds=ROUNDS).bits == go().bits


# Flower's conventions


@pytest.mark.slow
def test_evaluation_on_the_server_and_on_the_clients(tmp_path):
    seen = []

    def evaluate(round, found):
        seen.append(round)
        return MetricRecord({"norm": float(jnp.linalg.norm(to_params(found, FIRST)))})

    strategy = FedspamStrategy(METHOD, FIRST, seed=7, fraction_evaluate=1.0, folder=tmp_path)
    result = strategy.start(LoopbackGrid(the_app(), CLIENTS), to_arrays(FIRST), 2, evaluate_fn=evaluate)
    assert seen == [0, 1, 2] == list(result.evaluate_metrics_serverapp)
    params = to_params(result.arrays, FIRST)
    weights = [float(POPULATION.client(jnp.uint32(id)).weight) for id in range(CLIENTS)]
    losses = [float(POPULATION.client(jnp.uint32(id))(params)) for id in range(CLIENTS)]
    assert result.evaluate_metrics_clientapp[2]["loss"] == pytest.approx(np.average(losses, weights=weights))
    _, _, probes = records.read(tmp_path)
    assert probes["norm"].tolist() == [metrics["norm"] for metrics in result.evaluate_metrics_serverapp.values()]


@pytest.mark.slow
def test_the_configuration_goes_along_and_may_choose_the_method():
    methods = {"pp": METHOD, "one": spam(step_size=0.5, fresh_weight=0.3, solver=SOLVER)}
    app = client_app(
        clients_of(POPULATION), lambda context: methods[context.run_config["method"]], lambda context: FIRST
    )
    for name, method in methods.items():
        grid = LoopbackGrid(app, CLIENTS, run_config={"method": name})
        strategy = FedspamStrategy(method, FIRST, seed=7, configrecord_key="settings", arrayrecord_key="model")
        strategy.start(grid, to_arrays(FIRST), 1, train_config=ConfigRecord({"note": 5}))
        last = grid.messages[-1].content
        assert dict(last["settings"]) == {"note": 5, "server-round": 1}
        assert set(last) == {"model", "settings", "fedspam"}


@pytest.mark.slow
def test_a_model_of_many_arrays_and_a_loss_over_own_data():
    def loss(params, rows):
        return jnp.mean((rows["in"] @ params["layer"]["kernel"] + params["bias"] - rows["out"]) ** 2)

    def oracle(context):
        random = np.random.default_rng(context.node_config["partition-id"])
        return DataOracle({"in": random.normal(size=(5, 2)), "out": random.normal(size=(5, 3))}, loss=loss)

    first = {"layer": {"kernel": jnp.ones((2, 3))}, "bias": jnp.zeros(3)}
    method = spam_pp(2, step_size=0.1, fresh_weight=0.3, solver=GradientDescent(steps=2, smoothness=4.0))
    grid = LoopbackGrid(client_app(oracle, method, first), 3)
    nested = FedspamStrategy(method, first).start(grid, to_arrays(first), 2)
    flat = FedspamStrategy(method).start(grid, to_arrays(first), 2)  # the server need not know the structure
    assert list(nested.arrays) == ["bias", "layer.kernel"] == list(flat.arrays)
    for name in nested.arrays:
        np.testing.assert_allclose(nested.arrays[name].numpy(), flat.arrays[name].numpy(), rtol=TOLERANCE)


def flax_model():
    nnx = pytest.importorskip("flax.nnx", reason="needs Flax: pip install '.[flax]'")
    return from_flax(nnx.Linear(3, 2, rngs=nnx.Rngs(0)))


def equinox_model():
    equinox = pytest.importorskip("equinox", reason="needs Equinox: pip install '.[equinox]'")
    return from_equinox(equinox.nn.Linear(3, 2, dtype=jnp.float32, key=jax.random.key(0)))


def torch_model():
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")
    return from_torch(torch.nn.Linear(3, 2))


def rows_for(client):
    random = np.random.default_rng(client)
    features = random.normal(size=(4 + client, 3)).astype(np.float32)
    return {"features": features, "label": (features.sum(axis=1) > 0).astype(np.int32)}


@pytest.mark.slow
@pytest.mark.parametrize(
    "make", [*(pytest.param(make, marks=pytest.mark.thorough) for make in (flax_model, equinox_model)), torch_model]
)
def test_modules_of_other_frameworks(make):
    model = make()
    first = jax.tree.map(jnp.asarray, model.init(0))
    method = spam_pp(2, step_size=0.5, fresh_weight=0.3, solver=GradientDescent(steps=2, smoothness=1.0))
    population = Ragged.of([rows_for(client) for client in range(3)], model.loss)
    grid = LoopbackGrid(client_app(clients_with(model.loss, rows_for), method, first), 3)
    result = FedspamStrategy(method, first, seed=7).start(grid, to_arrays(first), 3)
    expected = simulate(method, population, first, rounds=3, key=7)
    for one, other in zip(*map(jax.tree.leaves, (to_params(result.arrays, first), expected.params)), strict=True):
        assert one.dtype == jnp.float32
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_a_rule_takes_the_place_of_the_mean():
    expected = simulate(METHOD, POPULATION, FIRST, rounds=ROUNDS, key=7, aggregate=Median())
    outcome = go(aggregate=Median())
    np.testing.assert_allclose(outcome.params, expected.params, rtol=TOLERANCE, atol=TOLERANCE)


def test_one_compilation_serves_all_clients_and_rounds(undisturbed):
    before = perform._cache_size()
    go(rounds=5)
    assert perform._cache_size() == before


def test_the_log_is_in_flowers_style(caplog):
    caplog.set_level(logging.INFO, "flwr")
    go(twist=on_training(an_error), rounds=4)  # of which some ask client 2
    text = "\n".join(record.getMessage() for record in caplog.records)
    lines = (
        "Starting FedspamStrategy strategy:",
        "[ROUND 1/4]",
        "difference: Sampled 3 nodes (out of 6)",
        "difference: Received 2 results and 1 failures",
        "\t> client 2: error 2: it raised",
        "B down",
    )
    for line in lines:
        assert line in text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"fraction_train": 0.0}, "fraction_train = 0.0"),
        ({"resume": True}, "needs the folder"),
        ({"arrayrecord_key": "fedspam"}, "must differ"),
        ({"min_available_nodes": 0}, "min_available_nodes = 0"),
    ],
)
def test_bad_arguments_are_named(options, reason):
    with pytest.raises(ValueError, match=reason):
        FedspamStrategy(METHOD, FIRST, **options)


@pytest.mark.parametrize(
    ("options", "reason"),
    [({"quorum": 2.0}, "quorum = 2.0"), ({"retries": -1}, "retries = -1"), ({"patience": 0}, "patience = 0")],
)
def test_bad_bounds_on_replies_are_named(options, reason):
    with pytest.raises(ValueError, match=reason):
        Replies(**options)


def test_arrays_and_parameters():
    params = {"a": jnp.ones((2, 3), jnp.bfloat16), "b": [jnp.zeros(2), jnp.ones(())]}
    back = to_params(to_arrays(params), params)
    assert jax.tree.structure(back) == jax.tree.structure(params)
    assert all(
        a.dtype == b.dtype and (a == b).all()
        for a, b in zip(jax.tree.leaves(back), jax.tree.leaves(params), strict=True)
    )
    with pytest.raises(ValueError, match=r"lack \['c'\] of the parameters and have unknown \['b.0', 'b.1'\]"):
        to_params(to_arrays(params), {"a": params["a"], "c": jnp.zeros(1)})
    with pytest.raises(ValueError, match="has shape"):
        to_params(to_arrays(jnp.ones(3)), jnp.ones(4))


def test_what_is_held_travels_once(undisturbed):
    """The prox client of SPAM-PP is sent only g: it holds x from the exchange before."""
    prox = next(m for m in undisturbed.grid.messages if m.metadata.message_type == "train.prox")
    fields = safetensors.numpy.load(envelope.enclosed(prox.content))
    assert set(fields) == {"@client", "@key", "@round", "g", "step_size"}
    assert len(wire.encode(fields)) == len(envelope.enclosed(prox.content))


@pytest.mark.slow
def test_the_example_of_the_guide_works(tmp_path):
    text = (Path(__file__).parents[2] / "docs" / "flower.md").read_text()
    code, *_ = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    module = load_code(code, tmp_path)
    np.testing.assert_allclose(module.result.arrays["bias"].numpy(), 1, atol=0.05)
    for name, simulated in module.run.params.items():
        np.testing.assert_allclose(module.result.arrays[name].numpy(), simulated, rtol=TOLERANCE)


def test_the_grid_is_polled_less_often_the_longer_the_wait():
    now, polls = [0.0], []
    message = Message(RecordDict(), dst_node_id=1, message_type="train.prox")
    message.metadata.__dict__["_message_id"] = "asked"

    class Silent:
        def push_messages(self, messages):
            return ["asked"]

        def pull_messages(self, ids):
            polls.append(now[0])
            return []

    trip = Trip(
        Silent(), lambda slot, reply: reply,
        clock=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )  # fmt: skip
    trip.send({0: message})
    trip.wait(60.0)
    assert trip.failures[0].kind == "late"
    assert polls[-1] == pytest.approx(60.0)
    pauses = np.diff(polls)
    np.testing.assert_allclose(pauses[:-1], np.clip(0.1 * np.array(polls[:-2]), 0.02, 1.0))
