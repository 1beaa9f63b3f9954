"""Sites that are late: asked again, admitted in a later round, counted and shown; nobody else gets another id."""

import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

from fedspam import fedavg
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.server import events, introductions, nodes as directories
from fedspam.flower.server.nodes import NodeDirectory
from fedspam.flower.wire import envelope
from fedspam.flower.wire.schema import Schema
from fedspam.problems import quadratics

CLIENTS, ROUNDS, LATE = 4, 4, 2
POPULATION = quadratics(0, clients=CLIENTS, dimension=3)
FIRST = np.ones(3)
METHOD = fedavg(CLIENTS, 2, 0.1)
REPLIES = Replies(quorum=0.5, retries=0)
APP = client_app(clients_of(POPULATION), METHOD, FIRST)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


@pytest.fixture
def at_once(monkeypatch):
    """Nodes are asked again without a rest, and the start waits for nobody, so that no test depends on time."""
    monkeypatch.setattr(introductions, "REST", 0.0)
    for module in (introductions, directories):
        monkeypatch.setattr(module, "LONGEST", 0.0)


def go(twist=None, *, folder=None, rounds=ROUNDS, clients=CLIENTS, app=APP, timeout=5.0, **options):
    grid = LoopbackGrid(app, clients, twist=twist)
    settings = {"seed": 7, "replies": REPLIES, "min_available_nodes": CLIENTS - 1, "folder": folder}
    FedspamStrategy(METHOD, FIRST, **settings | options).start(grid, to_arrays(FIRST), rounds, timeout)
    return grid


def answered(folder):
    return [sorted(line["answered"]) for line in lines(folder, "exchange")]


def lines(folder, event):
    found = [json.loads(line) for line in (folder / events.LOG_FILE).read_text().splitlines()]
    return [line for line in found if line["event"] == event]


def metric(folder, name):
    text = (folder / events.METRICS_FILE).read_text()
    return float(re.search(rf"^fedspam_{re.escape(name)} (.*)$", text, re.MULTILINE)[1])


def failing(times, code):
    """Its first introductions fail with an error of Flower: 3 is a message that came too late, 0 anything."""
    left = [times]

    def twist(client, message, answer):
        if client == LATE and message.metadata.message_type == "query.whoami" and left[0]:
            left[0] -= 1
            return [Message(Error(code=code, reason="not now"), reply_to=message)]
        return [answer()]

    return twist


@pytest.mark.parametrize("code", [0, 1, 2, 3, 5, 8])
def test_a_failed_introduction_is_asked_again(code, tmp_path, at_once):
    """It fails at the start and in the first round, which asks twice; from the second round on it takes part."""
    grid = go(failing(3, code), folder=tmp_path)
    assert answered(tmp_path) == [[0, 1, 3], *[[0, 1, 2, 3]] * (ROUNDS - 1)]
    found = [line for line in lines(tmp_path, "node") if line["client"] in (LATE, None)]
    kind = "lost" if code in (5, 8) else "error"
    assert [(line["outcome"], line["tries"]) for line in found] == [
        (kind, 1), (kind, 2), (kind, 3), ("accepted", 4)
    ]  # fmt: skip
    assert found[0]["reason"] == f"error {code}: not now"
    assert [line["late"] for line in found] == [False, False, False, True]
    assert metric(tmp_path, "nodes_late_total") == 1
    assert metric(tmp_path, "nodes_connected") == CLIENTS
    assert metric(tmp_path, "nodes_refused") == 0
    assert metric(tmp_path, f'introductions_total{{outcome="{kind}"}}') == 3
    assert {config["partition-id"]: id for id, config in asked_as(grid)} == {id: id for id in range(CLIENTS)}


def asked_as(grid):
    """The ids by which clients were asked, with the configuration of their nodes."""
    for message in grid.messages:
        if message.metadata.message_type.startswith("train"):
            id = int(safetensors.numpy.load(envelope.enclosed(message.content))["@client"])
            yield id, grid.contexts[message.metadata.dst_node_id].node_config


def test_the_others_are_asked_as_if_the_late_one_had_been_silent(tmp_path, at_once):
    """While it is missing the run is that of the others; afterwards it is that of all."""

    def silent_at_first(client, message, answer):
        training = message.metadata.message_type.startswith("train") and message.metadata.group_id in ("1", "2")
        return [] if client == LATE and training else [answer()]

    late, silent = tmp_path / "late", tmp_path / "silent"
    go(failing(5, 3), folder=late)  # at the start and in two rounds
    go(silent_at_first, folder=silent, timeout=0.2)
    versions = [[line["parameters"] for line in lines(folder, "round")] for folder in (late, silent)]
    assert versions[0] == versions[1]


