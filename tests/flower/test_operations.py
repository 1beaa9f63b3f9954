"""What an operator sees of a run over Flower, and how it is stopped: the log, the metrics, SIGTERM."""

import html
import http.client
import json
import logging
import os
import re
import signal
import socket
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from fedspam import fedavg, load, models, spam_pp
from fedspam._internal.model_file import parameters_hash
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, to_arrays, to_params
from fedspam.flower.server import events, run, stop
from fedspam.flower.server.replies import Windows
from fedspam.flower.wire import envelope
from fedspam.methods import METHODS
from fedspam.problems import quadratics
from fedspam.simulation import records
from fedspam.simulation.status import COMPLETED

CLIENTS, ROUNDS, BAD = 6, 3, 2
POPULATION = quadratics(0, clients=CLIENTS, dimension=3)
FIRST = np.ones(3)
METHOD = spam_pp(3, step_size=0.5, fresh_weight=0.3)
APP = client_app(clients_of(POPULATION), METHOD, FIRST)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def go(*, twist=None, rounds=ROUNDS, timeout=5.0, evaluate=None, grid=None, **options):
    strategy = FedspamStrategy(METHOD, FIRST, **{"seed": 7, **options})
    grid = LoopbackGrid(APP, CLIENTS, twist=twist) if grid is None else grid
    result = strategy.start(grid, to_arrays(FIRST), rounds, timeout, evaluate_fn=evaluate)
    return np.asarray(to_params(result.arrays, FIRST)).tobytes()


def lines(folder, event):
    found = [json.loads(line) for line in (folder / events.LOG_FILE).read_text().splitlines()]
    return [line for line in found if line["event"] == event]


def metrics(text):
    """The samples of Prometheus' text format, by name and labels."""
    found = {}
    for line in text.splitlines():
        assert re.fullmatch(r'# (HELP|TYPE) .*|[a-z_]+(\{([a-z]+="[^"]*",?)+\})? (-?[0-9.e+-]+|NaN)', line), line
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            found[name] = float(value)
    return found


# bad replies


def not_finite(message, answer):
    reply = answer()
    fields = safetensors.numpy.load(envelope.enclosed(reply.content))
    reply.content["arrays"] = envelope.enclose(safetensors.numpy.save({**fields, "reply": fields["reply"] * np.nan}))
    return [reply]


def nonsense(message, answer):
    reply = answer()
    reply.content["arrays"] = envelope.enclose(b"nonsense")
    return [reply]


def raised(message, answer):
    return [Message(Error(code=2, reason='it "raised"\nhere'), reply_to=message)]


def lost(message, answer):
    return [Message(Error(code=5, reason="Node Unavailable"), reply_to=message)]


def late(message, answer):
    return []


def of_another_method(message, answer):
    message.content["fedspam"]["schema"] = "0" * 32
    return [answer()]


FAULTS = {
    "rejected": (nonsense, "damaged|safetensors|header"),
    "rejected ": (not_finite, "NaN or infinity"),
    "error": (raised, r'error 2: it "raised"\\nhere'),
    "lost": (lost, "Node Unavailable"),
    "late": (late, "no reply within 0.05 s"),
    "refused": (of_another_method, "of another method, solver or model"),
}


@pytest.mark.parametrize("kind", FAULTS)
@pytest.mark.slow
def test_bad_replies_are_in_the_log_and_in_the_metrics(kind, tmp_path):
    fault, reason = FAULTS[kind]

    def twist(id, message, answer):
        training = message.metadata.message_type == "train.difference"
        return fault(message, answer) if id == BAD and training else [answer()]

    go(twist=twist, timeout=0.05 if kind == "late" else 5.0, folder=tmp_path)
    failures = [failure for line in lines(tmp_path, "exchange") for failure in line["failures"]]
    assert failures
    assert all(BAD not in line["answered"] for line in lines(tmp_path, "exchange") if line["failures"])
    assert {len(line["answered"]) for line in lines(tmp_path, "exchange") if line["exchange"] == "difference"} == {3}
    for failure in failures:
        assert (failure["client"], failure["kind"]) == (BAD, kind.strip())
        assert re.search(reason, failure["reason"])
    found = metrics((tmp_path / events.METRICS_FILE).read_text())
    assert found[f'fedspam_failures_total{{exchange="difference",kind="{kind.strip()}"}}'] == len(failures)
    assert found['fedspam_clients_asked_total{exchange="difference"}'] == 3 * ROUNDS + len(failures)
    assert found['fedspam_clients_accepted_total{exchange="difference"}'] == 3 * ROUNDS


