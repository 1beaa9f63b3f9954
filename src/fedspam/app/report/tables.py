r"""The numbers of a report as tables: tidy, as CSV or Parquet, and LaTeX in the style of booktabs for a paper."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedspam.app.amounts import SUPERSCRIPT, amount, number
from fedspam.app.folders import csv_text
from fedspam.app.report import page
from fedspam.app.report.series import MEASURES, Curve, Series, Source, printable
from fedspam.simulation import records

COLUMNS = ("folder", "series", "kind", "name", "trial", *MEASURES, "value", "low", "high")
COSTS = ("rounds", "bytes", "seconds")  # of the table of final numbers
SPECIAL = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "∞": r"$\infty$",
    "·": r"$\cdot$", "γ": r"$\gamma$", "δ": r"$\delta$", **{letter: f"\\{letter}" for letter in "&%$#_{}"},
}  # fmt: skip
RAISED = re.compile(f"[{''.join(map(chr, SUPERSCRIPT.values()))}]+")
PLAIN = {raised: letter for letter, raised in SUPERSCRIPT.items()}


class Ending(NamedTuple):
    """A number at the end of a run: as text, itself, and whether more is better; None for a cost."""

    text: str
    value: float | None
    rises: bool | None


def latex(sources: Sequence[Source], title: str, targets: Sequence[float] = ()) -> str:
    """Two tables: the numbers at the end, and the costs until the targets of each metric."""
    data = page.content(sources, title, targets)
    metrics = dict.fromkeys(group["metric"] for group in data["targets"])
    costs = (_costs([group for group in data["targets"] if group["metric"] == metric], data) for metric in metrics)
    head = f"% {' '.join(title.split())}\n% needs \\usepackage{{booktabs}}"
    return "\n\n".join([head, _final(data), *costs]) + "\n"


def _final(data: Mapping[str, Any]) -> str:
    """The numbers at the end, of a comparison with the settings for the axis of rounds."""
    chosen: dict[str, Any] = {}
    for series in data["series"]:
        if series["name"] not in chosen or series["only"] is None or "rounds" in series["only"]:
            chosen[series["name"]] = series
    rows = {name: _at_the_end(series, data) for name, series in chosen.items()}
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    # a run that went wrong is not the best, whatever its numbers are
    wrong = {name for name, series in chosen.items() if data["sources"][series["source"]]["look"] == "stopped"}
    fine = [row for name, row in rows.items() if name not in wrong]
    best = {column: _best([row[column] for row in fine if column in row]) for column in columns}
    nothing = Ending("–", None, None)
    lines = []
    for name, row in rows.items():
        ends = {column: row.get(column, nothing) for column in columns}
        cells = (_cell(end.text, bold=name not in wrong and end.value in best[column]) for column, end in ends.items())
        lines.append([_escaped(name), *cells])
    return _tabular("At the end", columns, [lines])


def _best(ends: Sequence[Ending]) -> list[float]:
    """The best value of a column, in a list; none for a cost, and where there is nothing to compare."""
    values = [end.value for end in ends if end.value is not None]
    if len(values) < 2 or ends[0].rises is None:
        return []
    return [max(values) if ends[0].rises else min(values)]


def _at_the_end(series: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Ending]:
    """The numbers of a series by column, accuracies and scores first."""
    known = {each["name"]: each["rises"] for each in data["metrics"] if each["name"] in series["metrics"]}
    shown = [name for name in known if not name.endswith((", mean over clients", ", root mean square"))]
    last = {name: series["metrics"][name]["value"][-1] for name in shown}
    ends = {name: Ending(number(last[name]), last[name], known[name]) for name in shown}
    scores = data["sources"][series["source"]]["tested"]["scores"]
    scored = {name: Ending(number(value), value, name in data["rising"]) for name, value in scores.items()}
    totals = {measure: paid["amount"][-1] for measure, paid in series["paid"].items() if measure in COSTS}
    paid = {MEASURES[measure]: Ending(amount(total, measure), total, None) for measure, total in totals.items()}
    rising = {name: end for name, end in ends.items() if end.rises}
    return rising | scored | {name: end for name, end in ends.items() if not end.rises} | paid


def _costs(groups: Sequence[Mapping[str, Any]], data: Mapping[str, Any]) -> str:
    """What each series paid until the targets of a metric, the least of each target in bold."""
    metric = groups[0]["metric"]
    sign = r"$\geq$" if next(each["rises"] for each in data["metrics"] if each["name"] == metric) else r"$\leq$"
    measures = [m for m in MEASURES if any(m in paid for each in data["targets"] for _, paid in each["rows"])]
    parts = []
    for group in groups:
        band = lambda cost: cost if isinstance(cost, list) else (cost, None, None)  # a run has no low and high
        rows = {name: {m: band(costs[m]) for m in measures if m in costs} for name, costs in group["rows"]}
        medians = {m: [row[m][0] for row in rows.values() if m in row] for m in measures}
        least = {m: sorted(cost for cost in medians[m] if cost is not None)[: len(rows) > 1] for m in measures}
        head = f"until {_escaped(metric)} {sign} {_escaped(number(group['target'], 12))}"
        lines = [[rf"\multicolumn{{{len(measures) + 1}}}{{l}}{{{head}}}"]]
        for name, row in rows.items():
            cells = [_cost(row.get(m), m, least[m]) for m in measures]
            lines.append([_escaped(name), *cells])
        parts.append(lines)
    return _tabular(f"Cost to reach a target: {metric}", [MEASURES[measure] for measure in measures], parts)


def _cost(cost: Sequence[float | None] | None, measure: str, least: Sequence[float]) -> str:
    if cost is None:
        return "--"
    median, low, high = cost
    shown = _cell("not reached" if median is None else amount(median, measure), bold=median in least)
    if low is None or low == high:
        return shown
    end = r"$\infty$" if high is None else _escaped(amount(high, measure))
    return f"{shown} [{_escaped(amount(low, measure))}, {end}]"


def _tabular(title: str, columns: Sequence[str], parts: Sequence[Sequence[Sequence[str]]]) -> str:
    """A tabular with a rule between its parts."""
    head = " & ".join(["", *map(_escaped, columns)])
    body = "\n\\midrule\n".join("\n".join(f"{' & '.join(row)} \\\\" for row in rows) for rows in parts)
    lines = (f"% {' '.join(title.split())}", rf"\begin{{tabular}}{{l{'r' * len(columns)}}}", r"\toprule")
    return "\n".join([*lines, f"{head} \\\\", r"\midrule", body, r"\bottomrule", r"\end{tabular}"])


def _cell(text: str, *, bold: bool) -> str:
    return rf"\textbf{{{_escaped(text)}}}" if bold else _escaped(text)


def _escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    >>> print(_escaped("50 % of f_1 & 2·10⁻³"))
    50 \% of f\_1 \& 2$\cdot$10$^{-3}$
    """
    plain = "".join(SPECIAL.get(letter, letter) for letter in " ".join(text.split()))
    return RAISED.sub(lambda power: f"$^{{{power[0].translate(PLAIN)}}}$", plain)


