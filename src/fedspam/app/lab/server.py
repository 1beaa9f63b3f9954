"""The HTTP server of the lab, on this machine alone.

It stores nothing and holds no secrets, so there is no login. It refuses what other web pages could send through the
browser: another Host (DNS rebinding), another Origin, and anything but JSON, which a foreign page cannot send without
permission. The size of requests, the number of connections and their duration are limited. The server ends by itself
after a time without requests.
"""

import json
import math
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import numpy as np

from fedspam._internal import strict
from fedspam._internal.strict import KIB
from fedspam.app.arrival import MEASURES
from fedspam.app.config.parse import fill
from fedspam.app.lab import runs
from fedspam.app.lab.runs import LabSetting
from fedspam.app.report.page import asset, build
from fedspam.app.report.series import finite
from fedspam.methods import METHODS
from fedspam.theory import premises
from fedspam.theory.constants import Constants

ADDRESS = "127.0.0.1"
REQUEST = 4 * KIB  # the largest request that is read
CONNECTIONS = 16  # at a time
LONGEST_WAIT = 10  # seconds that a connection may wait for its visitor, in all
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",  # the page holds the rest of the policy
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def page() -> str:
    """The page with its first setting."""
    data = {
        "setting": msgspec.structs.asdict(LabSetting()),
        "methods": [
            {"key": key, "name": METHODS[key].name, "kind": kind, "fresh_weight": key not in runs.WITHOUT_FRESH_WEIGHT}
            for key, kind in runs.RACERS.items()
        ],
        "cohorts": runs.COHORTS,
        "solvers": list(runs.SOLVERS),
        "measures": {name: MEASURES[name] for name in ("rounds", "bytes_up", "bytes")},
        "rounds": runs.ROUNDS,
        "seeds": runs.SEEDS,
        "ratios": finite(runs.RATIOS),
        "fresh_weights": finite(runs.FRESH_WEIGHTS),
    }
    own = lambda name: asset(name, "fedspam.app.lab")
    styles = [asset("page.css"), own("lab.css")]
    scripts = [asset("parts.js"), asset("chart.js"), own("plane.js"), own("lab.js")]
    return build(own("lab.html"), "lab", styles, scripts, data, connect="'self'")


def answer_race(setting: LabSetting) -> dict[str, Any]:
    """The curve of a method, the premises of the theorems that it breaks, and the texts to copy."""
    found = runs.race(setting)
    problem, given = found.problem, runs.numbers(setting, found.problem)
    broken = None
    if runs.RACERS[setting.method] == runs.PROX and "fresh_weight" in given:
        constants = Constants(problem.delta, smoothness=problem.smoothness)
        cohort, averaged = runs.region(setting, problem).cohort, setting.method == "spam_ppa"
        broken = premises(constants, given["step_size"], setting.fresh_weight, cohort=cohort, averaged=averaged)
    return {
        "method": setting.method,
        **{name: finite(getattr(found, name)) for name in ("median", "low", "high")},
        "prices": found.prices,
        "delta": problem.delta,
        "smoothness": problem.smoothness,
        "step_size": given.get("step_size", given.get("local_rate")),
        "broken": broken,
        "seconds": {"compile": round(found.compile_seconds, 3), "run": round(found.run_seconds, 3)},
        "python": runs.as_python(setting, problem),
        "toml": runs.as_toml(setting, problem),
    }


def answer_plane(setting: LabSetting) -> dict[str, Any]:
    """The gradient norm at the end over step size and fresh weight, and where the theorems hold."""
    found = runs.plane(setting)
    region = runs.region(setting, runs.problem_of(setting.scale, setting.seed))
    with np.errstate(divide="ignore", invalid="ignore"):
        exponents = np.log10(found)
    return {
        "exponents": [finite(row) for row in exponents],
        "region": {
            **{name: finite(getattr(region, name)) for name in ("ratios", "least", "repaired")},
            "limit": region.limit,
            "reach": region.reach,
            "cohort": region.cohort if math.isfinite(region.cohort) else None,
        },
    }


ANSWERS: Mapping[str, Callable[[LabSetting], dict[str, Any]]] = {"/race": answer_race, "/plane": answer_plane}


class BadRequestError(Exception):
    """A request that is refused, and why."""

    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


