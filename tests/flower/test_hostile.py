"""One client cannot end a run: whatever its replies make the server raise is a rejection of that reply."""

import io
import json
import logging
import re
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, MetricRecord, RecordDict
from prometheus_client import generate_latest

from fedspam import fedavg
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays
from fedspam.flower.server import events
from fedspam.flower.wire import envelope
from fedspam.methods import buffered
from fedspam.problems import quadratics

CLIENTS, ROUNDS, BAD = 4, 2, 1
POPULATION = quadratics(0, clients=CLIENTS, dimension=3)
FIRST = np.ones(3)
METHOD = fedavg(CLIENTS, 2, 0.1)
REPLIES = Replies(quorum=0.5, retries=0)
APP = client_app(clients_of(POPULATION), METHOD, FIRST)
STAGES = ("query", "train", "evaluate")


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def go(fault=None, stage="train", *, method=METHOD, app=APP, grid=LoopbackGrid, config=None, **options):
    """A run in which every reply of one client to messages of this stage is changed by `fault`."""

    def twist(id, message, answer):
        reply = answer()
        if fault is not None and id == BAD and message.metadata.message_type.startswith(stage):
            fault(reply)
        return [reply]

    settings = {"seed": 7, "replies": REPLIES, "fraction_evaluate": 1.0, "min_available_nodes": CLIENTS - 1}
    strategy = FedspamStrategy(method, FIRST, **settings | options)
    world = grid(app, CLIENTS, twist=twist)
    result = strategy.start(world, to_arrays(FIRST), ROUNDS, 5.0, train_config=config)
    return result.arrays["params"].data


def silent(stage="train", **options):
    """The run in which that client sends nothing readable in this stage."""
    return go(lambda reply: reply.content.clear(), stage, **options)


def failures(folder):
    found = [json.loads(line) for line in (folder / events.LOG_FILE).read_text().splitlines()]
    return [failure for line in found if line["event"] == "exchange" for failure in line["failures"]]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("value", ["", b"", []], ids=["text", "bytes", "list"])
def test_empty_values_in_a_record_end_nothing(stage, value):
    """Flower's own count of the bytes of a record raises at them; they are unknown entries as others are."""

    def fault(reply):
        reply.content["note"] = ConfigRecord({"empty": value})

    assert go(fault, stage) == go()


def test_empty_values_may_be_sent():
    assert go(config=ConfigRecord({"note": "", "names": []})) == go()


def test_bytes_are_counted_as_flower_counts_them():
    whole = ConfigRecord({"a": 1, "flag": True, "list": [1.5, 2.5], "flags": [True, False], "text": "abc", "b": b"ab"})
    content = RecordDict({
        "arrays": to_arrays({"x": np.ones((2, 3))}), "config": whole, "metrics": MetricRecord({"m": [1, 2], "n": 0.5}),
    })  # fmt: skip
    assert envelope.size(content) == sum(record.count_bytes() for record in content.values())


def test_whatever_reading_a_reply_raises_is_a_rejection_with_its_reason(tmp_path, monkeypatch):
    """A fault of the server's own reader: it is met by one client's replies alone."""
    from fedspam.flower.server import handle

    def raising(reply, fields, client):
        if client == BAD:
            raise IndexError("there is no such thing")
        return decoded(reply, fields, client)

    expected, decoded = silent(), handle.decoded
    monkeypatch.setattr(handle, "decoded", raising)
    assert go(folder=tmp_path) == expected
    assert {failure["client"] for failure in failures(tmp_path)} == {BAD}
    assert {failure["kind"] for failure in failures(tmp_path)} == {"rejected"}
    assert "IndexError: there is no such thing" in failures(tmp_path)[0]["reason"]


def test_numbers_that_are_too_large_for_a_float_end_no_evaluation():
    fault = lambda reply: reply.content["metrics"].update({"loss": 10**400})
    assert go(fault, "evaluate") == go()


class Unreadable(LoopbackGrid):
    """Flower itself cannot read what one client has replied, and raises for all replies that it was asked for."""

    def pull_messages(self, message_ids):
        ids = list(message_ids)
        found = {reply.metadata.reply_to_message_id: reply for name in ids for reply in self._replies.get(name, ())}
        senders = {self._clients[reply.metadata.src_node_id] for reply in found.values()}
        if BAD in senders:
            raise TypeError("a record that is not one")
        return super().pull_messages(ids)


def test_a_reply_that_flower_cannot_read_is_rejected(tmp_path):
    assert go(grid=Unreadable, folder=tmp_path) == silent("")


