r"""The sweep over :math:`\delta/L`: where SPAM-PP needs fewer rounds or bytes than other methods, and where more."""

import csv
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from fedspam._internal import describe
from fedspam.app.compare import check_methods, facts, number, run_comparison, tuning_header, waves
from fedspam.app.compare.measures import MethodResult
from fedspam.app.compare.parts import ComparisonPart, Results, SavedPart, plan_of, problems_of, results_of, write_part
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.folders import csv_text, make_folder, write_manifest
from fedspam.app.named_problems import Problem, of_quadratics, similar_quadratics
from fedspam.methods import METHODS
from fedspam.problems import ridge
from fedspam.simulation import records

HERO = "spam_pp"
RIVALS = (
    "spam_ppa", "mvr", "mime_mvr", "ce_lsgd", "saber", "rg_saga", "page", "scaffold", "fedavg", "fedprox",
)  # fmt: skip
RATIOS = (0.01, 0.03, 0.1, 0.3, 1.0)
SCALES = (0.003, 0.01, 0.03, 0.1, 0.3)  # of the ridge: delta/L from 0.005 to 0.5
SMALL, LARGE = 0.01, 0.3  # the spread of the clients' gradients at the minimizer, relative to the gradient at the start
CLIENTS, DIMENSION, MANY = 200, 20, 2000
PLAN = ComparisonPlan(rounds=600, cohort=10, targets=(0.01, 0.002), seeds=10, budget=36, exact=True)
TIE = 1.25  # within this factor two methods tie
SHOWN = ("rounds", "bytes")  # the measures of the tables and the figure


@dataclass(frozen=True)
class Case:
    """One problem of the sweep: its family, and a function that makes it."""

    family: str
    label: str
    make: Callable[[], Problem]


def cases() -> list[Case]:
    """All problems: quadratics with small and with large noise, the paper's ridge, and quadratics with many clients."""

    def noisy(ratio: float, noise: float, clients: int = CLIENTS) -> Problem:
        made = similar_quadratics(ratio, noise, clients=clients, dimension=DIMENSION)
        return of_quadratics("quadratics", f"quadratics, noise {noise:g} ‖∇f(0)‖", *made)

    def scaled(scale: float) -> Problem:
        made = ridge(0, clients=CLIENTS, dimension=DIMENSION, scale=scale)
        return of_quadratics("ridge", f"ridge, scale {scale:g}", *made)

    found = [
        Case(family, f"{ratio:g}", partial(noisy, ratio, noise))
        for family, noise in (("quadratics, small noise", SMALL), ("quadratics, large noise", LARGE))
        for ratio in RATIOS
    ]
    found += [Case("ridge", f"scale {scale:g}", partial(scaled, scale)) for scale in SCALES]
    return [*found, Case("quadratics, large noise, 2,000 clients", "0.03", partial(noisy, 0.03, LARGE, MANY))]


class Row(NamedTuple):
    """One number: the cost of a method on a problem until a target."""

    family: str
    case: str
    ratio: float  # delta / L, measured
    target: float
    method: str
    measure: str
    median: float  # infinite if it did not arrive
    low: float
    high: float
    reached: int
    seeds: int
    trial: int | None
    setting: str


def sweep(
    folder: str | Path,
    rivals: Sequence[str] = RIVALS,
    plan: ComparisonPlan = PLAN,
    *,
    chosen: Sequence[Case] | None = None,
    command: str = "",
    progress: Callable[[], None] | None = None,
    part: ComparisonPart | None = None,
) -> list[Row]:
    """Compare on every problem; write tuning.csv, table.csv, table.md, figure.png, figure.svg, manifest.json, command.

    `progress` is called ``steps(len(rivals), plan, len(chosen))`` times at most. A `part` runs its share of the methods
    on the problems, and writes what `merge_parts` needs.
    """
    methods = [HERO, *(key for key in check_methods(rivals) if key != HERO)]
    chosen, began = cases() if chosen is None else chosen, time.perf_counter()
    units = [(index, key) for index in range(len(chosen)) for key in methods]
    share = units if part is None else part.share(units)
    folder = make_folder(folder)
    problems: dict[int, Any] = {}
    results: dict[tuple[int, str], MethodResult] = {}
    for index, case in enumerate(chosen):
        own = [key for each, key in share if each == index]
        if own:
            problem = case.make()
            problems[index] = {"family": case.family, "case": case.label, **facts(problem)}
            found = run_comparison(problem, own, plan, progress).methods
            results |= {(index, key): replace(found[key], finals={}) for key in own}
    if part is None:
        return _write(folder, methods, plan, problems, results, command, began)
    whole = {"kind": "sweep", "methods": methods, "plan": describe.describe(plan), "problems": len(chosen)}
    write_part(folder, part, whole, problems, results, command)
    return _rows(problems, results)


