"""The status page of a run: one HTML page without scripts or other files, which renews itself.

Names of metrics and reasons of failures may come from clients, so all text is escaped. The page also shows the other
runs of the server: those whose folders lie beside that of this run, as their logs tell.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from fedspam._internal import strict

LOG_FILE = "events.jsonl"
MOST = 50  # runs, those with the latest news first
TAIL = 2**16  # bytes at the end of a log that are read; a line with the rounds of a large cohort is shorter
GONE = "its process is gone; resume it"
SECONDS = 5  # after which a browser asks again
HEADERS = {
    "Content-Type": "text/html; charset=utf-8",
    # nothing is loaded and nothing runs, whatever a name may hold
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
table { border-collapse: collapse; margin: 0.5rem 0 1.5rem; } td, th { padding: 0.2rem 0.8rem; text-align: left; }
td.number { text-align: right; font-variant-numeric: tabular-nums; } tr + tr { border-top: 1px solid #8884; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } }
"""


def page(facts: Mapping[str, Any]) -> str:
    """The page of the facts that `RunEvents.facts` gives.

    >>> facts = {"run": {"method": "<b>"}, "exchanges": {}, "evaluation": {}, "failures": [], "refused": {}}
    >>> "&lt;b&gt;" in page(facts), "<b>" in page(facts)
    (True, False)
    """
    exchanges, evaluation, failures = facts["exchanges"], facts["evaluation"], facts["failures"]
    columns = sorted({name for row in exchanges.values() for name in row})
    sites, beside = facts.get("sites", ()), facts.get("beside", ())
    parts = [
        _table((), facts["run"].items()),
        "<h2>Exchanges, since the server started</h2>",
        _table(
            ("exchange", *columns), ((name, *(row.get(each, 0) for each in columns)) for name, row in exchanges.items())
        ),
        "<h2>Last evaluation</h2>",
        _table(("where", "metric", "value"), ((*place, value) for place, value in evaluation.items())),
        "<h2>Last failures</h2>",
        _table(("time", "round", "exchange", "client", "kind", "reason"), failures),
        "<h2>Nodes that may not take part</h2>",
        _table(("node", "reason"), facts["refused"].items()),
        "<h2>Sites, by the names in Flower's registry</h2>",
        _table(("client", "site", "key", "accepted", "failed"), sites),
        "<h2>Runs of this server, whose folders lie beside each other</h2>",
        _table(("run", "method", "status", "round", "loss", "last news"), beside),
    ]
    title = f"fedspam: {facts['run'].get('method', '')}, round {facts['run'].get('round', 0)}"
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="refresh" content="{SECONDS}"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1>{''.join(parts)}<p>{escape(now)}, renewed every {SECONDS} s. "
        'The same numbers for machines: <a href="/metrics">/metrics</a></p></body></html>'
    )


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not body:
        return "<p>None so far.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f'<td class="number">{f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"}</td>'
    return f"<td>{escape(str(value))}</td>"


class RunBeside(NamedTuple):
    """A run as the status page of another one shows it."""

    run: str  # the name of its folder
    method: str
    status: str
    round: Any
    loss: Any
    news: str  # the time of its last line


def runs_beside(folder: Path) -> list[RunBeside]:
    """The runs whose folders have the same parent, this one among them, if there is more than this one."""
    logs = [path for path in folder.resolve().parent.glob(f"*/{LOG_FILE}") if path.is_file()]
    newest = sorted(logs, key=lambda path: -path.stat().st_mtime)[:MOST]
    found = [run for path in newest if (run := _run(path)) is not None]
    return sorted(found) if len(found) > 1 else []


def _run(path: Path) -> RunBeside | None:
    """What the first and the last lines of a log say; None if they are not those of a run."""
    try:
        lines = list(_lines(path))
    except OSError:
        return None  # it is being removed
    begin = next((line for line in reversed(lines) if line.get("event") == "begin"), {})
    last = lines[-1] if lines else {}
    if not last:
        return None
    rounds = [line for line in lines if line.get("event") == "round"]
    ended = last.get("status") if last.get("event") == "end" else None
    status = ended.get("kind") if isinstance(ended, dict) else "running" if _lives(begin.get("process")) else GONE
    method = begin.get("method", last.get("method", ""))
    done = rounds[-1] if rounds else {}
    round, loss, news = done.get("round", ""), done.get("loss") or "", str(last.get("time", ""))
    return RunBeside(path.parent.name, str(method), str(status), round, loss, news)


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    """The JSON objects among the first and the last lines of a log."""
    with strict.open_regular(path) as file:
        data = file.read(TAIL)
        size = os.fstat(file.fileno()).st_size
        if size > 2 * TAIL:
            file.seek(size - TAIL)
            data += b"\n"
        data += file.read(TAIL)
    for text in data.splitlines():
        try:
            line = json.loads(text)
        except ValueError:
            continue  # a line that was cut, or is being written
        if isinstance(line, dict):
            yield line


def _lives(process: Any) -> bool:
    """Whether a process of this machine is there."""
    if not isinstance(process, int) or isinstance(process, bool) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True  # of another user
    return True