def test_a_bad_reply_does_not_end_buffered_rounds(tmp_path):
    method = buffered(fedavg(2, 2, 0.1), concurrency=CLIENTS)
    app = client_app(clients_of(POPULATION), method, FIRST)

    def fault(reply):
        reply.content["fedspam"] = ConfigRecord({"exchange": [], "schema": b""})

    go(fault, method=method, app=app, folder=tmp_path, replies=replace(REPLIES, retries=2))
    assert {failure["client"] for failure in failures(tmp_path)} == {BAD}


# what a reply may hold beside what it was asked for


def text_of_20_mb(reply):
    held = reply.content.config_records.get("fedspam", {})  # a reply to an evaluation has none
    reply.content["fedspam"] = ConfigRecord({**held, "note": "x" * 20_000_000})


def record_of_20_mb(reply):
    reply.content["more"] = ConfigRecord({"note": ["x" * 1000] * 20_000})


def metrics_of_2_mb(reply):
    reply.content["more"] = MetricRecord({f"m{number}": 1.0 for number in range(200_000)})


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("fault", [text_of_20_mb, record_of_20_mb, metrics_of_2_mb])
def test_a_reply_that_is_larger_than_what_was_asked_for_is_rejected(stage, fault, tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    assert go(fault, stage, folder=tmp_path) == (go() if stage == "evaluate" else silent(stage))
    assert re.search(r"the reply has \d{7,} bytes, at most \d{5} are read", caplog.text)


def test_small_records_beside_a_reply_are_counted_and_ignored(tmp_path):
    fault = lambda reply: reply.content.__setitem__("more", ConfigRecord({"note": "x" * 1000}))
    assert go(fault, folder=tmp_path) == go()
    found = [json.loads(line) for line in (tmp_path / events.LOG_FILE).read_text().splitlines()]
    exchange = next(line for line in found if line.get("exchange") == "train")
    assert exchange["flower_up"] - exchange["bytes_up"] > 1000


def test_a_client_cannot_add_metrics_without_end(tmp_path):
    def many(reply):
        reply.content["metrics"].update({f"m{number}": 1.0 for number in range(101)})

    assert go(many, "evaluate", folder=tmp_path) == go()
    assert {failure["reason"] for failure in failures(tmp_path)} == {"it sends 103 metrics, at most 100 are taken"}
    seen = events.RunEvents(tmp_path, "fedavg", 2)
    for done in (1, 2):  # a lone evaluator with another name in each round
        seen.round(done, {}, {"clients": {f"name {done}": 1.0}}, "")
    assert "name 2" in generate_latest(seen).decode()
    assert "name 1" not in generate_latest(seen).decode()


def scaled(factor):
    def fault(reply):
        fields = safetensors.numpy.load(envelope.enclosed(reply.content))
        fields = {name: value * factor if name.startswith("reply") else value for name, value in fields.items()}
        reply.content["arrays"] = envelope.enclose(safetensors.numpy.save(fields))

    return fault


def test_numbers_above_largest_are_rejected(tmp_path):
    """Without it a reply counts whose squares are finite, however large it is: the guide says so."""
    assert np.abs(np.load(io.BytesIO(go(scaled(1e15))))).max() > 1e13
    assert go(scaled(1e15), replies=replace(REPLIES, largest=1e6), folder=tmp_path) == silent(
        replies=replace(REPLIES, largest=1e6)
    )
    assert re.search(r"holds a number of size .*e\+1[45]; largest = 1e\+06", failures(tmp_path)[0]["reason"])
    for wrong in (0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="largest = "):
            Replies(largest=wrong)


def test_a_reply_whose_squares_overflow_is_not_called_infinite(tmp_path):
    """In float32 they do from 2e19 on, and no norm of such a reply is a number."""
    assert go(scaled(1e30), folder=tmp_path) == silent()
    reason = "the reply holds NaN or infinity, or numbers whose squares overflow"
    assert {failure["reason"] for failure in failures(tmp_path)} == {reason}


def test_a_rejected_reply_says_nothing_about_its_sender(tmp_path):
    """Without introductions a node is numbered by its first reply, unless that is rejected: here it takes the partition
    of another client."""

    def fault(reply):
        reply.content["fedspam"]["partition-id"] = 3
        scaled(np.nan)(reply)

    assert go(fault, introductions=0, folder=tmp_path) == silent(introductions=0)
    assert {failure["client"] for failure in failures(tmp_path)} == {BAD}
