"""`fedspam measure`: the constants of a problem, with intervals and costs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
from rich.console import Console
from rich.table import Table

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.app import refusing
from fedspam.app.compare.own import load_own
from fedspam.app.named_problems import PROBLEMS, load
from fedspam.app.terminal import numbers_table, print_plain
from fedspam.clients import Population
from fedspam.methods.schedules import effective_cohort
from fedspam.theory import in_simulator, least_fresh_weight, measure, over_bytes
from fedspam.theory.measure import Measurement

LABELS = {
    "delta": "δ = max ‖H_i − H‖",
    "delta_rms": "δ in mean square",
    "delta_secant": "δ from secants",
    "sigma": "σ",
    "smoothness": "L = ‖H‖",
    "lowest_curvature": "lowest curvature",
}


class Subject(NamedTuple):
    """What is measured, and what is known of it already."""

    name: str
    what: str
    population: Population
    start: Params
    cohort: int  # for the advice
    known: Mapping[str, float]  # constants in closed form


def show(name: str, data: Path | None, **options: Any) -> int:
    """Measure a named problem at its start, print the constants and their costs, and return the exit code 0."""
    with refusing():
        checks.one_of("problem", name, PROBLEMS)
    problem = load(name, data)
    known = {"delta": problem.delta, "smoothness": problem.smoothness}
    return _show(
        Subject(name, problem.what, problem.population, problem.start, PROBLEMS[name].cohort, known), **options
    )


def show_own(file: Path, settings: Sequence[tuple[str, str]], **options: Any) -> int:
    """The same for the data and model of a configuration."""
    own = load_own(file, settings)
    with jax.enable_x64(own.double):
        made = own.experiment
        return _show(Subject(own.name, own.what, made.population, made.start, own.cohort, {}), **options)


def _show(
    subject: Subject, *, wire: bool = False, as_json: bool = False, console: Console | None = None, **options: Any
) -> int:
    console = console or Console()
    run = (over_bytes if wire else in_simulator)(subject.population, subject.start)
    found = measure(subject.population, subject.start, run=run, **options)
    if as_json:
        console.print_json(json.dumps(facts(subject.name, found)))
        return 0
    sample = f"{found.clients} of {found.population} clients" if found.population else f"{found.clients} clients"
    print_plain(console, f"{subject.what}\nmeasured at the start, from {sample}\n")
    console.print(_constants(subject.known, found))
    if found.clients != found.population:
        console.print("δ is that of the measured clients; others may deviate more.\n", highlight=False)
    console.print(_costs(found))
    print_plain(console, _advice(subject.cohort, found))
    return 0


def facts(name: str, found: Measurement) -> dict[str, Any]:
    """The constants and costs as plain JSON."""
    estimates = {label: getattr(found, label)._asdict() for label in LABELS}
    costs = {part: cost._asdict() for part, cost in found.costs.items()}
    return {
        "problem": name, **estimates, "worst_client": found.worst, "clients": found.clients,
        "population": found.population, "confidence": found.confidence, "costs": costs, "cost": found.cost._asdict(),
    }  # fmt: skip


def _constants(known: Mapping[str, float], found: Measurement) -> Table:
    rows = []
    for name, label in LABELS.items():
        estimate = getattr(found, name)
        truth = [f"{known[name]:.4g}" if name in known else ""] if known else []
        label += f" (client {found.worst})" if name == "delta" else ""
        rows.append((label, f"{estimate.value:.4g}", f"{estimate.low:.4g} to {estimate.high:.4g}", *truth))
    closed_form = ["closed form"] if known else []
    return numbers_table(("constant", "measured", f"{100 * found.confidence:g} % interval", *closed_form), rows)


def _costs(found: Measurement) -> Table:
    rows = [(name, *(f"{value:,}" for value in cost)) for name, cost in {**found.costs, "all": found.cost}.items()]
    shown = numbers_table(("cost of", "rounds", "client gradients", "bytes down", "bytes up"), rows)
    shown.rows[-2].end_section = True
    return shown


def _advice(cohort: int, found: Measurement) -> str:
    gamma = 0.25 / found.delta.value if found.delta.value > 0 else float("inf")
    effective = effective_cohort(cohort, found.population)
    p = least_fresh_weight(gamma, found.delta.value, effective)
    cohorts = f"cohorts of {cohort} (B_eff = {effective:.3g})"
    return f"The theorems allow γ ≤ {gamma:.4g}, and with it p ≥ {p:.3g} for {cohorts}."