def test_a_run_starts_when_all_introductions_failed_at_first(tmp_path, at_once):
    failed = set()

    def twist(client, message, answer):
        if message.metadata.message_type == "query.whoami" and client not in failed:
            failed.add(client)
            return [Message(Error(code=3, reason="the SuperNode was restarted"), reply_to=message)]
        return [answer()]

    go(twist, folder=tmp_path)
    assert len(failed) == CLIENTS
    assert answered(tmp_path) == [[0, 1, 2, 3]] * ROUNDS


class SlowToStart(LoopbackGrid):
    """The introduction of one client arrives when training has begun."""

    def pull_messages(self, message_ids):
        ids = list(message_ids)
        begun = any(message.metadata.group_id == "2" for message in self.messages)
        held = {
            message.metadata.message_id
            for message in self.messages
            if self._clients[message.metadata.dst_node_id] == LATE and message.metadata.message_type == "query.whoami"
        }
        return super().pull_messages([id for id in ids if begun or id not in held])


def test_a_slow_first_start_is_not_asked_twice_and_counts_when_it_comes(tmp_path, at_once):
    grid = SlowToStart(APP, CLIENTS)
    strategy = FedspamStrategy(METHOD, FIRST, replies=REPLIES, min_available_nodes=3, folder=tmp_path)
    strategy.start(grid, to_arrays(FIRST), ROUNDS, timeout=600)
    node = next(node for node, client in grid._clients.items() if client == LATE)
    asked = [message.metadata.message_type for message in grid.messages if message.metadata.dst_node_id == node]
    assert asked == ["query.whoami", *["train.train"] * 2]
    assert [LATE in ids for ids in answered(tmp_path)] == [False, False, True, True]


def test_a_node_that_connects_late_is_admitted(tmp_path, at_once):
    """It was not there at all when the run began."""
    grid = LoopbackGrid(APP, CLIENTS)
    node = next(node for node, client in grid._clients.items() if client == LATE)
    absent = grid.contexts.pop(node)

    def twist(client, message, answer):
        if message.metadata.group_id == "2":
            grid.contexts[node] = absent
        return [answer()]

    grid._twist = twist
    strategy = FedspamStrategy(METHOD, FIRST, replies=REPLIES, min_available_nodes=3, folder=tmp_path)
    strategy.start(grid, to_arrays(FIRST), ROUNDS, timeout=5)
    assert [LATE in ids for ids in answered(tmp_path)] == [False, False, True, True]


