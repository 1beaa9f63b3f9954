r"""The tables of a report for a paper: LaTeX in the style of booktabs, with the numbers of the page."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fedspam.app.amounts import SUPERSCRIPT, amount, number
from fedspam.app.report import page
from fedspam.app.report.series import MEASURES, Source

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


def render(sources: Sequence[Source], title: str, targets: Sequence[float] = ()) -> str:
    """Two tables: the numbers at the end, and the costs until the targets of each metric."""
    data = page.content(sources, title, targets)
    metrics = dict.fromkeys(group["metric"] for group in data["targets"])
    costs = (_costs([group for group in data["targets"] if group["metric"] == metric], data) for metric in metrics)
    head = f"% {' '.join(title.split())}\n% needs \\usepackage{{booktabs}}"
    return "\n\n".join([head, _final(data), *costs]) + "\n"


# --- the tables ------------------------------------------------------------------------------------------------------


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
