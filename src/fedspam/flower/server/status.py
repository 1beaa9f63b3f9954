"""The status page of a run: one HTML page without scripts or other files, which renews itself.

Names of metrics and reasons of failures may come from clients, so all text is escaped.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

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
