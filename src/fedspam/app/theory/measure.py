"""`fedspam measure`: the constants of a problem, with intervals and costs."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedspam._internal import checks
from fedspam.app import UsageError
from fedspam.app.compare import load
from fedspam.app.compare.problems import PROBLEMS, Problem
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


def show(
    name: str,
    data: Path | None,
    *,
    wire: bool = False,
    as_json: bool = False,
    console: Console | None = None,
    confidence: float = 0.95,
    **options: Any,
) -> int:
    """Measure a named problem at its start, print the constants and their costs, and return the exit code 0."""
    try:
        checks.one_of("problem", name, PROBLEMS)
        checks.between("confidence", confidence, 0.5, 0.999)
    except ValueError as error:
        raise UsageError(str(error)) from None
    console = console or Console()
    problem = load(name, data)
    run = (over_bytes if wire else in_simulator)(problem.population, problem.start)
    found = measure(problem.population, problem.start, run=run, confidence=confidence, **options)
    if as_json:
        console.print_json(json.dumps(facts(name, found)))
        return 0
    sample = f"{found.clients} of {found.population} clients" if found.population else f"{found.clients} clients"
    console.print(
        f"{problem.what}\nmeasured at the start, from {sample}\n", highlight=False, markup=False, soft_wrap=True
    )
    console.print(_constants(problem, found))
    if found.clients != found.population:
        console.print("δ is that of the measured clients; others may deviate more.\n", highlight=False)
    console.print(_costs(found))
    console.print(_advice(name, found), highlight=False, markup=False, soft_wrap=True)
    return 0


def facts(name: str, found: Measurement) -> dict[str, Any]:
    """The constants and costs as plain JSON."""
    estimates = {label: getattr(found, label)._asdict() for label in LABELS}
    costs = {part: cost._asdict() for part, cost in found.costs.items()}
    return {
        "problem": name, **estimates, "worst_client": found.worst, "clients": found.clients,
        "population": found.population, "confidence": found.confidence, "costs": costs, "cost": found.cost._asdict(),
    }  # fmt: skip


def _constants(problem: Problem, found: Measurement) -> Table:
    known = {"delta": problem.delta, "smoothness": problem.smoothness}
    shown = Table()
    shown.add_column("constant")
    for name in ("measured", f"{100 * found.confidence:g} % interval", "closed form"):
        shown.add_column(name, justify="right")
    for name, label in LABELS.items():
        estimate = getattr(found, name)
        truth = f"{known[name]:.4g}" if name in known else ""
        label += f" (client {found.worst})" if name == "delta" else ""
        shown.add_row(label, f"{estimate.value:.4g}", f"{estimate.low:.4g} to {estimate.high:.4g}", truth)
    return shown


def _costs(found: Measurement) -> Table:
    shown = Table()
    shown.add_column("cost of")
    for name in ("rounds", "client gradients", "bytes down", "bytes up"):
        shown.add_column(name, justify="right")
    for name, cost in {**found.costs, "all": found.cost}.items():
        shown.add_row(name, *(f"{value:,}" for value in cost), end_section=name == list(found.costs)[-1])
    return shown


def _advice(name: str, found: Measurement) -> str:
    usual = PROBLEMS[name]
    gamma = 0.25 / found.delta.value if found.delta.value > 0 else float("inf")
    effective = effective_cohort(usual.cohort, found.population)
    p = least_fresh_weight(gamma, found.delta.value, effective)
    cohorts = f"cohorts of {usual.cohort} (B_eff = {effective:.3g})"
    return f"The theorems allow γ ≤ {gamma:.4g}, and with it p ≥ {p:.3g} for {cohorts}."
