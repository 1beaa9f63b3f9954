"""Sites by the names and keys of Flower's registry: in logs, metrics, the page and model files; one key, one site."""

import json
import logging
import re
import urllib.request

import jax.numpy as jnp
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install '.[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from fedspam import fedavg
from fedspam._internal.files import RecordError
from fedspam.app.report import provenance
from fedspam.flower import FedspamStrategy, LoopbackGrid, Replies, client_app, clients_of, own_training, to_arrays
from fedspam.flower.server import events, introductions, sites
from fedspam.problems import quadratics
from processes import free_port
from quickstarts import numpy_app

CLIENTS, ROUNDS = 4, 3
NAMES = ["Lyon", "Köln", "Gent", "Łódź <b>"]
POPULATION, FIRST = quadratics(0, clients=CLIENTS, dimension=3), jnp.ones(3)
METHOD = fedavg(CLIENTS, 2, 0.1)
APP = client_app(clients_of(POPULATION), METHOD, FIRST)


@pytest.fixture(autouse=True)
def at_once(caplog, monkeypatch):
    caplog.set_level(logging.INFO, "flwr")
    monkeypatch.setattr(introductions, "REST", 0.0)
    monkeypatch.setattr(introductions, "LONGEST", 0.0)


def go(tmp_path, names=NAMES, *, app=APP, rounds=ROUNDS, twist=None, first=1000, method=METHOD, grid=None, **options):
    grid = LoopbackGrid(app, CLIENTS, twist=twist, first=first, sites=names) if grid is None else grid
    settings = {"replies": Replies(quorum=0.5, retries=0), "min_available_nodes": 3, "folder": tmp_path}
    strategy = FedspamStrategy(method, FIRST, **settings | options)
    strategy.start(grid, to_arrays(FIRST), rounds, 5.0)
    return strategy, grid


def lines(folder, event):
    found = [json.loads(line) for line in (folder / events.LOG_FILE).read_text().splitlines()]
    return [line for line in found if line["event"] == event]


@pytest.mark.parametrize("number", [CLIENTS, 0], ids=["asked", "not asked"])
def test_names_and_keys_stand_in_logs_metrics_page_and_model(number, tmp_path, caplog):
    port, pages = free_port(), []

    def looking(client, message, answer):
        if message.metadata.group_id == str(ROUNDS):
            pages.append(urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=300).read().decode())
        return [answer()]

    strategy, _ = go(tmp_path, twist=looking, introductions=number, metrics=port)
    keys = {name: sites.fingerprint(f"key of {name}".encode()) for name in NAMES}
    known = json.loads((tmp_path / sites.FILE).read_text())
    assert sorted(name for name, _ in known.values()) == sorted(NAMES)
    assert all(keys[name] == key for name, key in known.values())
    assert strategy.provenance["sites"] == {client: name for client, (name, _) in known.items()}
    text = (tmp_path / "metrics.prom").read_text()
    for name in NAMES:
        assert f'site="{name}"' in text
    assert "Łódź &lt;b&gt;" in pages[-1]
    reported = provenance.sites(tmp_path)["sites"].split(", ")
    assert reported == [f"{client} {name}" for client, (name, _) in known.items()]
    assert keys["Lyon"] in pages[-1]
    assert "<b>" not in pages[-1]


def test_failures_are_those_of_a_named_site(tmp_path, caplog):
    def twist(client, message, answer):
        from flwr.app import Error, Message

        if client == 1 and message.metadata.group_id == "2":
            return [Message(Error(code=2, reason="its disk is full"), reply_to=message)]
        return [answer()]

    go(tmp_path, twist=twist)
    assert "client 1 (Köln): error 2: its disk is full" in caplog.text
    text = (tmp_path / "metrics.prom").read_text()
    assert re.search(r'fedspam_site_replies_total\{outcome="error",site="Köln"\} 1.0', text)
    assert re.search(rf'fedspam_site_replies_total\{{outcome="accepted",site="Lyon"\}} {ROUNDS}.0', text)


def test_a_site_keeps_its_place_when_it_comes_back_under_another_node_id(tmp_path):
    go(tmp_path, rounds=1)
    before = json.loads((tmp_path / sites.FILE).read_text())
    go(tmp_path, first=5000, resume=True)
    assert json.loads((tmp_path / sites.FILE).read_text()) == before
    assert all(sorted(line["answered"]) == [0, 1, 2, 3] for line in lines(tmp_path, "exchange"))


def test_another_key_cannot_take_the_place_of_a_site(tmp_path, caplog):
    """Somebody with the partition id of Köln, and with another registered key or none."""
    go(tmp_path, rounds=1)
    for other in ("Ulm", None):
        caplog.clear()
        names = ["Lyon", other, "Gent", "Łódź <b>"]
        done = len(lines(tmp_path, "round"))
        go(tmp_path, names, first=7000, resume=True, rounds=done + 1)
        whose = "the site 'Ulm'" if other else "a node without a registered name"
        reason = rf"client 1 is the site 'Köln' with the key SHA256:\S+; {whose} cannot take its place"
        assert re.search(reason, caplog.text)
        assert 1 not in lines(tmp_path, "exchange")[-1]["answered"]


def test_one_key_is_one_client(tmp_path, caplog):
    """The copy of a key in a second SuperNode, which reports another partition id."""
    go(tmp_path, ["Lyon", "Lyon", "Gent", "Ulm"])
    assert "the site 'Lyon' is client" in caplog.text
    assert "give every site a key of its own" in caplog.text
    assert all(len(line["answered"]) == 3 for line in lines(tmp_path, "exchange"))


def test_apps_as_they_are_keep_their_places_too(tmp_path):
    """They cannot say who they are: the registry can."""
    method = own_training(fedavg, 4)
    grid = LoopbackGrid(numpy_app.app, CLIENTS, sites=NAMES)
    settings = {"min_available_nodes": CLIENTS, "folder": tmp_path}
    FedspamStrategy(method, **settings).start(grid, numpy_app.first(), 1)
    before = json.loads((tmp_path / sites.FILE).read_text())
    assert [name for name, _ in before.values()] == [NAMES[place] for place in _in_order(grid)]
    again = LoopbackGrid(numpy_app.app, CLIENTS, sites=NAMES[::-1], first=9000)
    strategy = FedspamStrategy(method, **settings, resume=True)
    strategy.start(again, numpy_app.first(), 2)
    assert json.loads((tmp_path / sites.FILE).read_text()) == before


def _in_order(grid):
    return [number for _, number in sorted((node, number) for node, number in grid._clients.items())]


def test_nodes_without_a_name_are_nobody(tmp_path, caplog):
    go(tmp_path, None)
    assert not (tmp_path / sites.FILE).exists()
    assert "site=" not in (tmp_path / "metrics.prom").read_text()


def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path):
    key = ec.generate_private_key(ec.SECP384R1()).public_key()
    (tmp_path / "key.pub").write_bytes(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH))
    found = sites.fingerprint(key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    import shutil
    import subprocess

    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    said = subprocess.run(["ssh-keygen", "-lf", str(tmp_path / "key.pub")], capture_output=True, text=True, check=True)
    assert said.stdout.split()[1] == found


@pytest.mark.parametrize("text", ["", "[]", '{"a": ["x", "y"]}', '{"0": ["x"]}', '{"0": 1}', "\x00"])
def test_a_damaged_list_of_sites_is_refused_by_name(text, tmp_path):
    (tmp_path / sites.FILE).write_text(text)
    with pytest.raises(RecordError, match="does not hold the sites of clients"):
        sites.Sites(tmp_path)