def test_a_client_cannot_write_lines_of_the_log(caplog):
    caplog.set_level(logging.INFO, "flwr")
    forged = "no\n\x1b[1A[ROUND 3/3]\u202e"

    def twist(id, message, answer):
        if id == BAD and message.metadata.message_type == "train.difference":
            return [Message(RecordDict({envelope.HEADER: ConfigRecord({"refused": forged})}), reply_to=message)]
        return [answer()]

    go(twist=twist)
    said = [record.getMessage() for record in caplog.records if f"> client {BAD}" in record.getMessage()]
    assert said
    assert set(said) == {f"\t> client {BAD}: refused: " + r"no\n\x1b[1A[ROUND 3/3]\u202e"}


def changed(change):
    """A reply with other arrays: `change` returns what to replace, or None to leave out."""

    def fault(message, answer):
        reply = answer()
        fields = safetensors.numpy.load(envelope.enclosed(reply.content))
        name = next(name for name in sorted(fields) if name.startswith("reply"))
        fields |= change(name, fields)
        fields = {key: np.asarray(value) for key, value in fields.items() if value is not None}
        reply.content["arrays"] = envelope.enclose(safetensors.numpy.save(fields))
        return [reply]

    return fault


def cut_off(message, answer):
    reply = answer()
    reply.content["arrays"] = envelope.enclose(envelope.enclosed(reply.content)[:-3])
    return [reply]


def headed(**head):
    def fault(message, answer):
        reply = answer()
        for name, value in head.items():
            reply.content["fedspam"][name] = value
        return [reply]

    return fault


def with_two_arrays(message, answer):
    reply = answer()
    reply.content["more"] = envelope.enclose(b"")
    return [reply]


FIFTEEN = [  # one per client: what it does, the kind of the failure, and what the reason says
    (changed(lambda name, fields: {name: fields[name] * np.nan}), "rejected", "NaN or infinity"),
    (changed(lambda name, fields: {name: fields[name] + np.inf}), "rejected", "NaN or infinity"),
    (
        changed(lambda name, fields: {name: np.append(fields[name], fields[name][:1])}),
        "rejected",
        r"arrived as float32\[4\], expected float32\[3\]",
    ),
    (changed(lambda name, fields: {name: fields[name].astype(np.float16)}), "rejected", r"arrived as float16\[3\]"),
    (changed(lambda name, fields: {name: None}), "rejected", "reply"),
    (changed(lambda name, fields: {"extra": np.ones(2)}), "rejected", "extra"),
    (changed(lambda name, fields: {"@round": fields["@round"] + 1}), "rejected", "is of round 2"),
    (changed(lambda name, fields: {"@client": fields["@client"] + 1}), "rejected", "is of client 8"),
    (headed(exchange="prox"), "rejected", "is of exchange 'prox'"),
    (headed(schema="0" * 32), "rejected", "schema '0000"),
    (nonsense, "rejected", "damaged|safetensors|header"),
    (cut_off, "rejected", "damaged|safetensors|bytes"),
    (with_two_arrays, "rejected", "has 2 arrays"),
    (lambda message, answer: [Message(RecordDict(), reply_to=message)], "rejected", "has 0 arrays"),
    (raised, "error", r'error 2: it "raised"\\nhere'),
]


