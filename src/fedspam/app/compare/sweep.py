r"""The sweep over :math:`\delta/L`: where SPAM-PP needs fewer rounds or bytes than other methods, and where more."""

import csv
import io
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedspam._internal import describe
from fedspam.app.compare import check_methods, facts, files, run_comparison, waves
from fedspam.app.compare.problems import Problem, of_quadratics, similar_quadratics
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.folders import csv_text, make_folder, write_manifest
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

    def noisy(ratio: float, noise: float, clients: int) -> Callable[[], Problem]:
        def make() -> Problem:
            population, start = similar_quadratics(ratio, noise, clients=clients, dimension=DIMENSION)
            return of_quadratics("quadratics", f"quadratics, noise {noise:g} |grad f(0)|", population, start)

        return make

    def scaled(scale: float) -> Callable[[], Problem]:
        def make() -> Problem:
            population, start = ridge(0, clients=CLIENTS, dimension=DIMENSION, scale=scale)
            return of_quadratics("ridge", f"ridge, scale {scale:g}", population, start)

        return make

    found = [
        Case(family, f"{ratio:g}", noisy(ratio, noise, CLIENTS))
        for family, noise in (("quadratics, small noise", SMALL), ("quadratics, large noise", LARGE))
        for ratio in RATIOS
    ]
    found += [Case("ridge", f"scale {scale:g}", scaled(scale)) for scale in SCALES]
    return [*found, Case("quadratics, large noise, 2,000 clients", "0.03", noisy(0.03, LARGE, MANY))]


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
) -> list[Row]:
    """Compare on every problem; write tuning.csv, table.csv, table.md, figure.png, figure.svg, manifest.json, command.

    `progress` is called ``steps(len(rivals), plan, len(chosen))`` times at most.
    """
    from fedspam.app import figures

    methods = [HERO, *(key for key in check_methods(rivals) if key != HERO)]
    folder = make_folder(folder)
    chosen = cases() if chosen is None else chosen
    began, rows, tried, known, head = time.perf_counter(), [], [], [], ""
    for case in chosen:
        problem = case.make()
        found = run_comparison(problem, methods, plan, progress)
        ratio = problem.delta / problem.smoothness
        known.append({"family": case.family, "case": case.label, **facts(problem)})
        for entry in found.entries:
            trial = None if entry.trial is None else found.trials[entry.method][entry.trial - 1]
            setting = "" if trial is None else files.setting_text(trial.setting)
            where = (case.family, case.label, ratio, entry.target, entry.method, entry.measure)
            rows.append(Row(*where, **entry.cell._asdict(), trial=entry.trial, setting=setting))
        # one header, then the settings of all problems
        header, *lines = files.tuning(found.trials, plan).splitlines()
        tried += [f'"{case.family}","{case.label}",{line}' for line in lines]
        head = f"family,case,{header}"
    records.write(folder / "tuning.csv", "\n".join([head, *tried, ""]).encode())
    records.write(folder / "table.csv", to_csv(rows).encode())
    records.write(folder / "table.md", markdown(rows).encode())
    figures.save(figures.draw_sweep(lines_of(rows), note(plan)), folder, "figure")
    write_manifest(folder, command, began, problems=known, methods=methods, plan=describe.describe(plan))
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
    numbers = {"ratio", "target", "median", "low", "high"}
    return csv_text(
        Row._fields,
        (
            [
                files.number(value) if name in numbers else ("" if value is None else value)
                for name, value in row._asdict().items()
            ]
            for row in rows
        ),
    )


def from_csv(text: str) -> list[Row]:
    """The rows that `to_csv` wrote."""
    rows = []
    for line in csv.DictReader(io.StringIO(text)):
        values: dict[str, Any] = dict(line)
        for name in ("ratio", "target", "median", "low", "high"):
            values[name] = float(values[name]) if values[name] else math.inf
        for name in ("reached", "seeds"):
            values[name] = int(values[name])
        values["trial"] = int(values["trial"]) if values["trial"] else None
        rows.append(Row(**values))
    return rows


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


def quotients(rows: Sequence[Row], measure: str) -> dict[tuple[str, str, float], dict[str, float]]:
    """By problem and target, for every rival: its cost over that of SPAM-PP."""
    paid: dict[tuple[str, str, float], dict[str, float]] = {}
    for row in rows:
        if row.measure == measure:
            paid.setdefault((row.family, row.case, row.target), {})[row.method] = row.median
    return {
        where: {key: quotient(value, costs[HERO]) for key, value in costs.items() if key != HERO}
        for where, costs in paid.items()
    }


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
    ratios = {(row.family, row.case): row.ratio for row in rows}
    parts = []
    for measure, title in (("rounds", "Rounds"), ("bytes", "Bytes, up and down together")):
        own = {(r.family, r.case, r.target): r.median for r in rows if (r.method, r.measure) == (HERO, measure)}
        lines = [
            f"**{title}**: the cost of {spam}, and the cost of each rival relative to it.",
            "",
            f"| problem | δ/L | target | {spam} | {' | '.join(names)} |",
            "|---|---|---|" + "---:|" * (len(names) + 1),
        ]
        for where, found in quotients(rows, measure).items():
            family, case, target = where
            cells = " | ".join(_ratio(found[key]) for key in methods)
            place = f"{family}, {case}" if family == "ridge" else family
            lines.append(
                f"| {place} | {ratios[family, case]:.2g} | {target:g} | {_amount(own[where], measure)} | {cells} |"
            )
        parts.append("\n".join(lines))
    lines = [
        f"**How often {spam} wins, ties and loses** (ties: within a factor {TIE:g}).",
        "",
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
    if math.isnan(ratio):
        return "–"
    text = "∞" if math.isinf(ratio) else ("0" if ratio == 0 else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}")
    return f"**{text}**" if verdict(ratio) == "loses" else text


def _amount(value: float, measure: str) -> str:
    if not math.isfinite(value):
        return "–"
    return f"{value:.0f}" if measure == "rounds" else f"{value / 1000:.0f} kB"


def lines_of(rows: Sequence[Row]) -> Mapping[str, Mapping[str, Mapping[str, tuple[np.ndarray, np.ndarray]]]]:
    """For the figure, by measure, family and method: the costs over delta/L at the hardest target."""
    families = [
        f for f in dict.fromkeys(row.family for row in rows) if len({r.case for r in rows if r.family == f}) > 1
    ]
    hardest = min(row.target for row in rows)
    found: dict[str, dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]] = {}
    for measure in SHOWN:
        for family in families:
            target = max(row.target for row in rows) if "large" in family else hardest
            name = f"{family}, to {target:g}"
            for key in dict.fromkeys(row.method for row in rows):
                points = [
                    (row.ratio, row.median)
                    for row in rows
                    if (row.measure, row.family, row.target, row.method) == (measure, family, target, key)
                ]
                x, y = (np.array(part) for part in zip(*sorted(points), strict=True))
                found.setdefault(measure, {}).setdefault(name, {})[METHODS[key].name] = x, y
    return found