# --- one row per point of each curve ---


def rows(sources: Sequence[Source]) -> Iterable[list[Any]]:
    """Folder, series, kind and name of the curve, setting, costs so far, value and band; None where unknown."""
    for source in sources:
        for series in source.series:
            for kind, name, curve in _curves(series):
                paid = [series.paid[key].after(curve.at) if key in series.paid else None for key in MEASURES]
                band = [curve.value, curve.low, curve.high]
                for i in range(len(curve.at)):
                    numbers = (None if part is None else float(part[i]) for part in (*paid, *band))
                    yield [*map(printable, (source.folder.name, series.name, kind, name)), series.trial, *numbers]


def _curves(series: Series) -> Iterable[tuple[str, str, Curve]]:
    for kind, curves in (("metric", series.metrics), ("bound", series.bounds), ("detail", series.details)):
        for name, curve in curves.items():
            yield kind, name, curve
    for name, levels in series.clients.items():
        for percent, curve in levels.items():
            yield "clients", f"{name}.q{percent:02d}", curve
    for part, name in (("along", "share"), ("relative", "relative")):
        if series.certificates and part in series.certificates:
            yield "certificate", name, series.certificates[part]


def write_csv(sources: Sequence[Source], path: Path) -> None:
    text = lambda value: "" if value is None else f"{value:.10g}"
    found = ([*row[:4], *map(text, row[4:])] for row in rows(sources))  # the trial, a whole number, as well
    records.write(path, csv_text(COLUMNS, found).encode())


def write_parquet(sources: Sequence[Source], path: Path) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise RuntimeError("Parquet needs pyarrow: pip install pyarrow, or write CSV instead") from None
    columns = list(zip(*rows(sources), strict=True)) or [()] * len(COLUMNS)
    kinds = [pa.string()] * 4 + [pa.int64()] + [pa.float64()] * (len(COLUMNS) - 5)
    arrays = [pa.array(column, kind, from_pandas=False) for column, kind in zip(columns, kinds, strict=True)]
    out = pa.BufferOutputStream()
    pq.write_table(pa.table(dict(zip(COLUMNS, arrays, strict=True))), out, compression="zstd")
    records.write(path, out.getvalue().to_pybytes())
