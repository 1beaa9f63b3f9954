"""The policy file of a site: what it does not accept is refused and logged there, and counted on the server."""

import json
import logging
import re

import jax.numpy as jnp
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict

from fedspam import __version__, fedavg, spam_pp
from fedspam._internal import describe
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, export_works, to_arrays
from fedspam.flower.client import policy
from fedspam.flower.client.policy import Policy
from fedspam.flower.privacy.differential import Privacy
from fedspam.flower.privacy.secure_client import SecureSum
from fedspam.flower.server import events, introductions
from fedspam.flower.wire import envelope
from fedspam.problems import quadratics
from fedspam_client import client_app as light_app, numpy_client, relay_app

CLIENTS, ROUNDS, OWN = 4, 3, 2  # client OWN has a policy
POPULATION, FIRST = quadratics(0, clients=CLIENTS, dimension=3), jnp.ones(3)
FEDAVG = fedavg(CLIENTS, 2, 0.1)
SPAM_PP = spam_pp(CLIENTS, step_size=0.5, fresh_weight=0.3)


@pytest.fixture(autouse=True)
def quiet(caplog, monkeypatch):
    caplog.set_level(logging.WARNING, "flwr")
    monkeypatch.setattr(introductions, "LONGEST", 0.0)


def go(tmp_path, text, method=FEDAVG, *, app=None, rounds=ROUNDS, **options):
    path = tmp_path / "policy.toml"
    path.write_text(text)
    nodes = [{"partition-id": id, "num-partitions": CLIENTS} for id in range(CLIENTS)]
    nodes[OWN]["policy"] = str(path)
    app = client_app(clients_of(POPULATION), method, FIRST, **options) if app is None else app
    strategy = FedspamStrategy(
        method, FIRST, replies=Replies(quorum=0.5, retries=0), min_available_nodes=3, folder=tmp_path / "run",
        secure=options.get("secure"),
    )  # fmt: skip
    strategy.start(LoopbackGrid(app, nodes), to_arrays(FIRST), rounds, 5.0)
    log = tmp_path / "policy.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def asked(tmp_path):
    """Per exchange, whether the client with the policy has answered."""
    lines = map(json.loads, (tmp_path / "run" / events.LOG_FILE).read_text().splitlines())
    return [OWN in line["answered"] for line in lines if line["event"] == "exchange"]


def counted(tmp_path, name):
    text = (tmp_path / "run" / "metrics.prom").read_text()
    found = re.search(rf"^fedspam_{re.escape(name)} (.*)$", text, re.MULTILINE)
    return 0 if found is None else float(found[1])


def test_what_a_policy_accepts_is_answered_and_logged(tmp_path):
    text = f"""
methods = ["fedavg", "scaffold"]
works = ["train", "evaluate"]
versions = ["{__version__}"]
messages_per_hour = 100
bytes_per_day = 1_000_000
largest_message = 10_000
largest_reply = 10_000
"""
    log = go(tmp_path, text)
    assert asked(tmp_path) == [True] * ROUNDS
    assert [line["type"] for line in log] == ["query.whoami", *["train.train"] * ROUNDS]
    assert {line["method"] for line in log} == {"fedavg"}
    assert all(line["refused"] is None and line["received"] > 0 and line["sent"] > 0 for line in log)


REFUSED_AT_ONCE = {
    'methods = ["scaffold"]': r"methods of its policy are \['scaffold'\], the message is of 'fedavg'",
    'schemas = ["0"]': r"schemas of its policy are \['0'\], the message is of '[0-9a-f]{32}'",
    'versions = ["0.0.1"]': rf"versions of its policy are \['0.0.1'\], the message is of '{re.escape(__version__)}'",
    "largest_message = 10": r"the message has \d+ bytes, largest_message = 10",
    "largest_reply = 1": r"the reply has \d+ bytes, largest_reply = 1",
}


