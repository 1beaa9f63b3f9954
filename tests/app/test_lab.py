"""The playground: its curves are those of the plain methods, its server lets nobody else in, its page follows."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import browser as pages
from fedspam.app.cli import main
from fedspam.app.config import read
from fedspam.app.config.parse import fill
from fedspam.app.lab import LabSetting, Server, race, runs, serve, server
from fedspam.app.lab.runs import as_python, as_toml
from fedspam.clients import draw
from fedspam.simulation import lanes, simulate
from loading import load

browser = pages.browser


# --- the race --------------------------------------------------------------------------------------------------------


def test_its_problem_is_in_float64_whoever_asks_first() -> None:
    """A single one in float32 would stay, and be run in float64 with numbers of another type."""
    assert runs.problem_of(0.037, 1).population.hessians.dtype == jnp.float64


@pytest.mark.slow
def test_a_repeated_cohort_has_the_clients_of_the_small_one() -> None:
    keys = jax.vmap(jax.random.key)(jnp.arange(50))
    clients = runs.problem_of(0.03, 0).population
    wide = jax.jit(jax.vmap(lambda clients, key: clients.sample(key, runs.WIDE), (None, 0)))
    for cohort in runs.COHORTS:
        ids = wide(runs.Repeated(clients, jnp.uint32(cohort)), keys)
        small = jax.jit(jax.vmap(lambda key: draw(key, cohort, runs.CLIENTS, replace=False)))(keys)
        assert np.array_equal(ids, np.tile(small, runs.WIDE // cohort))


@pytest.mark.slow
@pytest.mark.x64  # as the lab itself
@pytest.mark.parametrize(
    "setting",
    [
        LabSetting("fedavg", cohort=2, steps=3, seed=2),
        LabSetting("ce_lsgd", cohort=8, steps=2, seed=2),
    ],
    ids=lambda setting: setting.method,
)
def test_curves_are_those_of_the_plain_method(setting: LabSetting) -> None:
    """Cohort and local steps as arguments of compiled code change nothing but the rounding."""
    found = race(setting)
    problem = found.problem
    run = simulate(
        runs.plain(setting, problem), problem.population, problem.start,
        rounds=40, key=setting.seed, probe=problem.probe, record=(),
    )  # fmt: skip
    assert found.every[0, :41] == pytest.approx(run.probes["gradient"], rel=1e-9)
    start, each = found.prices["bytes_up"]
    assert each == run.rows["bytes_up"][0]
    assert start == sum(exchange.cohort * exchange.bytes_up for exchange in run.plan.start)


@pytest.mark.slow
def test_sliders_do_not_compile_anew() -> None:
    race(LabSetting())
    before = lanes.many._cache_size()
    for change in (
        {"scale": 0.1}, {"ratio": 2.0}, {"fresh_weight": 0.9}, {"cohort": 32}, {"steps": 20}, {"seed": 7},
        {"cohort": 1},
    ):  # fmt: skip
        race(LabSetting(**change))
    assert lanes.many._cache_size() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "spma_pp"}, "did you mean 'spam_pp'"),
        ({"method": 3}, "method = 3 must be 'ce_lsgd'"),
        ({"solver": "newton"}, "must be 'exact', 'gradient' or 'lbfgs'"),
        ({"scale": 0}, "scale = 0 must be a number of at least 0.0001 and of at most 3"),
        ({"ratio": "1"}, "must be a number"),
        ({"ratio": 1e9}, "of at most 100"),
        ({"fresh_weight": float("nan")}, "must be a number"),
        ({"fresh_weight": True}, "must be a number"),
        ({"cohort": 3}, "must be 1, 2, 4"),
        ({"cohort": 64}, "must be 1, 2, 4"),
        ({"steps": 10**9}, "of at most 100"),
        ({"steps": 1.5}, "whole number"),
        ({"seed": -1}, "at least 0"),
        ({"sede": 1}, "lab.sede = 1 is not a setting of lab, .*; did you mean 'seed'?"),
    ],
)
def test_sliders_have_ends(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fill("lab", change, LabSetting, {})


def test_the_region_is_that_of_the_theorems() -> None:
    """SPAM with one client: fresh weight 6/7 at step size 1/(4 delta) is the corner of the proved region."""
    setting = LabSetting("spam")
    region = runs.region(setting, runs.problem_of(setting.scale, 0))
    assert (region.limit, region.cohort) == (0.25, 1.0)
    assert np.interp(0.25, region.ratios, region.least) == pytest.approx(6 / 7, rel=1e-3)
    assert region.reach == 0.9
    assert (region.repaired < region.least)[region.ratios <= 0.25].all()
    assert np.interp(0.25, region.ratios, region.repaired) == pytest.approx(0.2767, abs=1e-3)


# --- what can be copied ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", runs.RACERS)
@pytest.mark.parametrize("solver", runs.SOLVERS)
def test_the_toml_is_a_configuration(method: str, solver: str, tmp_path: Path) -> None:
    setting = LabSetting(method, solver=solver, cohort=4, steps=7, seed=3)
    problem = runs.problem_of(setting.scale, setting.seed)
    path = tmp_path / "experiment.toml"
    path.write_text(as_toml(setting, problem))
    config = read(path)
    assert (config.data.scale, config.data.seed, config.run.rounds) == (setting.scale, 3, runs.ROUNDS)
    numbers = runs.numbers(setting, problem)
    name = "local_rate" if "local_rate" in numbers else "step_size"
    assert getattr(config.method, name) == numbers[name]
    assert getattr(config.method, "cohort_size", 4) == 4
    assert (config.prox is None) == (runs.RACERS[method] != runs.PROX)


@pytest.mark.slow
def test_what_is_copied_gives_the_curve_that_is_shown(tmp_path: Path, capsys: Any) -> None:
    """The program prints, and the configuration runs to, the last point of the first seed."""
    setting = LabSetting("spam_pp", cohort=2, steps=4, seed=5)
    found = race(setting)
    path = tmp_path / "copied.py"
    path.write_text(as_python(setting, found.problem))
    load(path)
    assert float(capsys.readouterr().out) == pytest.approx(found.every[0, -1], rel=1e-9)

    path = tmp_path / "experiment.toml"
    path.write_text(as_toml(setting, found.problem))
    assert main(["run", str(path), "--out", str(tmp_path / "run"), "--quiet"]) == 0
    facts = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert facts["gradient"] == pytest.approx(found.every[0, -1], rel=1e-9)


# --- the server ------------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server whose answers cost nothing."""
    monkeypatch.setattr(server, "ANSWERS", {"/race": lambda setting: {"method": setting.method}})
    with Server(0, idle=60) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield made
        made.shutdown()
        thread.join(300)
        assert not thread.is_alive()


