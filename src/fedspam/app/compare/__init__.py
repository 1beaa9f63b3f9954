"""Compare methods on one problem: each tries the same number of settings and runs with the same seeds."""

import itertools
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal import checks, describe
from fedspam._internal.nearest import did_you_mean
from fedspam.app.arrival import percentiles
from fedspam.app.compare.measures import (
    MEASURES,
    Curves,
    MethodResult,
    Trial,
    TunedCost,
    best,
    best_of_all,
    cell,
    costs,
)
from fedspam.app.compare.parts import (
    ComparisonPart,
    ProblemFacts,
    SavedPart,
    plan_of,
    problems_of,
    results_of,
    write_part,
)
from fedspam.app.compare.tuning import (
    BUDGET as BUDGET,
    ComparisonPlan as ComparisonPlan,
    try_settings,
    tune,
    waves as waves,
)
from fedspam.app.folders import csv_text, make_folder, write_manifest
from fedspam.app.named_problems import Problem
from fedspam.methods import METHODS
from fedspam.simulation import records

# one method of every kind: estimators with a prox, with local steps and with a server step; two methods for finite
# populations; and the classics
DEFAULT = (
    "spam_pp", "spam_ppa", "mvr", "mime_mvr", "ce_lsgd", "saber", "rg_saga", "scaffold", "fedavg", "fedprox",
)  # fmt: skip


@dataclass(frozen=True)
class ComparisonResult:
    """What a comparison has found: for every method the best of all settings that were tried, on the reported seeds."""

    problem: Problem | ProblemFacts
    plan: ComparisonPlan
    methods: Mapping[str, MethodResult]

    @property
    def entries(self) -> list[TunedCost]:
        return [cost for method in self.methods.values() for cost in method.costs]

    def entry(self, method: str, target: float, measure: str) -> TunedCost:
        return next(one for one in self.methods[method].costs if (one.target, one.measure) == (target, measure))

    @property
    def untuned(self) -> list[str]:
        """The methods that have nothing to tune: they tried one setting, and the others as many as the budget."""
        return [key for key, method in self.methods.items() if len(method.tuning) < min(2, self.plan.budget)]


def check_methods(methods: Sequence[str]) -> list[str]:
    """The keys without repetition; ValueError with the nearest name if one is unknown."""
    if not methods:
        raise ValueError("there are no methods to compare; name at least one, or 'all'")
    if list(methods) == ["all"]:
        return list(METHODS)
    for key in methods:
        if key not in METHODS:
            hint = did_you_mean(key, METHODS, f"`fedspam methods` lists all {len(METHODS)}")
            raise ValueError(f"there is no method {key!r}; {hint}")
    return list(dict.fromkeys(methods))


def check_cohort(cohort: int, clients: int, problem: str) -> None:
    checks.whole("cohort", cohort, 1)
    if cohort > clients:
        raise ValueError(
            f"cohort = {cohort} is larger than the {clients} clients of {problem!r}; choose at most {clients}"
        )


def run_comparison(
    problem: Problem, methods: Sequence[str], plan: ComparisonPlan, progress: Callable[[], None] | None = None
) -> ComparisonResult:
    """Tune every method with the same budget, then run the best settings on other seeds.

    Each target and measure has its own setting: the one with the lowest cost until the median seed arrives.
    `progress` is called at most ``len(methods) * (waves(plan.budget) + 1)`` times.
    """
    methods, progress = check_methods(methods), progress or (lambda: None)
    check_cohort(plan.cohort, problem.clients, problem.name)
    if plan.metric not in problem.metrics:
        raise ValueError(f"{problem.name!r} has no {plan.metric} to reach; it has {', '.join(problem.metrics)}")
    found = {}
    for key in methods:
        tried = tune(key, problem, plan, progress)
        numbers = chosen_numbers(tried, plan)
        settings = [tried[n - 1].setting for n in numbers]
        again = try_settings(key, settings, problem, plan, plan.reported, first=1, whole=True)
        found[key] = result_of(tried, {n: trial.curves for n, trial in zip(numbers, again, strict=True)}, plan)
        progress()
    return ComparisonResult(problem, plan, found)


def chosen_numbers(tried: Sequence[Trial], plan: ComparisonPlan) -> list[int]:
    """The numbers of the settings of a method that a table or a figure shows."""
    wanted = [best(tried, m, e) for e in plan.errors for m in MEASURES]
    shown = [best_of_all(tried, m, plan.errors) for m in MEASURES]
    return sorted({trial.number for trial in (*wanted, *shown) if trial is not None})


def result_of(tried: Sequence[Trial], finals: Mapping[int, Curves], plan: ComparisonPlan) -> MethodResult:
    """The numbers of a method, which follow from its settings in tuning and from the chosen ones."""
    entries = []
    for error, measure in itertools.product(plan.errors, MEASURES):
        chosen = best(tried, measure, error)
        place = (tried[0].method, error, measure)
        if chosen is None:
            entries.append(TunedCost(*place, *cell(np.full(plan.seeds, np.inf))))
        else:
            paid = cell(costs(finals[chosen.number], measure, error))
            entries.append(TunedCost(*place, *paid, chosen.number, _setting(chosen)))
    shown = {measure: best_of_all(tried, measure, plan.errors).number for measure in MEASURES}
    diverged = sum(trial.status == "diverged" for trial in tried)
    return MethodResult(entries, list(_tuning_rows(tried, plan)), shown, diverged, finals)


