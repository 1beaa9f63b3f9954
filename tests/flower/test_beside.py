"""Several runs of a server on one status page: running, ended, stopped, and one whose process was killed."""

import json
import logging
import os
import subprocess
import sys
import urllib.request

import jax.numpy as jnp
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from fedspam import fedavg
from fedspam.flower import FedspamStrategy, LoopbackGrid, client_app, clients_of, to_arrays
from fedspam.flower.server.status import GONE, TAIL, runs_beside
from fedspam.problems import quadratics
from processes import free_port

FIRST, POPULATION = jnp.ones(3), quadratics(0, clients=3, dimension=3)
METHOD = fedavg(3, 2, 0.1)
APP = client_app(clients_of(POPULATION), METHOD, FIRST)


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.WARNING, "flwr")


def go(folder, rounds=2, twist=None, **options):
    strategy = FedspamStrategy(METHOD, FIRST, folder=folder, **options)
    return strategy.start(LoopbackGrid(APP, 3, twist=twist), to_arrays(FIRST), rounds, 5.0)


def test_the_page_of_a_run_shows_the_other_runs_of_its_server(tmp_path):
    go(tmp_path / "first", 3)
    asked = [sys.executable, "-c", "import os; print(os.getpid())"]
    done = subprocess.run(asked, capture_output=True, text=True, check=True)
    killed = tmp_path / "killed <b>"
    killed.mkdir()
    lines = [
        {"time": "t0", "event": "begin", "method": "scaffold", "process": int(done.stdout)},
        {"time": "t1", "event": "round", "round": 5, "loss": 0.25},
    ]
    (killed / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"cut')
    port, pages = free_port(), []

    def looking(client, message, answer):
        if message.metadata.group_id == "2":
            pages.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=300).read().decode())
        return [answer()]

    go(tmp_path / "second", 2, looking, metrics=port)
    cells = pages[-1].partition("Runs of this server")[2]
    assert '<td>first</td><td>fedavg</td><td>completed</td><td class="number">3</td>' in cells
    assert '<td>second</td><td>fedavg</td><td>running</td><td class="number">1</td>' in cells
    row = f'<td>killed &lt;b&gt;</td><td>scaffold</td><td>{GONE}</td><td class="number">5</td>'
    assert row + '<td class="number">0.25</td><td>t1</td>' in cells


def test_a_run_alone_needs_no_list(tmp_path):
    go(tmp_path / "alone", 1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "events.jsonl").write_text("nonsense\n[1]\n")
    assert runs_beside(tmp_path / "alone") == []


def test_of_a_long_log_only_the_ends_are_read(tmp_path):
    for name in ("long", "short"):
        (tmp_path / name).mkdir()
        begin = {"time": "t0", "event": "begin", "method": name, "process": os.getpid()}
        more = [{"time": str(k), "event": "round", "round": k} for k in range(3 * TAIL // 50 if name == "long" else 2)]
        text = "".join(json.dumps(line) + "\n" for line in [begin, *more])
        (tmp_path / name / "events.jsonl").write_text(text)
    long, short = runs_beside(tmp_path / "short")
    assert (tmp_path / "long" / "events.jsonl").stat().st_size > 2 * TAIL
    assert (long.method, long.status, long.round) == ("long", "running", 3 * TAIL // 50 - 1)
    assert (short.method, short.round) == ("short", 1)
