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

from fedspam.app.report import provenance, targets
from fedspam.app.report.series import MEASURES, Curve, Series, Source, rises, straightened, thin
from fedspam.app.report.tables import finite, printable

# characters that could end the element of the data, or that scripts read as ends of lines
UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


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
    style, script = "\n".join(styles), "\n".join(scripts)
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
    scripts = [asset("chart.js"), asset("page.js")]
    return build(asset("page.html"), title, [asset("page.css")], scripts, content(sources, title, given_targets))


def content(sources: Sequence[Source], title: str, given_targets: Sequence[float] = ()) -> dict[str, Any]:
    """Everything that the page shows, as plain JSON."""
    series = [(i, one) for i, source in enumerate(sources) for one in source.series]
    metrics = dict.fromkeys(name for _, one in series for name in one.metrics)
    return {
        "title": title,
        "measures": MEASURES,
        "metrics": [{"name": name, "rises": rises(name)} for name in metrics],
        "series": [_series(one, i) for i, one in series],
        "targets": [cell._asdict() for cell in targets.cells(sources, given_targets)],
        "sources": [
            {
                "folder": source.folder.name,
                "kind": source.kind,
                "status": source.status,
                "notes": list(source.notes),
                "again": provenance.again(source),
            }
            for source in sources
        ],
        "configuration": provenance.table([source.configuration for source in sources]),
        "manifest": provenance.table([source.facts for source in sources]),
    }


def _series(series: Series, source: int) -> dict[str, Any]:
    shown = ("metrics", "bounds", "details", "clients", "certificates")
    return {
        "name": series.name,
        "source": source,
        "only": None if series.only is None else list(series.only),
        "paid": {name: _paid(straightened(paid)) for name, paid in series.paid.items()},
        **{name: _shown(getattr(series, name)) for name in shown},
    }


def _shown(part: Any) -> Any:
    """Curves as lists of numbers, at any depth; arrays are not shown."""
    if isinstance(part, Mapping):
        return {str(name): _shown(inner) for name, inner in part.items() if not isinstance(inner, np.ndarray)}
    if isinstance(part, Curve):
        return {name: finite(values) for name, values in thin(part)._asdict().items() if values is not None}
    return part


def _paid(paid: Any) -> dict[str, Any]:
    return {"at": paid.at.tolist(), "amount": [float(f"{value:.12g}") for value in paid.amount]}
