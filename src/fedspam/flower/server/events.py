"""What an operator sees of a run: one JSON line per exchange and per round, and metrics for Prometheus.

Text that comes from clients, such as the reason of a refusal, stands in the log alone. The labels of metrics are the
names of exchanges and of kinds of failures, and those that the operator gave to sites, so that no client can add a time
series.
"""

import collections
import json
import math
import os
import re
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jax
import numpy as np
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from fedspam import __version__
from fedspam._internal import files
from fedspam.flower.server import status
from fedspam.flower.server.exchange import Failure
from fedspam.flower.server.journal import Tally
from fedspam.flower.server.sites import Sites
from fedspam.flower.server.status import LOG_FILE as LOG_FILE
from fedspam.simulation.status import Status

METRICS_FILE = "metrics.prom"
CONNECTIONS = 16  # to the status page at the same time; others are closed
RECENT = 20  # failures on the status page
WAITING = 1000  # lines of the log that may wait for the first exchange; with more, the oldest are dropped
# the metrics that the status page shows of the run
SHOWN = ("round", "rounds", "resumed_after_round", "clients", "nodes_connected", "nodes_refused", "nodes_late_total",
         "void_rounds_total")  # fmt: skip
PLAIN = {"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
HELP = {
    "run_info": ("gauge", "The run: its hash, the method, and the version of fedspam."),
    "clients": ("gauge", "Clients in the federation, connected or not."),
    "nodes_connected": ("gauge", "Nodes that can take part, as far as the server knows."),
    "nodes_refused": ("gauge", "Nodes that cannot take part so far; the log says why."),
    "nodes_late_total": ("counter", "Nodes that take part after the start, or after an introduction that failed."),
    "introductions_total": ("counter", "Answers of nodes that were asked who they are, by outcome."),
    "round": ("gauge", "Rounds done."),
    "rounds": ("gauge", "Rounds that were asked for."),
    "resumed_after_round": ("gauge", "The round after which this server has resumed the run; none if it began it."),
    "void_rounds_total": ("counter", "Rounds without effect, because too few replies were accepted."),
    "exchanges_total": ("counter", "Exchanges, by whether they had enough accepted replies."),
    "clients_asked_total": ("counter", "Messages to clients."),
    "clients_replied_total": ("counter", "Replies, accepted or not."),
    "clients_accepted_total": ("counter", "Accepted replies."),
    "failures_total": ("counter", "Messages without an accepted reply, by kind."),
    "site_info": ("gauge", "Sites that Flower's registry has under a name, and which client each is."),
    "site_replies_total": ("counter", "Messages to these sites, by outcome: accepted, or a kind of failure."),
    "bytes_total": ("counter", "Bytes of all records of Flower, by direction."),
    "exchange_seconds_total": ("counter", "Seconds spent in exchanges."),
    "evaluation": ("gauge", "Metrics of the last evaluation, by where they were measured."),
}


class RunEvents(Collector):
    """The log and the metrics of one run, since this process began.

    Arguments:
        folder: where the log and the metrics are written; None writes nothing.
        method: its name.
        rounds: how many are asked for.
    """

    def __init__(self, folder: Path | None, method: str, rounds: int) -> None:
        self._folder, self._run, self.sites = folder, "", Sites(folder)
        self._lock = threading.Lock()  # the endpoint reads in another thread
        self._values: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._began, self._status = datetime.now(UTC), "waiting for nodes"
        self._failures: deque[tuple[Any, ...]] = deque(maxlen=RECENT)
        self._refused: dict[str, str] = {}
        self._lines: deque[dict[str, Any]] = deque(maxlen=WAITING)  # of the log, that are not written yet
        self._is_open = False  # whether lines are written
        place = "none" if folder is None else folder
        self._about = {"method": method, "version": __version__, "process": os.getpid(), "folder": place}
        self._set("round", 0)
        self._set("rounds", rounds)

    def begin(self, run: str, clients: int) -> None:
        """The nodes have gathered: the hash of the run, and how many clients there are."""
        with self._lock:
            self._run, self._status = run, "running"
            self._about = {"method": self._about["method"], "run": run, **self._about}
            self._set("run_info", 1, run=run, method=str(self._about["method"]), version=__version__)
            self._set("clients", clients)
        about = {name: self._about[name] for name in ("method", "process", "version")}
        self._log("begin", {**about, "clients": clients})

    def resumed(self, done: int) -> None:
        """The run goes on after this round."""
        with self._lock:
            self._set("resumed_after_round", done)
            self._set("round", done)

    def nodes(self, connected: int, clients: int, refused: Mapping[int, str]) -> None:
        """How many nodes are connected, out of how many clients, and why others cannot take part so far."""
        with self._lock:
            self._set("clients", clients)
            self._set("nodes_connected", connected)
            self._set("nodes_refused", len(refused))
            self._refused = {self._named(node): reason for node, reason in refused.items()}
            for client, site in self.sites.clients.items():
                self._set("site_info", 1, client=str(client), site=site.name, key=site.key)

    def introduction(
        self, node: int, client: int | None, outcome: str, reason: str, tries: int, late: bool = False
    ) -> None:
        """A node has said who it is, or has not: then why."""
        with self._lock:
            self._add("introductions_total", 1, outcome=outcome)
            self._add("nodes_late_total", late)
        site = self.sites.at(node)
        facts = {"node": str(node), "client": client, "outcome": outcome, "reason": reason, "tries": tries}
        facts |= {} if site is None else site._asdict()
        self._log("node", {**facts, "late": late, "round": int(self._values["round", ()])})

    def exchange(
        self, round: int, label: str, tally: Tally, failures: Sequence[tuple[int, Failure]], answered: Sequence[int],
        enough: bool,
    ) -> None:  # fmt: skip
        """An exchange has ended, with its retries: the failures of all attempts, and the clients that count."""
        counts, known = tally._asdict(), self.sites.clients
        with self._lock:
            self._add("exchanges_total", 1, exchange=label, enough=str(enough).lower())
            for name in ("asked", "replied", "accepted"):
                self._add(f"clients_{name}_total", counts[name], exchange=label)
            for _, failure in failures:
                self._add("failures_total", 1, exchange=label, kind=failure.kind)
            self._add("bytes_total", tally.flower_down, exchange=label, direction="down")
            self._add("bytes_total", tally.flower_up, exchange=label, direction="up")
            self._add("exchange_seconds_total", tally.seconds, exchange=label)
            for id, outcome in (*((id, "accepted") for id in answered), *((id, each.kind) for id, each in failures)):
                if id in known:
                    self._add("site_replies_total", 1, site=known[id].name, outcome=outcome)
            now = datetime.now(UTC).isoformat(timespec="seconds")
            self._failures.extend(
                (now, round, label, f"{id} ({known[id].name})" if id in known else id, each.kind, each.reason)
                for id, each in failures
            )
        refused = [{"client": id, "kind": failure.kind, "reason": failure.reason} for id, failure in failures]
        facts = {"round": round, "exchange": label, "enough": enough, **counts}
        self._log("exchange", {**facts, "answered": list(answered), "failures": refused})

    def round(
        self, done: int, row: Mapping[str, Any], evaluation: Mapping[str, Mapping[str, Any]], version: str
    ) -> None:
        """A round is done, or the start if 0: its row, what was measured on the server and on the clients, and the
        hash of the parameters."""
        with self._lock:
            self._set("round", done)
            self._about["parameters"] = version
            self._add("void_rounds_total", float(row.get("void", 0)))
            if any(evaluation.values()):  # names may come from clients: those of earlier rounds are not kept
                self._values = {place: value for place, value in self._values.items() if place[0] != "evaluation"}
            for source, metrics in evaluation.items():
                for name, value in metrics.items():
                    if isinstance(value, list):  # such as one number per class; it is in the log alone
                        continue
                    self._set("evaluation", float(value), source=source, name=name)
            nodes = {"nodes_connected": self._values.get(("nodes_connected", ())), "nodes_refused": self._refused}
        losses = (metrics.get("loss") for metrics in evaluation.values())
        loss = next((value for value in losses if value is not None), row.get("loss"))
        self._log(
            "round", {**row, "round": done, "loss": loss, "evaluation": evaluation, **nodes, "parameters": version}
        )
        self._write()

    def ended(self, status: Status) -> None:
        """The run has ended: how."""
        self._status = str(status)
        self._log("end", {"status": status.as_json()})
        self._write()

    def collect(self) -> Iterator[Metric]:
        """The metrics, as Prometheus collects them."""
        with self._lock:
            values = sorted(self._values.items())
        for name, (kind, text) in HELP.items():
            metric = Metric(f"fedspam_{name}".removesuffix("_total"), text, kind)
            for (own, labels), value in values:
                if own == name:
                    metric.add_sample(f"fedspam_{name}", dict(labels), value)
            yield metric

    def facts(self) -> dict[str, Any]:
        """What the status page shows."""
        with self._lock:
            values, failures, refused = dict(self._values), list(self._failures), dict(self._refused)
        exchanges: dict[str, dict[str, float]] = {}
        for (name, labels), value in sorted(values.items()):
            found = dict(labels)
            if "exchange" in found:  # without `fedspam_` and `_total`, and with the kind of a failure or the direction
                more = [found[label] for label in ("kind", "direction") if label in found]
                column = " ".join([name.removesuffix("_total").removeprefix("clients_"), *more]).replace("_", " ")
                row = exchanges.setdefault(found["exchange"], {})
                row[column] = row.get(column, 0) + (value if "seconds" in name else int(value))
        replies = collections.Counter[tuple[str, bool]]()
        for (name, labels), value in values.items():
            if name == "site_replies_total":
                replies[dict(labels)["site"], dict(labels)["outcome"] == "accepted"] += int(value)
        sites = [
            (client, site.name, site.key, replies[site.name, True], replies[site.name, False])
            for client, site in sorted(self.sites.clients.items())
        ]
        evaluation = {
            (dict(labels)["source"], dict(labels)["name"]): value
            for (name, labels), value in sorted(values.items())
            if name == "evaluation"
        }
        plain = {name: int(value) for (name, labels), value in values.items() if not labels}
        run = {**self._about, "status": self._status, "began": self._began.isoformat(timespec="seconds")}
        run |= {name.removesuffix("_total").replace("_", " "): plain[name] for name in SHOWN if name in plain}
        beside = [] if self._folder is None else status.runs_beside(self._folder)
        return {
            "run": run, "exchanges": exchanges, "evaluation": evaluation, "failures": failures[::-1],
            "refused": refused, "sites": sites, "beside": beside,
        }  # fmt: skip

    def _named(self, node: int) -> str:
        site = self.sites.at(node)
        return str(node) if site is None else f"{node} ({site.name})"

    def _add(self, metric: str, value: float, **labels: str) -> None:
        place = metric, tuple(sorted(labels.items()))
        self._values[place] = self._values.get(place, 0) + value

    def _set(self, metric: str, value: float, **labels: str) -> None:
        self._values[metric, tuple(sorted(labels.items()))] = value

    def _log(self, event: str, facts: Mapping[str, Any]) -> None:
        """A line of the log. Lines before the first exchange wait, because the folder may turn out to hold a run."""
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._lines.append({"time": when, "event": event, **facts})
        self._is_open = self._is_open or event not in ("begin", "node")
        while self._lines and self._is_open and self._folder is not None:
            line = json.dumps(_plain({"run": self._run, **self._lines.popleft()}), allow_nan=False)
            files.append_line(self._folder / LOG_FILE, line)

    def _write(self) -> None:
        if self._folder is not None:
            files.write(self._folder / METRICS_FILE, generate_latest(self))


@contextmanager
def served(events: RunEvents, address: int | str | None) -> Iterator[str | None]:
    """Serve the status page and the metrics over HTTP at this port of 127.0.0.1, or at this ``host:port``; yields
    the URL of the metrics."""
    if address is None:
        yield None
        return
    host, port = parsed(address)
    free = threading.BoundedSemaphore(CONNECTIONS)

    class _Server(ThreadingHTTPServer):
        daemon_threads = True

        def process_request(self, request: Any, client_address: Any) -> None:
            if free.acquire(blocking=False):
                super().process_request(request, client_address)
            else:
                self.shutdown_request(request)

        def process_request_thread(self, request: Any, client_address: Any) -> None:
            try:
                super().process_request_thread(request, client_address)
            finally:
                free.release()

    class Page(BaseHTTPRequestHandler):
        timeout = 10  # seconds for a request, so that an idle connection does not hold a thread

        def do_GET(self) -> None:
            path, code, headers = self.path.partition("?")[0], 200, PLAIN
            asked = self.headers.get("Host", host).rpartition(":")[0] or self.headers.get("Host", host)
            if _is_local(host) and not _is_local(asked):  # a page elsewhere whose name leads a browser to this machine
                body, code = b"this page is for this machine alone; ask 127.0.0.1\n", 403
            elif path == "/":
                body, headers = status.page(events.facts()).encode(errors="replace"), status.HEADERS
            elif path == "/metrics":
                body = generate_latest(events)
            else:
                body, code = b"the status page is at /, the metrics are at /metrics\n", 404
            self.send_response(code)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Requests are not logged."""

    try:
        server = _Server((host, port), Page)
    except OSError as error:
        raise ValueError(
            f"metrics = {address!r}: cannot listen there ({error.strerror}); choose another port"
        ) from None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _is_local(host: str) -> bool:
    """Whether a host is this machine, as only programs on it reach it."""
    return host in ("localhost", "::1", "[::1]") or re.fullmatch(r"127(\.\d+){3}", host) is not None


def parsed(address: int | str) -> tuple[str, int]:
    """Host and port of an address; a port alone is one of 127.0.0.1."""
    host, _, port = f"127.0.0.1:{address}".rpartition(":") if isinstance(address, int) else address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port) < 2**16) or isinstance(address, bool):
        raise ValueError(f"metrics = {address!r} must be a port such as 9464, or 'host:port'")
    return host, int(port)


def _plain(value: Any) -> Any:
    """The value as JSON has it; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