def merge_parts(saved: Sequence[SavedPart], folder: str | Path, *, command: str = "") -> list[Row]:
    """Join all parts of a sweep, as `read_parts` read them, to the files that one sweep writes."""
    began, methods, plan = time.perf_counter(), saved[0].whole["methods"], plan_of(saved[0].whole["plan"])
    problems, found = problems_of(saved), results_of(saved)
    results = {(index, key): found[index, key] for index in problems for key in methods}
    return _write(make_folder(folder), methods, plan, problems, results, command, began)


def _rows(problems: Mapping[int, Any], results: Results) -> list[Row]:
    found = []
    for (index, _), result in results.items():
        of = problems[index]
        place = (of["family"], of["case"], of["delta"] / of["smoothness"])
        found += [Row(*place, one.target, one.method, *one[2:]) for one in result.costs]
    return found


def _write(
    folder: Path, methods: Sequence[str], plan: ComparisonPlan, problems: Mapping[int, Any], results: Results,
    command: str, began: float,
) -> list[Row]:  # fmt: skip
    from fedspam.app import figures

    rows, places = _rows(problems, results), {index: (of["family"], of["case"]) for index, of in problems.items()}
    tried = ([*places[index], *line] for (index, _), result in results.items() for line in result.tuning)
    records.write(folder / "tuning.csv", csv_text(["family", "case", *tuning_header(plan)], tried).encode())
    records.write(folder / "table.csv", to_csv(rows).encode())
    records.write(folder / "table.md", markdown(rows).encode())
    figures.save(figures.draw_sweep(lines_of(rows), note(plan)), folder, "figure")
    facts_of_all = list(problems.values())
    write_manifest(folder, command, began, problems=facts_of_all, methods=methods, plan=describe.describe(plan))
    return rows


def steps(rivals: int, plan: ComparisonPlan = PLAN, problems: int | None = None) -> int:
    return (len(cases()) if problems is None else problems) * (rivals + 1) * (waves(plan.budget) + 1)


def note(plan: ComparisonPlan) -> tuple[str, ...]:
    return (
        f"{CLIENTS} clients, cohort {plan.cohort}, d = {DIMENSION}; every point: best of {plan.budget} settings for "
        f"this measure and target, tuned on other seeds; median of {plan.seeds} seeds.",
        f"A method without a point did not arrive within {plan.rounds} rounds. Noise, the spread of the clients' "
        f"gradients at the minimizer:",
        f"{SMALL:g} (small) or {LARGE:g} (large) times the gradient at the start.",
    )


# --- the table -------------------------------------------------------------------------------------------------------


def to_csv(rows: Iterable[Row]) -> str:
    text = lambda value: number(value) if isinstance(value, float) else value
    return csv_text(Row._fields, ([text(value) for value in row] for row in rows))


def from_csv(text: str) -> list[Row]:
    """The rows that `to_csv` wrote."""
    empty = {"trial": "null", "setting": ""}  # every other empty cell is a cost that is infinite
    lines = csv.DictReader(io.StringIO(text))
    filled = [[value or empty.get(name, "inf") for name, value in line.items()] for line in lines]
    return msgspec.convert(filled, list[Row], strict=False)


def quotient(rival: float, hero: float) -> float:
    """The rival's cost over that of SPAM-PP; infinite if only SPAM-PP arrives, 0 if only the rival does."""
    if math.isinf(rival) and math.isinf(hero):
        return math.nan
    return rival / hero if math.isfinite(hero) else 0.0