class Clock:
    """A clock that only `sleep` moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def directory(grid, timeout):
    clock = Clock()
    seen = events.RunEvents(None, "fedavg", 1)
    return NodeDirectory(grid, Schema.of(METHOD, FIRST), timeout, seen, clock, clock.sleep), clock


def test_rests_grow_and_the_deadline_is_the_timeout():
    """A node that never replies: one question until its deadline, the next after a rest, twice as long each time."""
    times = []

    def twist(client, message, answer):
        if client != LATE:
            return [answer()]
        times.append(clock.now)
        assert message.metadata.ttl == 300.0
        return [] if len(times) == 1 else [Message(Error(code=2, reason="it raised"), reply_to=message)]

    nodes, clock = directory(LoopbackGrid(APP, CLIENTS, twist=twist), timeout=300.0)
    nodes.gather(CLIENTS - 1)
    assert clock.now == pytest.approx(introductions.LONGEST, abs=introductions.POLL)  # nobody waits longer for it
    assert (len(nodes), nodes.clients) == (CLIENTS - 1, CLIENTS)
    while clock.now < 2000:
        nodes.refresh(patience=0.0)
        clock.sleep(1.0)
    # the first question waits for its deadline of 300 s, longer than any rest
    np.testing.assert_allclose(np.diff(times)[:9], [300, 10, 20, 40, 80, 160, 300, 300, 300], atol=2.0)


def test_too_few_nodes_are_waited_for_until_the_timeout_whatever_they_reply():
    times = []

    def twist(client, message, answer):
        if client == LATE:
            times.append(clock.now)
            return [Message(Error(code=3, reason="not now"), reply_to=message)]
        return [answer()]

    nodes, clock = directory(LoopbackGrid(APP, CLIENTS, twist=twist), timeout=30.0)
    with pytest.raises(
        RuntimeError, match=r"3 of at least 4 nodes can take part after 30 s; node \d+: error 3: not now"
    ):
        nodes.gather(CLIENTS)
    assert clock.now == pytest.approx(30, abs=1)
    np.testing.assert_allclose(times, [0, 5, 15], atol=0.5)


# who may not take part, and why


def whoami(**changes):
    """Changes what one client says about itself."""

    def twist(client, message, answer):
        reply = answer()
        if client == LATE and message.metadata.message_type == "query.whoami":
            reply.content["fedspam"].update(changes)
        return [reply]

    return twist


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"wire": 2, "fedspam": "9.0"}, r"its fedspam '9.0' speaks version 2 of the wire, the server's .* speaks 1"),
        ({"num-partitions": 100}, r"num-partitions = 100 does not fit the 4 that most nodes report"),
        ({"num-partitions": 0, "partition-id": 2**24 - 1}, r"partition-id = 16777215 .* does not fit the 4"),
        ({"partition-id": 3}, r"partition-id = 3 is taken by node"),
    ],
)
def test_one_node_that_does_not_fit_is_refused_and_the_run_goes_on(changes, reason, tmp_path):
    go(whoami(**changes), folder=tmp_path)
    assert metric(tmp_path, "clients") == CLIENTS
    assert all(len(line["answered"]) >= 2 for line in lines(tmp_path, "exchange"))
    refused = lines(tmp_path, "round")[-1]["nodes_refused"]
    assert len(refused) == 1
    assert re.search(reason, next(iter(refused.values())))


def test_a_late_node_cannot_change_the_number_of_clients(tmp_path, at_once):
    """It would otherwise be the client that is held out, and evaluate alone."""
    twists = (failing(1, 3), whoami(**{"num-partitions": 100}))
    both = lambda client, message, answer: twists[0](client, message, lambda: twists[1](client, message, answer)[0])
    go(both, folder=tmp_path)
    assert metric(tmp_path, "clients") == CLIENTS
    assert "is not one of the 4 clients of this run" in next(
        iter(lines(tmp_path, "round")[-1]["nodes_refused"].values())
    )


@pytest.mark.parametrize("liar", [{"partition-id": 2**24 - 1}, {"num-partitions": 2**24}, {"num-partitions": 40}])
@pytest.mark.parametrize("others", [1, 3])
def test_one_node_does_not_decide_how_many_clients_there_are(liar, others):
    """Where the others do not say how many they are: cohorts would be drawn from millions, and the start be void."""
    configs = [{"partition-id": id} for id in range(others)] + [{"partition-id": others, **liar}]
    nodes, _ = directory(LoopbackGrid(APP, configs), timeout=30.0)
    nodes.gather(others)
    assert (len(nodes), nodes.clients) == (others, others)
    (reason,) = nodes.refused.values()
    assert "is far above the number of nodes, and most of them give no num-partitions" in reason


def test_nodes_that_do_not_say_how_many_they_are_take_part(tmp_path):
    go(folder=tmp_path, clients=[{"partition-id": id} for id in (0, 1, 3, 2)])
    assert metric(tmp_path, "clients") == CLIENTS


def test_another_release_with_the_same_wire_takes_part(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    go(whoami(fedspam="0.0.9\n"), folder=tmp_path)
    assert all(LATE in line["answered"] for line in lines(tmp_path, "exchange"))
    assert f"client {LATE} runs fedspam '0.0.9\\n'" in caplog.text


def foreign(kind):
    app = ClientApp()

    @getattr(app, kind)()
    def answer(message: Message, context: Context) -> Message:
        return Message(RecordDict({"config": ConfigRecord({})}), reply_to=message)

    return app


@pytest.mark.parametrize("number", [CLIENTS, 0], ids=["asked", "not asked"])
def test_an_app_of_somebody_else_is_named(number, caplog):
    """With and without introductions: Flower only says that no function is registered."""
    caplog.set_level(logging.INFO, "flwr")
    reason = r"its ClientApp does not know '(query\.whoami|train\.train)', so it is not one of fedspam; make it with"
    with pytest.raises(RuntimeError, match=reason):
        go(
            app=foreign("train"),
            timeout=0.3,
            introductions=number,
            min_available_nodes=1,
            replies=replace(REPLIES, patience=1),
        )
    assert "function registered" not in caplog.text