def compare(
    problem: Problem,
    methods: Sequence[str],
    plan: ComparisonPlan,
    folder: str | Path,
    *,
    command: str = "",
    progress: Callable[[], None] | None = None,
    part: ComparisonPart | None = None,
) -> ComparisonResult:
    """Run a comparison; write tuning.csv, curves.csv, table.csv, figure.png, figure.svg, manifest.json and command.

    A `part` runs its share of the methods, and writes what `merge_parts` needs.
    """
    methods, began = check_methods(methods), time.perf_counter()
    share = methods if part is None else part.share(methods)
    folder = make_folder(folder)
    found = run_comparison(problem, share, plan, progress)
    if part is None:
        write_files(found, folder, command, began)
        return found
    whole = {"kind": "compare", "methods": methods, "plan": describe.describe(plan)}
    results = {(0, key): result for key, result in found.methods.items()}
    write_part(folder, part, whole, {0: facts(problem)}, results, command)
    return found


def merge_parts(saved: Sequence[SavedPart], folder: str | Path, *, command: str = "") -> ComparisonResult:
    """Join all parts of a comparison, as `read_parts` read them, to the files that one comparison writes."""
    began, whole, results = time.perf_counter(), saved[0].whole, results_of(saved)
    problem, methods = ProblemFacts(**problems_of(saved)[0]), {key: results[0, key] for key in whole["methods"]}
    found = ComparisonResult(problem, plan_of(whole["plan"]), methods)
    write_files(found, make_folder(folder), command, began)
    return found


def write_files(found: ComparisonResult, folder: Path, command: str, began: float) -> None:
    """Write the files of a comparison."""
    from fedspam.app import figures

    problem, plan = found.problem, found.plan
    untuned = ", ".join(METHODS[key].name for key in found.untuned)
    tried = [row for method in found.methods.values() for row in method.tuning]
    records.write(folder / "tuning.csv", csv_text(tuning_header(plan), tried).encode())
    records.write(folder / "curves.csv", curves_csv(found).encode())
    records.write(folder / "table.csv", costs_csv(found).encode())
    note = (
        f"{problem.what}; cohort {plan.cohort}; measured $\\delta/L$ = {problem.delta / problem.smoothness:.3g}.",
        f"Each method: the best of {plan.budget} settings for this axis and the hardest target it reaches, tuned on "
        f"other seeds. Median of {plan.seeds} seeds, band: 10th to 90th percentile."
        + (f" Nothing to tune in {untuned}." if untuned else ""),
    )
    figures.save(figures.draw_comparison(_panels(found), plan.metric, plan.errors[-1], note), folder, "figure")
    write_manifest(
        folder, command, began, problem=facts(problem), plan=describe.describe(plan), seeds=plan.reported,
        tuned_on=plan.tuned_on, methods=list(found.methods),
        tried={key: len(method.tuning) for key, method in found.methods.items()},
        diverged={key: method.diverged for key, method in found.methods.items()},
    )  # fmt: skip


def facts(problem: Problem | ProblemFacts) -> dict[str, object]:
    """The constants of a problem, for the manifest."""
    return {field.name: getattr(problem, field.name) for field in fields(ProblemFacts)}


def _panels(found: ComparisonResult) -> dict[str, list[Any]]:
    """For every measure a line per method: the cost, and the median error with its band."""
    from fedspam.app.figures import Line

    panels: dict[str, list[Any]] = {label: [] for label in MEASURES.values()}
    for (measure, label), (number, key) in itertools.product(MEASURES.items(), enumerate(found.methods)):
        curves = found.methods[key].finals[found.methods[key].shown[measure]]
        median, low, high = percentiles(curves.error, (50, 10, 90))
        paid = np.median(getattr(curves, measure), axis=0)
        panels[label].append(Line(METHODS[key].name, paid, median, low, high, number))
    return panels


# --- CSV -------------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """A number with ten digits; empty if it is not finite, as the cost of a target that was never reached."""
    return f"{value:.10g}" if np.isfinite(value) else ""


def _setting(trial: Trial) -> str:
    return json.dumps(describe.describe(dict(trial.setting)), sort_keys=True)


def tuning_header(plan: ComparisonPlan) -> list[str]:
    columns = (f"{measure}_to_{plan.text(error)}" for error in plan.errors for measure in MEASURES)
    return ["method", "trial", "status", "final_error", *columns, "setting"]


def _tuning_rows(tried: Sequence[Trial], plan: ComparisonPlan) -> Iterable[list[Any]]:
    """Every setting in the order of trial, with its median costs on the seeds for tuning."""
    for trial in tried:
        numbers = (trial.curves.final, *(trial.cost(m, error) for error in plan.errors for m in MEASURES))
        yield [trial.method, trial.number, trial.status, *map(number, numbers), _setting(trial)]


def curves_csv(found: ComparisonResult) -> str:
    """Every probe of the chosen settings on the reported seeds. After divergence an error may be inf or nan."""
    header = ["method", "trial", "seed", "rounds", "error", "bytes_up", "bytes", "gradients"]
    rows = (
        [key, trial, seed, int(k), f"{error:.9e}", int(up), int(both), f"{gradients:.10g}"]
        for key, method in found.methods.items()
        for trial, curves in method.finals.items()
        for i, seed in enumerate(found.plan.reported)
        for error, k, up, both, gradients in zip(*(part[i] for part in curves[:5]), strict=True)
    )
    return csv_text(header, rows)


def costs_csv(found: ComparisonResult) -> str:
    """One row per method, target and measure: the median over seeds, its band, and the setting."""
    rows = (
        [one.method, found.plan.text(one.target), one.measure, *map(number, one[3:6]), *one[6:]]
        for one in found.entries
    )
    return csv_text(TunedCost._fields, rows)