def test_fifteen_bad_replies_are_each_refused_counted_and_explained(tmp_path):
    """Fifteen of sixteen clients reply wrongly, each in its own way: the round is that of the sixteenth alone."""
    count = len(FIFTEEN) + 1
    population, method = quadratics(1, clients=count, dimension=3), fedavg(count, 2, 0.1)
    app = client_app(clients_of(population), method, FIRST)

    def once(fault):
        """Faults in the first round. In the second all reply well, and are accepted again."""

        def twist(id, message, answer):
            if id == count - 1 or message.metadata.message_type != "train.train" or message.metadata.group_id != "1":
                return [answer()]
            return fault(id, message, answer)

        strategy = FedspamStrategy(method, FIRST, seed=7, replies=Replies(quorum=1 / count, retries=0), folder=folder)
        return strategy.start(LoopbackGrid(app, count, twist=twist), to_arrays(FIRST), 2, 0.05).arrays["params"].data

    folder = tmp_path
    bits = once(lambda id, message, answer: FIFTEEN[id][0](message, answer))
    first, second = lines(tmp_path, "exchange")
    failed = {failure["client"]: failure for failure in first["failures"]}
    assert sorted(failed) == list(range(15))
    for id, (_, kind, reason) in enumerate(FIFTEEN):
        assert failed[id]["kind"] == kind
        assert re.search(reason, failed[id]["reason"]), failed[id]
    assert (first["asked"], first["replied"], first["accepted"], first["answered"]) == (16, 15, 1, [15])
    assert (second["accepted"], second["failures"]) == (16, [])
    found = metrics((tmp_path / events.METRICS_FILE).read_text())
    assert found['fedspam_failures_total{exchange="train",kind="rejected"}'] == 14
    assert found['fedspam_failures_total{exchange="train",kind="error"}'] == 1
    assert found['fedspam_clients_replied_total{exchange="train"}'] == 15 + 16  # an error is no reply
    assert found['fedspam_clients_accepted_total{exchange="train"}'] == 1 + 16
    folder = None
    assert bits == once(lambda id, message, answer: [])


def test_a_round_is_one_line_with_its_numbers(tmp_path):
    loss = lambda round, found: MetricRecord({"loss": 1.0 / (1 + round), "worst": float("nan")})
    go(folder=tmp_path, evaluate=loss, fraction_evaluate=0.5)
    _, rows, _ = records.read(tmp_path)
    start, *rounds = lines(tmp_path, "round")
    assert start["round"] == 0
    assert [line["loss"] for line in rounds] == [1 / 2, 1 / 3, 1 / 4]
    for number, line in enumerate(rounds):
        assert line["round"] == number + 1
        for name in ("bytes_down", "bytes_up", "seconds", "difference.asked", "difference.accepted"):
            assert line[name] == rows[name][number]
        assert line["evaluation"]["server"]["worst"] is None
        assert np.isfinite(line["evaluation"]["clients"]["loss"])
        assert line["nodes_connected"] == CLIENTS
    assert lines(tmp_path, "end")[0]["status"]["kind"] == "completed"
    found = metrics((tmp_path / events.METRICS_FILE).read_text())
    assert np.isnan(found['fedspam_evaluation{name="worst",source="server"}'])
    assert found["fedspam_round"] == ROUNDS
    assert found['fedspam_evaluation{name="loss",source="server"}'] == 1 / 4
    assert found['fedspam_bytes_total{direction="up",exchange="prox"}'] > 0


@pytest.mark.parametrize("link", [Path.symlink_to, Path.hardlink_to])
def test_links_in_the_folder_of_a_run_are_not_followed(link, tmp_path):
    treasure, folder = tmp_path / "treasure", tmp_path / "run"
    treasure.write_text("precious")
    folder.mkdir()
    link(folder / events.LOG_FILE, treasure)
    link(folder / f".{events.METRICS_FILE}.partial", treasure)  # this one is removed
    seen = events.RunEvents(folder, "spam_pp", ROUNDS)
    with pytest.raises(records.RecordError, match=r"is a (hard )?link"):
        seen.ended(COMPLETED)
    (folder / events.LOG_FILE).unlink()
    seen.ended(COMPLETED)
    assert (folder / events.METRICS_FILE).is_file()
    assert treasure.read_text() == "precious"