class Server(ThreadingHTTPServer):
    """The server of the lab; it ends after `idle` seconds without a request.

    A connection that waits for its visitor, who sends or reads slowly, ends after `LONGEST_WAIT` seconds, however many
    bytes came meanwhile. If all connections are taken, the oldest that waits makes room for a new one.
    """

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = CONNECTIONS

    def __init__(self, port: int, idle: float) -> None:
        self._slots = threading.BoundedSemaphore(CONNECTIONS)
        self._idle = idle
        self._last_request = time.monotonic()
        self._busy = 0
        self._waiting: dict[Any, float] = {}  # the connections that wait for their visitors, and since when
        try:
            super().__init__((ADDRESS, port), Handler)
        except OSError as error:
            raise RuntimeError(
                f"cannot listen on port {port} of {ADDRESS}: {error.strerror}; choose another with --port, or --port 0"
            ) from error
        self.page = page().encode()

    @property
    def url(self) -> str:
        return f"http://{ADDRESS}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        self._last_request = time.monotonic()
        if not self._slots.acquire(blocking=False):
            oldest = next(iter(list(self._waiting)), None)
            if oldest is not None:
                _hang_up(oldest)
            if oldest is None or not self._slots.acquire(timeout=1):
                self.shutdown_request(request)  # all compute
                return
        self._waiting[request] = time.monotonic()
        super().process_request(request, client_address)

    @contextmanager
    def computing(self, request: Any) -> Iterator[None]:
        """While an answer is computed, the connection does not wait for its visitor."""
        self._waiting.pop(request, None)
        try:
            yield
        finally:
            self._waiting[request] = time.monotonic()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._busy += 1
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._waiting.pop(request, None)
            self._busy -= 1
            self._last_request = time.monotonic()
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients may hang up early

    def service_actions(self) -> None:
        for request, began in list(self._waiting.items()):
            if time.monotonic() - began > LONGEST_WAIT:
                _hang_up(request)
        if not self._busy and time.monotonic() - self._last_request > self._idle:
            threading.Thread(target=self.shutdown, daemon=True).start()


def _hang_up(request: Any) -> None:
    """End a connection; its thread then ends by itself."""
    with suppress(OSError):
        request.shutdown(socket.SHUT_RDWR)


class Handler(BaseHTTPRequestHandler):
    """One request."""

    timeout = LONGEST_WAIT

    @property
    def _lab(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_GET(self) -> None:
        try:
            self._check_sender()
            if self.command == "POST":
                self._post()
            elif self.path.split("?")[0] == "/":
                self._respond(HTTPStatus.OK, "text/html; charset=utf-8", self._lab.page)
            else:
                raise BadRequestError(HTTPStatus.NOT_FOUND, "there is nothing here; the lab is at /")
        except BadRequestError as refusal:
            self._send(refusal.status, {"error": str(refusal)})
        except (ValueError, RuntimeError) as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": " ".join(str(error).split())[:500]})

    def do_POST(self) -> None:
        self.do_GET()

    def _check_sender(self) -> None:
        """Refuse requests that another page or name may have caused."""
        hosts = {f"{name}:{self._lab.server_port}" for name in (ADDRESS, "localhost")}
        if self.headers.get_all("Host", []) not in [[host] for host in hosts]:
            raise BadRequestError(
                HTTPStatus.MISDIRECTED_REQUEST, f"the Host of the request must be that of {self._lab.url}"
            )
        foreign = self.headers.get("Origin") not in (None, *(f"http://{host}" for host in hosts))
        if foreign or (self.command == "POST" and self.headers.get("Sec-Fetch-Site") not in (None, "same-origin")):
            raise BadRequestError(HTTPStatus.FORBIDDEN, "requests from other pages are refused")

    def _post(self) -> None:
        answer = ANSWERS.get(self.path)
        if answer is None:
            raise BadRequestError(HTTPStatus.NOT_FOUND, f"send requests to one of {', '.join(ANSWERS)}")
        if self.headers.get_content_type() != "application/json":
            raise BadRequestError(
                HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the request must be JSON, with Content-Type: application/json"
            )
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise BadRequestError(HTTPStatus.LENGTH_REQUIRED, "the request needs the header Content-Length")
        if len(length) > 9 or int(length) > REQUEST:
            raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request may have at most {REQUEST} bytes")
        request = strict.json_object(self.rfile.read(int(length)), size=REQUEST, depth=1)
        setting = fill("lab", request, LabSetting, {})
        with self._lab.computing(self.connection):
            found = answer(setting)
        self._send(HTTPStatus.OK, found)

    def _send(self, status: HTTPStatus, answer: Any) -> None:
        self._respond(status, "application/json", json.dumps(answer, allow_nan=False).encode())

    def _respond(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **HEADERS}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        return "fedspam"

    def log_message(self, format: str, *args: Any) -> None:
        pass