def asked(lab: Server, method: str, path: str, body: bytes | None = None, **headers: str | None) -> tuple[int, bytes]:
    """Status and body of a request; a header that is None is left out."""
    given: dict[str, str | None] = {"Host": f"127.0.0.1:{lab.server_port}"}
    if body is not None:
        given |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    given |= {name.replace("_", "-"): value for name, value in headers.items()}
    connection = http.client.HTTPConnection("127.0.0.1", lab.server_port, timeout=300)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in given.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def test_it_listens_on_this_machine_alone(lab: Server) -> None:
    assert lab.server_address[0] == "127.0.0.1"
    status, body = asked(lab, "GET", "/")
    assert status == 200
    assert b"Move a slider" in body
    assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
    assert asked(lab, "GET", "/", Host=f"localhost:{lab.server_port}")[0] == 200
    assert asked(lab, "POST", "/race", b'{"method": "spam"}') == (200, b'{"method": "spam"}')


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("GET", "/", None, {"Host": "evil.example"}, 421),  # a name that was made to point here
        ("GET", "/", None, {"Host": "127.0.0.1"}, 421),
        ("GET", "/", None, {"Host": None}, 421),
        ("GET", "/", None, {"Origin": "http://evil.example"}, 403),
        ("GET", "/../../etc/passwd", None, {}, 404),
        ("GET", "/race", None, {}, 404),
        ("POST", "/", b"{}", {}, 404),
        ("POST", "/race", b"{}", {"Host": "evil.example"}, 421),
        ("POST", "/race", b"{}", {"Origin": "http://evil.example"}, 403),
        ("POST", "/race", b"{}", {"Origin": "null"}, 403),
        ("POST", "/race", b"{}", {"Sec_Fetch_Site": "cross-site"}, 403),
        ("POST", "/race", b"{}", {"Sec_Fetch_Site": "same-site"}, 403),
        ("POST", "/race", b"{}", {"Content_Type": "text/plain"}, 415),  # what a form can send
        ("POST", "/race", b"{}", {"Content_Type": None}, 415),
        ("POST", "/race", b"{}", {"Content_Length": None}, 411),
        ("POST", "/race", b"{}", {"Content_Length": "-1"}, 411),
        ("POST", "/race", b"{}", {"Content_Length": "9" * 30}, 413),
        ("POST", "/race", b" " * 5000, {}, 413),
        ("POST", "/race", b"not json", {}, 400),
        ("POST", "/race", b"[]", {}, 400),
        ("POST", "/race", b'{"cohort": [1]}', {}, 400),
        ("POST", "/race", b'{"cohort": 1e999}', {}, 400),
        ("POST", "/race", b'{"rounds": 1}', {}, 400),
        ("POST", "/race", b'{"steps": 100000}', {}, 400),
        ("PUT", "/race", b"{}", {}, 501),
        ("OPTIONS", "/race", None, {"Origin": "http://evil.example"}, 501),  # no page is ever allowed to ask
    ],
)
def test_what_is_refused(lab: Server, method: str, path: str, body: Any, headers: Any, status: int) -> None:
    found, text = asked(lab, method, path, body, **headers)
    assert found == status
    assert b"method" not in text or status != 200