def test_a_pipe_in_place_of_the_log_does_not_block(tmp_path):
    os.mkfifo(tmp_path / events.LOG_FILE)
    with pytest.raises(records.RecordError, match="is not a regular file"):
        events.RunEvents(tmp_path, "spam_pp", ROUNDS).ended(COMPLETED)


def test_void_rounds_are_counted(tmp_path):
    silent = lambda id, message, answer: [] if message.metadata.group_id == "2" else [answer()]
    go(twist=silent, timeout=0.02, replies=Replies(retries=0), folder=tmp_path)
    assert [line["void"] for line in lines(tmp_path, "round")[1:]] == [False, True, False]
    assert [line["enough"] for line in lines(tmp_path, "exchange")] == [True, True, True, False, True, True]
    assert metrics((tmp_path / events.METRICS_FILE).read_text())["fedspam_void_rounds_total"] == 1


def test_no_file_is_written_where_there_is_no_run(tmp_path):
    go(folder=tmp_path, rounds=1)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(records.RecordError, match="already holds a run"):
        go(folder=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


# the endpoint


def test_metrics_are_served_while_the_run_lasts():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen = []

    def look(round, found):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            seen.append(metrics(answer.read().decode()))
        with pytest.raises(urllib.error.HTTPError, match="404") as refused:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/manifest.json", timeout=60)
        refused.value.close()

    go(metrics=port, evaluate=look)
    assert [found["fedspam_round"] for found in seen] == [0, 0, 1, 2]  # measured before the round counts as done
    assert seen[-1]['fedspam_exchanges_total{enough="true",exchange="difference"}'] == ROUNDS
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60)


def test_the_page_of_this_machine_answers_no_other_name_and_few_at_once():
    """A page elsewhere can give its own name the address 127.0.0.1, and read from there in a visitor's browser."""
    port, address = free_port(), "127.0.0.1"
    codes, held = [], list[socket.socket]()
    with events.served(events.RunEvents(None, "fedavg", 1), port):
        for name in (f"{address}:{port}", f"localhost:{port}", "evil.example", f"{address}.evil.example:{port}"):
            connection = http.client.HTTPConnection(address, port, timeout=60)
            connection.request("GET", "/metrics", headers={"Host": name})
            codes.append(connection.getresponse().status)
            connection.close()
        held += [socket.create_connection((address, port), timeout=60) for _ in range(2 * events.CONNECTIONS)]
        assert {one.recv(1) for one in held[events.CONNECTIONS :]} == {b""}  # closed at once; the others ask nothing
        held[0].sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        assert held[0].recv(12) == b"HTTP/1.0 200"
        for one in held:
            one.close()
    assert codes == [200, 200, 403, 403]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_status_page_and_the_metrics_are_there_while_nodes_are_waited_for():
    """From the first question on, when an operator wants to know who is missing and why."""
    port, pages, found = free_port(), [], []

    def get(path):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=300) as answer:
            return answer.read().decode()

    def twist(id, message, answer):
        if message.metadata.message_type != "query.whoami":
            return [answer()]
        pages.append(get(""))
        found.append(metrics(get("metrics")))
        if id == BAD:
            return [Message(Error(code=3, reason="not yet"), reply_to=message)]
        return [answer()]

    go(twist=twist, metrics=port, min_available_nodes=CLIENTS - 1, rounds=1, replies=Replies(quorum=0.5))
    assert "waiting for nodes" in pages[0]
    assert "spam_pp" in pages[0]
    assert found[0]["fedspam_round"] == 0
    with pytest.raises(RuntimeError, match=r"5 of at least 6 nodes can take part after 0.5 s"):
        go(twist=twist, metrics=port, min_available_nodes=CLIENTS, timeout=0.5)


NAMES = ("fedavg", "fedprox", "fedadam", "fedyogi", "page")


