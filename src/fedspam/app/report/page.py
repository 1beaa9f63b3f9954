"""The HTML file: it holds its own style, script and data, and the data cannot break out of its element."""

import base64
import hashlib
import html
import json
import math
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from fedspam.app import appearance
from fedspam.app.report import provenance, targets
from fedspam.app.report.bounds_overlay import ROOT
from fedspam.app.report.series import (
    MEASURES,
    MOST,
    Curve,
    Series,
    Source,
    TargetCell,
    finite,
    printable,
    rises,
    straightened,
    thin,
)
from fedspam.simulation.status import COMPLETED

# characters that could end the element of the data, or that scripts read as ends of lines
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
POINTS, FEWEST = 200_000, 40  # points of all curves on a page, and the fewest of a curve


def asset(name: str, package: str = "fedspam.app.report") -> str:
    """The text of a file of the package."""
    return (files(package) / name).read_text(encoding="utf-8")


def build(
    template: str, title: str, styles: Sequence[str], scripts: Sequence[str], data: Any, connect: str = "'none'"
) -> str:
    """A template filled with style, script and data, and with a policy that allows no other script.

    Arguments:
        connect: where the script may send requests.
    """
    style, script = "\n".join([appearance.style_sheet(), *styles]), "\n".join(scripts)
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:; "
        f"connect-src {connect}; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "style": style,
        "script": script,
        "data": embedded(data),
    }
    # split first, since the parts themselves may contain placeholders
    pieces = template.split("{{")
    whole = pieces[0] + "".join(parts[name] + rest for name, rest in (piece.split("}}", 1) for piece in pieces[1:]))
    return printable(whole)


def embedded(data: Any) -> str:
    r"""JSON for the inside of a script element.

    >>> embedded({"name": "</script><b>"})
    '{"name":"\\u003c/script\\u003e\\u003cb\\u003e"}'
    """
    text = json.dumps(_plain(data), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate({ord(character): safe for character, safe in UNSAFE.items()})


def _plain(data: Any) -> Any:
    """The same data with None for numbers that are not finite, which JSON does not have."""
    if isinstance(data, Mapping):
        return {name: _plain(part) for name, part in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(part) for part in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def render(sources: Sequence[Source], title: str, given_targets: Sequence[float] = ()) -> str:
    """The report of some folders."""
    scripts = [asset(name) for name in ("parts.js", "chart.js", "tables.js", "page.js")]
    return build(asset("page.html"), title, [asset("page.css")], scripts, content(sources, title, given_targets))


def content(sources: Sequence[Source], title: str, given_targets: Sequence[float] = ()) -> dict[str, Any]:
    """Everything that the page shows, as plain JSON."""
    series = [(i, one) for i, source in enumerate(sources) for one in source.series]
    shown, others = (max(FEWEST, min(MOST, POINTS // max(1, count))) for count in _curves([one for _, one in series]))
    metrics = dict.fromkeys(name for _, one in series for name in one.metrics)
    return {
        "title": title,
        "opening": _opening(series),
        "measures": MEASURES,
        "metrics": [{"name": name, "rises": rises(name)} for name in metrics],
        "rising": [name for name in dict.fromkeys(n for s in sources for n in s.tested.scores) if rises(name)],
        "series": [_series(one, i, shown, others) for i, one in series],
        "targets": _targets(targets.cells(sources, given_targets)),
        "sources": [
            {
                "folder": source.folder.name,
                "kind": source.kind,
                "status": str(source.status),
                "completed": source.status == COMPLETED,
                "look": "reached" if source.status.kind == "reached" else "" if source.status.ok else "stopped",
                "notes": list(source.notes),
                "again": provenance.again(source),
                "tested": source.tested._asdict(),
            }
            for source in sources
        ],
        "configuration": provenance.table([source.configuration for source in sources]),
        "manifest": provenance.table([source.facts for source in sources]),
    }


def _opening(series: Sequence[tuple[int, Series]]) -> str | None:
    """The metric that is shown first: one with a bound that was asked for, an accuracy, else one with a bound."""
    names = dict.fromkeys(name for _, one in series for name in one.metrics)
    bounded = {name for _, one in series for name in one.bounds}
    found = [[name for name in names if name in bounded and name.endswith(ROOT)], filter(rises, names), bounded]
    return next((name for wanted in found for name in wanted), None)


def _targets(cells: Sequence[TargetCell]) -> list[dict[str, Any]]:
    """For each target, by series and measure, the cost, or the cost with its band."""
    groups: dict[tuple[str, float], dict[str, dict[str, Any]]] = {}
    for cell in cells:
        costs = groups.setdefault((cell.metric, cell.target), {}).setdefault(cell.series, {})
        costs[cell.measure] = cell.paid if cell.low is None else [cell.paid, cell.low, cell.high]
    return [
        {"metric": metric, "target": target, "rows": [[name, costs] for name, costs in rows.items()]}
        for (metric, target), rows in groups.items()
    ]


def _curves(series: Sequence[Series]) -> tuple[int, int]:
    """How many curves there are, of metrics and of the rest."""
    metrics = sum(len(one.metrics) + len(one.bounds) for one in series)
    return metrics, sum(len(one.details) + sum(map(len, one.clients.values())) + 2 for one in series)


def _series(series: Series, source: int, most: int = MOST, others: int = MOST) -> dict[str, Any]:
    """One series, its metrics with at most so many points, and its other curves."""
    parts = {"metrics": most, "bounds": most, "details": others, "clients": others, "certificates": others}
    return {
        "name": series.name,
        "source": source,
        "only": None if series.only is None else list(series.only),
        "paid": {
            name: {"at": line.at.tolist(), "amount": [float(f"{value:.12g}") for value in line.amount]}
            for name, line in ((name, straightened(paid, most)) for name, paid in series.paid.items())
        },
        **{name: _shown(getattr(series, name), points) for name, points in parts.items()},
    }


def _shown(part: Any, most: int) -> Any:
    """Curves as lists of numbers, at any depth; arrays are not shown."""
    if isinstance(part, Mapping):
        return {str(name): _shown(inner, most) for name, inner in part.items() if not isinstance(inner, np.ndarray)}
    if isinstance(part, Curve):
        curve = thin(part, most)
        values = {name: finite(values) for name, values in curve._asdict().items() if values is not None}
        return values | {"at": _even(curve.at) or values["at"]}
    return part


def _even(at: np.ndarray) -> dict[str, float] | None:
    """Rounds at equal distances by their first and their distance; None for others."""
    steps = np.diff(at)
    return {"from": float(at[0]), "step": float(steps[0])} if len(steps) and (steps == steps[0]).all() else None
