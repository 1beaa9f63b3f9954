"""`fedspam measure`: the constants of a problem, with intervals and costs."""

import argparse
import json
from collections.abc import Mapping
from typing import Any

import jax
from rich.console import Console
from rich.table import Table

from fedspam._internal import checks
from fedspam._internal.trees import Params
from fedspam.app import refusing
from fedspam.app.compare.options import load_own
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


def show(options: argparse.Namespace) -> int:
    """Measure a problem by name or of a configuration at its start; print the constants, intervals and costs."""
    if options.file is not None:
        own = load_own(options.file, options.settings)
        with jax.enable_x64(own.double):
            made = own.experiment
            return _show(options, own.name, own.what, made.population, made.start, own.cohort, {})
    name = "quadratics" if options.problem is None else options.problem
    with refusing():
        checks.one_of("problem", name, PROBLEMS)
    problem = load(name, options.data)
    known = {"delta": problem.delta, "smoothness": problem.smoothness}
    return _show(options, name, problem.what, problem.population, problem.start, PROBLEMS[name].cohort, known)


def _show(
    options: argparse.Namespace, name: str, what: str, population: Population, start: Params, cohort: int,
    known: Mapping[str, float],
) -> int:  # fmt: skip
    """Measure and print. `cohort` is for the advice, `known` has the constants in closed form."""
    console, run = Console(), (over_bytes if options.wire else in_simulator)(population, start)
    asked = {each: getattr(options, each) for each in ("clients", "steps", "candidates", "confidence", "seed")}
    found = measure(population, start, run=run, **asked)
    if options.json:
        console.print_json(json.dumps(facts(name, found)))
        return 0
    sample = f"{found.clients} of {found.population} clients" if found.population else f"{found.clients} clients"
    print_plain(console, f"{what}\nmeasured at the start, from {sample}\n")
    console.print(_constants(known, found))
    if found.clients != found.population:
        console.print("δ is that of the measured clients; others may deviate more.\n", highlight=False)
    console.print(_costs(found))
    gamma = 0.25 / found.delta.value if found.delta.value > 0 else float("inf")
    effective = effective_cohort(cohort, found.population)
    p = least_fresh_weight(gamma, found.delta.value, effective)
    cohorts = f"cohorts of {cohort} (B_eff = {effective:.3g})"
    print_plain(console, f"The theorems allow γ ≤ {gamma:.4g}, and with it p ≥ {p:.3g} for {cohorts}.")
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
    header = ["constant", "measured", f"{100 * found.confidence:g} % interval", "closed form"]
    return numbers_table(header if known else header[:3], rows)


def _costs(found: Measurement) -> Table:
    rows = [(name, *(f"{value:,}" for value in cost)) for name, cost in {**found.costs, "all": found.cost}.items()]
    shown = numbers_table(("cost of", "rounds", "client gradients", "bytes down", "bytes up"), rows)
    shown.rows[-2].end_section = True
    return shown