@pytest.mark.parametrize("name", NAMES)
def test_a_method_has_its_own_name_everywhere(name, tmp_path, caplog):
    """Several methods are of one class, which is no name for any of them."""
    caplog.set_level(logging.INFO, "flwr")
    method = METHODS[name].build(**METHODS[name].example)
    app = client_app(clients_of(POPULATION), method, FIRST)
    strategy = FedspamStrategy(method, FIRST, folder=tmp_path)
    strategy.start(LoopbackGrid(app, CLIENTS), to_arrays(FIRST), 1, 5.0)
    assert f"Method: {name}\n" in caplog.text
    assert f'method="{name}"' in (tmp_path / events.METRICS_FILE).read_text()
    assert load(tmp_path).facts["method"] == strategy.provenance["method"] == name
    assert events.RunEvents(None, name, 1).facts()["run"]["method"] == name


HOSTILE = "<script>alert('x')</script>"


def test_the_status_page_shows_the_run_and_escapes_what_clients_say():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    seen = []

    def look(round, found):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as answer:
            assert "default-src 'none'" in answer.headers["Content-Security-Policy"]
            seen.append(answer.read().decode())
        return MetricRecord({HOSTILE: 0.25, "loss": 1.5})

    def twist(id, message, answer):
        if id == BAD and message.metadata.message_type == "train.difference":
            return [Message(Error(code=2, reason=HOSTILE), reply_to=message)]
        return [answer()]

    go(metrics=port, evaluate=look, twist=twist)
    last = seen[-1]
    assert "<script" not in last
    assert last.count(html.escape(HOSTILE)) >= 2  # the name of a metric, and the reason of a failure
    assert 'http-equiv="refresh"' in last
    assert not re.search(r"""(src|href)=["'](?!/metrics)""", last)  # no other file
    rows = dict(re.findall(r"<tr><td>([^<]*)</td><td[^>]*>([^<]*)</td></tr>", last))
    assert (rows["method"], rows["round"], rows["rounds"], rows["status"]) == ("spam_pp", "2", str(ROUNDS), "running")
    assert (rows["clients"], rows["nodes connected"]) == (str(CLIENTS), str(CLIENTS))
    assert "<td>server</td><td>loss</td>" in last
    assert re.search(rf"<td>difference</td><td class=\"number\">{BAD}</td><td>error</td>", last)
    assert "None so far." in seen[0]


def test_it_listens_on_the_loopback_interface_unless_told():
    assert events.parsed(9464) == ("127.0.0.1", 9464)
    assert events.parsed("0.0.0.0:9464") == ("0.0.0.0", 9464)
    for wrong in ("9464", "here:there", ":1", 70000, -1, True):
        with pytest.raises(ValueError, match=r"metrics = .* must be a port such as 9464"):
            FedspamStrategy(METHOD, FIRST, metrics=wrong)


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ValueError, match=r"metrics = \d+: cannot listen there"):
            go(metrics=taken.getsockname()[1])


# versions, stages, and who is asked when