def test_answers_may_be_used_by_its_own_page_alone(lab: Server) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", lab.server_port, timeout=300)
    connection.request("GET", "/")
    answer = connection.getresponse()
    answer.read()
    connection.close()
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert answer.headers["Server"] == "fedspam"


def test_a_hundred_slow_visitors_keep_nobody_out(lab: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sends its request byte by byte, without ever ending it. Others are answered, and the slow are sent away."""
    monkeypatch.setattr(server, "LONGEST_WAIT", 300.0)  # the oldest make room for the others
    slow = []
    try:
        for number in range(100):
            slow.append(socket.create_connection(("127.0.0.1", lab.server_port), timeout=300))
            slow[-1].sendall(b"GET / HTTP/1.1\r\nX: ")
            if number % 10 == 9:
                for connection in slow:
                    with contextlib.suppress(OSError):  # it was sent away
                        connection.sendall(b"x")
                assert asked(lab, "GET", "/")[0] == 200
                assert lab._busy <= server.CONNECTIONS
        monkeypatch.setattr(server, "LONGEST_WAIT", 1.0)
        deadline = time.monotonic() + 300
        while lab._busy and time.monotonic() < deadline:
            for connection in slow:  # a byte now and then does not help them
                with contextlib.suppress(OSError):
                    connection.sendall(b"x")
            time.sleep(0.05)
        assert lab._busy == 0
    finally:
        for connection in slow:
            connection.close()


def test_answers_that_are_computed_are_not_cut_off(lab: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """All connections compute longer than visitors may take: one more is refused, and theirs arrive."""
    go = threading.Event()
    monkeypatch.setattr(server, "ANSWERS", {"/race": lambda setting: {"went": go.wait(300)}})
    answers: list[int] = []
    ask = lambda: answers.append(asked(lab, "POST", "/race", b"{}")[0])
    threads = [threading.Thread(target=ask, daemon=True) for _ in range(server.CONNECTIONS)]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + 300
    while (lab._busy < server.CONNECTIONS or lab._waiting) and time.monotonic() < deadline:
        time.sleep(0.01)
    with monkeypatch.context() as patience:
        patience.setattr(server, "LONGEST_WAIT", -1.0)  # whoever waits has waited for too long
        lab.service_actions()
    with pytest.raises((http.client.HTTPException, OSError)):
        asked(lab, "GET", "/")
    go.set()
    for thread in threads:
        thread.join(300)
    assert answers == [200] * server.CONNECTIONS


def test_it_ends_by_itself() -> None:
    addresses: list[str] = []
    thread = threading.Thread(target=serve, args=(0,), kwargs={"idle": 0.3, "ready": addresses.append}, daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert addresses[0].startswith("http://127.0.0.1:")


def test_a_port_that_is_taken_is_named(lab: Server, capsys: Any) -> None:
    assert main(["lab", "--port", str(lab.server_port)]) == 1
    assert f"cannot listen on port {lab.server_port}" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["lab", "--port", "70000"])


# --- in a browser ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The lab as it is."""
    with Server(0, idle=600) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        yield made.url
        made.shutdown()
        thread.join(300)


def shapes(found: Any) -> dict[str, str]:
    """The path of every curve, by the name of its method."""
    return found.evaluate(
        "Object.fromEntries([...document.querySelectorAll('#chart .curve')]"
        ".map((curve) => [curve.dataset.name, curve.getAttribute('d')]))"
    )


def ready(found: Any, curves: int = 3) -> None:
    """All curves are drawn, and all questions answered."""
    pages.eventually(found, f"document.querySelectorAll('#chart .curve').length === {curves}")
    pages.eventually(found, "/^(ready|answered)/.test(document.querySelector('#status').textContent)")


@pytest.mark.slow
def test_a_slider_moves_a_curve(address: str, browser: Any) -> None:
    with pages.opened(browser, address) as found:
        ready(found)
        drawn = shapes(found)
        assert drawn.keys() == {"SPAM-PP", "MVR", "FedAvg"}
        assert all(shape.count("L") == runs.ROUNDS for shape in drawn.values())

        def moved(key: str, *names: str) -> dict[str, str]:
            """Press the arrow key on a slider; the named curves must change."""
            before = shapes(found)
            found.locator(f"#slider-{key}").press("ArrowRight")
            for name in names:
                pages.eventually(
                    found,
                    f"document.querySelector('#chart .curve[data-name=\"{name}\"]').getAttribute('d')"
                    f" !== {json.dumps(before[name])}",
                )
            ready(found)
            return shapes(found)

        moved("cohort", "SPAM-PP", "MVR", "FedAvg")
        moved("steps", "SPAM-PP", "FedAvg")
        moved("scale", "SPAM-PP", "MVR", "FedAvg")
        assert found.locator("#slider-cohort").evaluate("(input) => input.labels[0].innerText").endswith("16")
        text = found.locator("#text").inner_text()
        assert "spam_pp(cohort_size=16" in text
        found.get_by_role("button", name="TOML").click()
        assert "cohort_size = 16" in found.locator("#text").inner_text()

        pages.eventually(found, "document.querySelectorAll('#map .region').length === 2")
        cells = len(runs.RATIOS) * len(runs.FRESH_WEIGHTS)
        assert found.evaluate("document.querySelectorAll('#map .cell').length") == cells
        before = shapes(found)["SPAM-PP"]
        box = found.locator("#map svg").bounding_box()
        found.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 0.2 * box["height"])
        found.mouse.down()
        found.mouse.move(box["x"] + 0.2 * box["width"], box["y"] + 0.05 * box["height"])
        found.mouse.up()
        pages.eventually(
            found,
            "document.querySelector('#chart .curve[data-name=\"SPAM-PP\"]').getAttribute('d')"
            f" !== {json.dumps(before)}",
        )
        ready(found)
        assert found.locator("#verdict").inner_text() == "inside the theorems"
        assert 'name = "spam_pp"' in found.locator("#text").inner_text()

        found.get_by_role("button", name="FedAvg").click()
        pages.eventually(found, "document.querySelectorAll('#chart .curve').length === 2")
        assert shapes(found).keys() == {"SPAM-PP", "MVR"}