@pytest.mark.parametrize("text", REFUSED_AT_ONCE)
def test_a_site_that_refuses_its_introduction_is_shown_and_nobody_waits_for_it(text, tmp_path):
    log = go(tmp_path, text)
    assert asked(tmp_path) == [False] * ROUNDS
    assert counted(tmp_path, 'introductions_total{outcome="refused"}') >= 1
    assert counted(tmp_path, "nodes_refused") == 1
    assert re.fullmatch(REFUSED_AT_ONCE[text], log[0]["refused"])
    last = [json.loads(line) for line in (tmp_path / "run" / events.LOG_FILE).read_text().splitlines()][-2]
    assert re.search(REFUSED_AT_ONCE[text], next(iter(last["nodes_refused"].values())))


REFUSED_LATER = {
    'works = ["evaluate"]': (r"works of its policy are \['evaluate'\], the message is of 'train'", 0),
    "secure_sum = true": (r"secure_sum = true, and replies to 'train' are not summed securely", 0),
    "noise_multiplier = 1": (r"noise_multiplier = 1 is the least, and replies to 'train' have less noise", 0),
    "bound = 1": (r"bound = 1 is the largest, and replies to 'train' are not clipped to it", 0),
    "messages_per_hour = 2": (r"it has answered 2 messages in an hour, messages_per_hour = 2", 2),
    "bytes_per_day = 1": (r"with this message it has exchanged \d+ bytes in a day, bytes_per_day = 1", 0),
}


@pytest.mark.parametrize("text", REFUSED_LATER)
def test_works_are_refused_one_by_one_and_counted(text, tmp_path):
    reason, answered = REFUSED_LATER[text]
    log = [line for line in go(tmp_path, text) if line["type"] == "train.train"]
    assert asked(tmp_path) == [True] * answered + [False] * (ROUNDS - answered)
    assert counted(tmp_path, 'failures_total{exchange="train",kind="refused"}') == ROUNDS - answered
    assert [line["refused"] is None for line in log] == asked(tmp_path)
    assert re.fullmatch(reason, log[-1]["refused"])


def test_rates_are_those_of_the_last_hour_and_day(tmp_path):
    rates = Policy(messages_per_hour=2, bytes_per_day=100)
    line = lambda time: {"time": time, "received": 20, "sent": 20}
    assert rates.exhausted([line(0.0), line(10.0)], 20.0, 10) is not None
    assert rates.exhausted([line(0.0), line(10.0)], 3605.0, 10) is None
    assert rates.exhausted([line(0.0), line(10.0)], 3605.0, 30) is not None
    assert rates.exhausted([line(0.0), line(10.0)], 86405.0, 30) is None


def test_what_protects_replies_satisfies_a_policy_that_asks_for_it(tmp_path):
    secure = SecureSum(works=("train",), least=3, fraction_bits=20)
    privacy = Privacy(bound=0.5, noise_multiplier=2.0, least=3, works=("train",), secure=secure)
    strict = Policy(secure_sum=True, noise_multiplier=1.0, bound=1.0)
    assert strict.unprotected("train.train", secure, privacy) is None
    assert strict.unprotected("train.prox", secure, privacy) is not None
    assert Policy(noise_multiplier=3.0).unprotected("train.train", secure, privacy) is not None
    assert Policy(bound=0.1).unprotected("train.train", secure, privacy) is not None
    go(tmp_path, "secure_sum = true", secure=secure)
    assert asked(tmp_path) == [True] * ROUNDS