def test_a_model_says_which_run_and_round_it_comes_from_and_a_stage_what_came_before(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    go(folder=one)
    facts = load(one).facts
    assert (facts["rounds"], facts["status"]["kind"], facts["method"]) == (ROUNDS, "completed", "spam_pp")
    versions = [line["parameters"] for line in lines(one, "round")]
    assert facts["parameters"] == versions[-1] == parameters_hash(load(one).params)
    assert len(set(versions)) == ROUNDS + 1
    assert lines(one, "round")[0]["run"] == facts["run"][:16]

    other = spam_pp(3, step_size=0.25, fresh_weight=0.3)
    app = client_app(clients_of(POPULATION), other, FIRST)
    start = lambda **options: FedspamStrategy(other, FIRST, seed=7, **options).start(
        LoopbackGrid(app, CLIENTS), to_arrays(FIRST), 2, 5.0
    )
    with pytest.raises(records.RecordError, match=r"step_size"):
        start(folder=one, resume=True)  # a changed method is refused, unless it is a stage of its own
    result = start(folder=two, after=one)
    staged = load(two).facts
    assert [(stage["run"], stage["rounds"]) for stage in staged["stages"]] == [(facts["run"], ROUNDS)]
    assert lines(two, "round")[0]["parameters"] == facts["parameters"]  # it begins where the first stage ended
    assert staged["run"] != facts["run"]
    params = np.asarray(to_params(result.arrays, FIRST))
    again = start(folder=two, after=one, resume=True)
    np.testing.assert_array_equal(params, np.asarray(to_params(again.arrays, FIRST)))
    with pytest.raises(records.RecordError):
        start(folder=two, resume=True)  # without its past it is another run


def test_a_stage_needs_a_model_of_the_same_shape_and_a_folder_of_its_own(tmp_path):
    for options in ({"after": tmp_path}, {"after": tmp_path, "folder": tmp_path}):
        with pytest.raises(ValueError, match="needs another folder to write to"):
            FedspamStrategy(METHOD, FIRST, **options)
    with pytest.raises(records.RecordError, match=r"there is no .*model\.safetensors; let that run end"):
        run.model_of(tmp_path, FIRST)
    models.save(tmp_path, {"w": np.zeros(3)})
    with pytest.raises(ValueError, match=r"holds params as None.*only the method and its settings may change"):
        run.model_of(tmp_path, FIRST)


@pytest.mark.parametrize("examples", [0, -3])
def test_evaluations_without_examples_do_not_end_the_run(tmp_path, examples):
    """A weighted mean would divide by 0, and a negative weight would give a wrong mean."""

    def twist(id, message, answer):
        if message.metadata.message_type != "evaluate":
            return [answer()]
        metrics = MetricRecord({"loss": 1.0, "num-examples": examples})
        return [Message(RecordDict({"metrics": metrics}), reply_to=message)]

    assert go(twist=twist, fraction_evaluate=0.5, folder=tmp_path) == go()
    assert not any(line["evaluation"].get("clients") for line in lines(tmp_path, "round"))


def test_one_client_does_not_decide_an_evaluation_and_shares_are_shown(caplog):
    """1e300 examples would leave the metrics of all others without weight."""
    caplog.set_level(logging.INFO, "flwr")

    def twist(client, message, answer):
        reply = answer()
        if message.metadata.message_type == "evaluate":
            reply.content["metrics"].update({"loss": float(client), "num-examples": 1e300 if client == 0 else client})
        return [reply]

    strategy = FedspamStrategy(METHOD, FIRST, fraction_evaluate=1.0, min_available_nodes=CLIENTS)
    result = strategy.start(LoopbackGrid(APP, CLIENTS, twist=twist), to_arrays(FIRST), 1)
    counts = np.arange(1, CLIENTS)
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(np.average(counts, weights=counts))
    assert "client 0: num-examples = 1e+300 must be a number from 0 to" in caplog.text
    assert f"shares of the examples: client {CLIENTS - 1} {(CLIENTS - 1) / counts.sum():.1%}, " in caplog.text


def test_held_out_clients_never_train_and_always_evaluate(tmp_path):
    grid = LoopbackGrid(APP, CLIENTS)
    asked = {"train": set(), "evaluate": set()}

    def twist(id, message, answer):
        kind = message.metadata.message_type.split(".")[0]
        if kind in asked:
            asked[kind].add(id)
        return [answer()]

    bits = go(twist=twist, held_out=2)
    assert asked["train"] <= set(range(CLIENTS - 2))
    assert asked["evaluate"] == {CLIENTS - 2, CLIENTS - 1}
    fewer = LoopbackGrid(APP, CLIENTS - 2)
    assert bits == go(grid=fewer)  # the same as a federation without them
    with pytest.raises(ValueError, match=f"held_out = {CLIENTS} must be below the number of clients"):
        go(grid=grid, held_out=CLIENTS)


def test_clients_are_asked_in_their_hours_and_given_their_own_time(tmp_path):
    noon = lambda: datetime(2026, 1, 1, 12, 0)
    windows = Windows({0: ("22:00", "06:00"), 1: ("11:00", "13:00")}, clock=noon)

    def silent(id, message, answer):
        return [] if id == BAD and message.metadata.message_type == "train.difference" else [answer()]

    go(twist=silent, folder=tmp_path, replies=Replies(available=windows, deadlines={BAD: 0.05}), timeout=600.0)
    exchanges = lines(tmp_path, "exchange")
    assert all(0 not in line["answered"] for line in exchanges)
    assert any(1 in line["answered"] for line in exchanges)
    reasons = {
        (failure["client"], failure["kind"]): failure["reason"] for line in exchanges for failure in line["failures"]
    }
    assert "not available now" in reasons[0, "absent"]
    assert reasons[BAD, "late"] == "no reply within 0.05 s"
    assert max(line["seconds"] for line in exchanges) < 600  # nobody waits for the deadline of the exchange
    for wrong in (("22", "06:61"), "22:00", ("22:00",)):
        with pytest.raises(ValueError, match=r"hours\[0\] = .* must be two times"):
            Windows({0: wrong})
    with pytest.raises(ValueError, match=r"deadlines\[1\] = 0"):
        Replies(deadlines={1: 0})


# SIGTERM


@pytest.fixture
def received():
    """The signals that reach the handler of whoever runs the strategy."""
    found = []
    former = signal.signal(signal.SIGTERM, lambda number, frame: found.append(number))
    yield found
    signal.signal(signal.SIGTERM, former)


@pytest.mark.parametrize("kind", ["train.starting_gradient", "train.difference", "train.prox", "evaluate"])
def test_sigterm_saves_and_a_resumed_run_ends_with_the_same_bits(kind, tmp_path, received, caplog):
    """It arrives while the server waits for replies, which it does not do until their deadline."""

    def terminated(id, message, answer):
        if message.metadata.message_type == kind and message.metadata.group_id == ("0" if "start" in kind else "2"):
            os.kill(os.getpid(), signal.SIGTERM)
            return []
        return [answer()]

    done = 0 if "start" in kind else 2 if kind == "evaluate" else 1
    go(twist=terminated, folder=tmp_path, timeout=600, fraction_evaluate=0.5)
    assert received == [signal.SIGTERM] * len(received) != []  # passed on once the state is saved
    assert f"Stopped after round {done} of {ROUNDS}: SIGTERM" in caplog.text
    assert records.read(tmp_path)[0]["status"]["reason"].startswith("SIGTERM")
    assert lines(tmp_path, "end")[0]["status"]["reason"].startswith("SIGTERM")
    assert load(tmp_path).facts["rounds"] == done
    assert go(folder=tmp_path, resume=True, fraction_evaluate=0.5) == go()
    assert records.read(tmp_path)[0]["status"]["kind"] == "completed"


def test_sigterm_while_the_server_waits_for_nodes(received):
    def twist(id, message, answer):
        os.kill(os.getpid(), signal.SIGTERM)
        return []

    with pytest.raises(stop.StopRequestedError, match="SIGTERM"):
        go(twist=twist, timeout=60)
    assert received


# a file that stops one run


def test_a_file_in_the_folder_stops_that_run_alone(tmp_path, caplog):
    """Also in a thread that gets no signals. The file may stay: it stops no run that starts later."""
    one, two = tmp_path / "one", tmp_path / "two"

    def stopped(id, message, answer):
        if message.metadata.message_type == "train.difference" and message.metadata.group_id == "2":
            (one / stop.FILE).touch()
            return []
        return [answer()]

    with ThreadPoolExecutor(1) as threads:
        threads.submit(go, twist=stopped, folder=one, timeout=60).result()
    assert f"Stopped after round 1 of {ROUNDS}: the file {one / stop.FILE}" in caplog.text
    assert records.read(one)[0]["status"]["reason"].startswith("the file")
    assert lines(one, "end")[0]["status"]["reason"].startswith("the file")
    assert load(one).facts["rounds"] == 1
    expected = go(folder=two)
    assert go(folder=one, resume=True) == expected
    assert records.read(one)[0]["status"]["kind"] == "completed"


def test_the_log_says_how_to_stop_the_run(tmp_path, caplog):
    caplog.set_level(logging.INFO, "flwr")
    go(folder=tmp_path, rounds=1)
    assert f"To stop this run: kill -TERM {os.getpid()}, or touch {tmp_path / stop.FILE}" in caplog.text
    assert lines(tmp_path, "begin")[0]["process"] == os.getpid()