@pytest.mark.slow
@pytest.mark.parametrize("size", [pages.LAPTOP, pages.PHONE], ids=["laptop", "phone"])
def test_text_is_readable(address: str, browser: Any, size: tuple[int, int]) -> None:
    with pages.opened(browser, address, size) as found:
        ready(found)
        pages.eventually(found, "document.querySelectorAll('#map .region').length === 2")
        assert pages.unreadable(found) == []


@pytest.mark.slow
def test_it_starts_inside_the_theorems_and_obeys_keys(address: str, browser: Any) -> None:
    """Arrow keys move the dot, a pressed button keeps the focus, and a chart without methods says what to do."""
    with pages.opened(browser, address, dark=True) as found:
        ready(found)
        assert found.locator("#verdict").inner_text() == "inside the theorems"
        pages.eventually(found, "document.querySelectorAll('#map .region').length === 2")
        assert found.locator("#scale .steps i").count() == 9
        assert found.locator("#scale").inner_text().split("\n")[-1] == "diverges"

        text = found.locator("#slider-ratio").evaluate("(input) => input.labels[0].innerText")
        found.locator("#map svg").focus()
        found.keyboard.press("ArrowRight")
        found.keyboard.press("ArrowRight")
        moved = found.locator("#slider-ratio").evaluate("(input) => input.labels[0].innerText")
        assert (text.split()[-1], moved.split()[-1]) == ("0.2/δ", "0.242/δ")
        found.keyboard.press("ArrowDown")
        ready(found)
        pages.eventually(found, "document.querySelector('#verdict').textContent.startsWith('outside the theorems')")

        for name in ("FedAvg", "MVR", "SPAM-PP"):
            found.get_by_role("button", name=name, exact=False).first.focus()
            found.keyboard.press("Enter")
            assert found.evaluate("document.activeElement.textContent").startswith(name)
        pages.eventually(found, "document.querySelector('#status').textContent === 'no method is chosen'")
        assert found.locator("#chart .empty").text_content() == "Press a name below to choose a method."
        assert shapes(found) == {}
        found.keyboard.press("Enter")
        ready(found, 1)
        assert shapes(found).keys() == {"SPAM-PP"}