def test_a_part_of_a_method_may_be_refused(tmp_path):
    """The site gives gradients, and never the point of a prox."""
    log = go(tmp_path, 'works = ["difference", "starting_gradient"]', SPAM_PP, rounds=8)
    found = {(line["type"], line["refused"] is None) for line in log}
    assert found >= {("train.difference", True)}
    assert ("train.prox", True) not in found


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("methods = [", "cannot be read as TOML"),
        ("", "has no entry; to accept everything, leave 'policy' out"),
        ('method = ["fedavg"]', "has the entry 'method'; known are methods, works"),
        ('methods = "fedavg"', "methods = 'fedavg' must be a list of names"),
        ("works = [1]", "must be a list of names"),
        ("secure_sum = 1", "secure_sum = 1 must be true or false"),
        ("bytes_per_day = true", "must be a number from 0 on"),
        ("bytes_per_day = -1", "must be a number from 0 on"),
        ('log = "/nowhere/log"', "No such file"),
    ],
)
def test_a_policy_that_is_not_usable_refuses_everything(text, reason, tmp_path, caplog):
    go(tmp_path, text)
    assert asked(tmp_path) == [False] * ROUNDS
    assert re.search(reason, caplog.text)
    refused = "its policy, or the log of it, is not usable; its own log says why"
    assert refused in (tmp_path / "run" / events.LOG_FILE).read_text()


def test_a_client_without_jax_obeys_its_policy(tmp_path):
    export_works(tmp_path / "works.json", FEDAVG, FIRST)
    loss = lambda x, rows: (((x - rows) ** 2).sum(1).mean() / 2, x - rows.mean(0))
    app = light_app(numpy_client(loss, lambda id: jnp.zeros((2, 3)) + id), tmp_path / "works.json")
    log = go(tmp_path, 'methods = ["spam_pp"]', app=app)
    assert asked(tmp_path) == [False] * ROUNDS
    assert log[0]["method"] == "fedavg"


def test_a_program_behind_a_relay_is_not_asked_for_what_the_policy_refuses(tmp_path):
    """The program would fail: what is refused is refused before it. Only a first message says which method it is of."""
    relay, own = relay_app(["false"], ("train",)), client_app(clients_of(POPULATION), FEDAVG, FIRST)
    app = lambda message, context: (relay if context.node_config["partition-id"] == OWN else own)(message, context)
    reason = "methods of its policy are ['spam_pp'], the message is of "
    log = go(tmp_path, 'methods = ["spam_pp"]', app=app)
    assert [line["refused"] for line in log] == [f"{reason}'fedavg'"]
    assert asked(tmp_path) == [False] * ROUNDS

    context = Context(1, 1, {"partition-id": OWN, "policy": str(tmp_path / "policy.toml")}, RecordDict(), {})
    first, second = ({"method": {"name": name}} for name in ("fedavg", "spam_pp"))
    told = lambda schema, description: {"schema": schema, "description": json.dumps(description)}
    of = lambda description: describe.digest(description)[:32]
    refused = [
        ({}, "the message asks for work and names no schema"),
        ({"schema": of(first)}, f"{reason}'unknown'"),
        (told(of(first), first), f"{reason}'fedavg'"),
        ({"schema": of(first)}, f"{reason}'fedavg'"),
        (told(of(first), second), "the description in the message is not that of its schema"),
        ({"schema": of(first)}, f"{reason}'fedavg'"),
        (told(of(first), [second]), "the description in the message cannot be read"),
        (told(of(second), second), "false ended"),
        ({"schema": of(second)}, "false ended"),
    ]
    for head, due in refused:
        content = RecordDict({envelope.HEADER: ConfigRecord(head)} if head else {})
        reply = relay(Message(content, 1, "train.train"), context)
        assert str(reply.content[envelope.HEADER]["refused"]).startswith(due)


def test_damaged_lines_of_the_log_count_nothing(tmp_path):
    log = tmp_path / "log.jsonl"
    good = {"time": 1.0, "type": "train.train", "received": 1, "sent": 1, "refused": None}
    others = ['{"time": "x"}', "[1]", "nonsense", '{"cut', json.dumps(good | {"refused": "x"})]
    log.write_text("\n".join([*others, json.dumps(good), json.dumps(good | {"type": "query.whoami"})]))
    assert list(policy.answered(log)) == [good]