def verdict(ratio: float) -> str:
    """Whether SPAM-PP wins at this quotient."""
    if math.isnan(ratio):
        return "neither"
    return "wins" if ratio > TIE else ("loses" if ratio < 1 / TIE else "ties")


def quotients(rows: Sequence[Row], measure: str) -> dict[Row, dict[str, float]]:
    """By the row of SPAM-PP for each problem and target: the cost of every rival over that of SPAM-PP."""
    place = lambda row: (row.family, row.case, row.target)
    chosen = [row for row in rows if row.measure == measure]
    found: dict[Row, dict[str, float]] = {}
    for own in (row for row in chosen if row.method == HERO):
        rivals = (row for row in chosen if row.method != HERO and place(row) == place(own))
        found[own] = {row.method: quotient(row.median, own.median) for row in rivals}
    return found


def tally(rows: Sequence[Row], measure: str) -> dict[str, dict[str, int]]:
    """For every rival: how often SPAM-PP wins, ties and loses, and how often neither arrives."""
    counts: dict[str, dict[str, int]] = {}
    for found in quotients(rows, measure).values():
        for key, ratio in found.items():
            mine = counts.setdefault(key, dict.fromkeys(("wins", "ties", "loses", "neither"), 0))
            mine[verdict(ratio)] += 1
    return counts


def markdown(rows: Sequence[Row]) -> str:
    """The tables of the sweep: one for rounds, one for bytes, and how often SPAM-PP wins, ties and loses."""
    methods = list(dict.fromkeys(row.method for row in rows if row.method != HERO))
    names = [METHODS[key].name for key in methods]
    spam = METHODS[HERO].name
    parts = []
    for measure, title in (("rounds", "Rounds"), ("bytes", "Bytes, up and down together")):
        parts.append(f"**{title}**: the cost of {spam}, and the cost of each rival relative to it.")
        lines = [
            f"| problem | δ/L | target | {spam} | {' | '.join(names)} |",
            "|---|---|---|" + "---:|" * (len(names) + 1),
        ]
        for own, found in quotients(rows, measure).items():
            cells = " | ".join((_amount(own.median, measure), *(_ratio(found[key]) for key in methods)))
            place = f"{own.family}, {own.case}" if own.family == "ridge" else own.family
            lines.append(f"| {place} | {own.ratio:.2g} | {own.target:g} | {cells} |")
        parts.append("\n".join(lines))
    parts.append(f"**How often {spam} wins, ties and loses** (ties: within a factor {TIE:g}).")
    lines = [
        "| rival | rounds: wins | ties | loses | bytes: wins | ties | loses | neither arrives |",
        "|---|" + "---:|" * 7,
    ]
    both = [tally(rows, measure) for measure in SHOWN]
    for key, name in zip(methods, names, strict=True):
        counts = [str(part[key][word]) for part in both for word in ("wins", "ties", "loses")]
        lines.append(f"| {name} | {' | '.join(counts)} | {both[0][key]['neither']} |")
    parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _ratio(ratio: float) -> str:
    """A quotient as text; bold if SPAM-PP loses."""
    text = f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    text = {"nan": "–", "inf": "∞"}.get(text, text)
    return f"**{text}**" if verdict(ratio) == "loses" else text


def _amount(value: float, measure: str) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if measure == "rounds" else f"{value / 1000:.0f} kB"


def lines_of(rows: Sequence[Row]) -> Mapping[str, Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]]:
    """For the figure, by measure, family and method: the costs over delta/L at the hardest target."""
    targets = [row.target for row in rows]
    points: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        target = max(targets) if "large" in row.family else min(targets)
        if row.target == target:
            place = (row.measure, f"{row.family}, to {target:g}", METHODS[row.method].name)
            points.setdefault(place, []).append((row.ratio, row.median))
    found: dict[str, dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]] = {measure: {} for measure in SHOWN}
    for (measure, family, name), line in points.items():
        if measure in SHOWN and len(line) > 1:  # a family of one problem has no line
            x, y = (np.array(part) for part in zip(*sorted(line), strict=True))
            found[measure].setdefault(family, {})[name] = x, y
    return found
