"""`fedspam theory`: runs on generated quadratics, next to the right-hand sides of the theorems."""

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Column, Table

from fedspam._internal import checks, describe
from fedspam.app import UsageError, exit_codes, refusing
from fedspam.app.figures import LOOKS, BoundPanel, draw_bounds, save
from fedspam.app.folders import csv_text, make_folder, new_folder, write_manifest
from fedspam.app.terminal import numbers_table, print_folder
from fedspam.federation import ledger
from fedspam.methods import spam, spam_pp, spam_ppa
from fedspam.methods.schedules import cube_root
from fedspam.problems import Quadratics, quadratics
from fedspam.problems.quadratic import check_size
from fedspam.simulation import records, simulate_many
from fedspam.solvers import Exact, GradientDescent
from fedspam.theory import bounds
from fedspam.theory.bounds import Bound
from fedspam.theory.certificates import certificates, table
from fedspam.theory.complexity import order, traffic, trips_needed
from fedspam.theory.constants import APPENDIX, Constants, effective_cohort_of, least_fresh_weight, premises
from fedspam.theory.observed import Observed

CONDITION = 10.0
NUMBERS = 100  # bytes that a round of a run records, about
FORMS: Mapping[str, Callable[..., Bound]] = {
    "3.2": lambda known, steps, fresh_weights, **options: bounds.constant_bound(
        known, float(steps[0]), float(fresh_weights[0]), len(steps), **options
    ),
    "3.5": bounds.varying_bound,
    "4.1": bounds.inexact_bound,
    "5.1": bounds.partial_bound,
    "D.1": bounds.averaged_bound,
}


@dataclass(frozen=True)
class TheoryOptions:
    """The constants of the problem, and how it is generated and run."""

    delta: float = 1.0
    sigma: float = 0.5
    gap: float = 10.0
    cohort: int = 5
    rounds: int = 1000
    smoothness: float | None = None
    epsilon: float | None = None
    clients: int = 40
    dimension: int = 10
    seeds: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if self.cohort > self.clients:
            raise UsageError(f"cohort = {self.cohort} is larger than the {self.clients} clients; give more clients")
        if self.smoothness is not None and self.smoothness < CONDITION * self.delta:
            least = f"{CONDITION:g} delta = {CONDITION * self.delta:g}"
            raise UsageError(f"smoothness = {self.smoothness} must be at least {least}, so that every client is convex")
        with refusing():
            check_size(self.clients, self.dimension)
            rows = f"the numbers of rounds = {self.rounds} and seeds = {self.seeds}"
            checks.memory(rows, NUMBERS * self.rounds * self.seeds, "give fewer rounds or seeds")


@dataclass(frozen=True)
class TheoryOutcome:
    """One theorem: its bound and what the runs reached, for every number of rounds."""

    theorem: str
    method: str
    parameters: str
    corrected: Bound
    printed: Bound
    tight: Bound
    sums: np.ndarray  # running means of squared gradient norms, one row per seed
    rows: Mapping[str, np.ndarray]
    known: Constants  # sigma is the largest of all rounds, the error of g_0 the measured one
    broken: list[str]  # premises of the theorem that do not hold

    @property
    def reached(self) -> float:
        return float(self.sums[:, -1].mean())

    @property
    def holds(self) -> bool:
        return bool((self.sums.mean(0) <= np.minimum(self.corrected.total, self.tight.total)).all())

    @property
    def printed_holds(self) -> bool:
        return bool((self.sums.mean(0) <= self.printed.total).all())


def problem(options: TheoryOptions) -> tuple[Quadratics, jnp.ndarray]:
    """Quadratics with these constants, and a start whose loss is this gap above their minimum."""
    smoothness = CONDITION * options.delta if options.smoothness is None else options.smoothness
    population = quadratics(
        options.seed, options.clients, options.dimension, delta=options.delta, condition=CONDITION,
        curvature=smoothness / CONDITION, noise=options.sigma,
    )  # fmt: skip
    away = np.random.default_rng(options.seed).standard_normal(options.dimension)
    hessian = np.asarray(population.hessians, np.float64).mean(0)
    away *= np.sqrt(2 * options.gap / (away @ hessian @ away))
    return population, jnp.asarray(population.minimizer + away, population.hessians.dtype)


def outcomes(options: TheoryOptions, population: Quadratics, start: jnp.ndarray) -> list[TheoryOutcome]:
    """Every theorem with the largest parameters that it allows."""
    delta, cohort, k = options.delta, options.cohort, np.arange(options.rounds)
    gamma, effective = 0.25 / delta, effective_cohort_of(population, cohort)
    alone, together = float(least_fresh_weight(gamma, delta)), float(least_fresh_weight(gamma, delta, effective))
    together = max(together, 1 / options.rounds)  # with all clients in the cohort the bound on p is 0
    falling = cube_root(delta)
    steps, fresh_weights = np.asarray(falling.step_size(k)), np.asarray(falling.fresh_weight(k))  # type: ignore[arg-type]
    flat = lambda value: np.full(options.rounds, value)
    noisy = min(effective, 1e12)  # infinite with all clients in the cohort
    exact = Exact()
    of = f"γ = {gamma:.3g}, p = {alone:.3g}"
    cases: list[tuple[str, str, str, Any, np.ndarray, np.ndarray, float]] = [
        ("3.2", "SPAM", of, spam(gamma, alone, solver=exact), flat(gamma), flat(alone), 1.0),
        ("3.5", "SPAM, varying", f"γ = {gamma:.3g}/(k+1)^⅓", spam(*falling, solver=exact), steps, fresh_weights, 1.0),
        ("4.1", "SPAM, 1 step", of, spam(gamma, alone, solver=GradientDescent(steps=1)), flat(gamma),
         flat(alone), 1.0),
        ("5.1", f"SPAM-PP, B = {cohort}", f"γ = {gamma:.3g}, p = {together:.3g}",
         spam_pp(cohort, gamma, together, solver=exact), flat(gamma), flat(together), noisy),
        ("D.1", f"SPAM-PPA, B = {cohort}", f"γ = {gamma:.3g}, p = {together:.3g}",
         spam_ppa(cohort, gamma, together, solver=exact), flat(gamma), flat(together), noisy),
    ]  # fmt: skip
    return [_outcome(options, population, start, *case) for case in cases]


def _outcome(
    options: TheoryOptions, population: Quadratics, start: Any, theorem: str, name: str, parameters: str, method: Any,
    steps: np.ndarray, fresh_weights: np.ndarray, cohort: float,
) -> TheoryOutcome:  # fmt: skip
    watched = Observed(method, population, population.optimum)
    keys = range(options.seed, options.seed + options.seeds)
    run = simulate_many(watched, population, start, rounds=options.rounds, keys=keys)
    rows = {column: np.asarray(values[0], np.float64) for column, values in run.rows.items()}
    known = Constants(
        options.delta, float(np.sqrt(rows["spread"].max())), options.gap, float(rows["error"][:, 0].mean()),
        smoothness=population.smoothness, weak_convexity=0.0,
    )  # fmt: skip
    bound = partial(FORMS[theorem], known, steps, fresh_weights)
    if theorem in ("4.1", "5.1", "D.1"):
        bound = partial(bound, epsilon=_epsilons(rows))
    corrected = bound(cohort=cohort)
    # the printed forms have B where the corrected ones have B_eff
    printed = bound(cohort=options.cohort if theorem in ("5.1", "D.1") else cohort, version="paper")
    tight = bound(cohort=cohort, version="tight")
    broken = premises(known, steps, fresh_weights, cohort=cohort, averaged=theorem == "D.1")
    sums = np.cumsum(steps * rows["slope"], axis=1) / np.cumsum(steps)
    return TheoryOutcome(theorem, name, parameters, corrected, printed, tight, sums, rows, known, broken)


def _epsilons(rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """The certified errors in mean square over seeds, for every round."""
    seeds = len(rows["void"])
    found = [certificates({name: column[seed] for name, column in rows.items()}).epsilons for seed in range(seeds)]
    return np.sqrt(np.mean(np.square(found), axis=0))


# --- output ---


def show(given: argparse.Namespace) -> int:
    """Run, print, draw and write, and return the exit code."""
    began = time.perf_counter()
    options = TheoryOptions(**{name: getattr(given, name) for name in TheoryOptions.__dataclass_fields__})
    folder = make_folder(given.out or new_folder("theory"))
    population, start = problem(options)
    found = outcomes(options, population, start)
    console, sigma = Console(quiet=given.quiet), found[0].known.sigma
    console.print(
        f"δ = {options.delta:g}, σ = {options.sigma:g} at the minimizer, at most {sigma:.3g} in the runs,"
        f" F = {options.gap:g}, L = {population.smoothness:.3g}, {options.clients} clients, B = {options.cohort}, "
        f"B_eff = {effective_cohort_of(population, options.cohort):.3g}, {options.rounds} rounds, "
        f"{options.seeds} runs\n",
        highlight=False,
    )
    console.print(_bounds_table(found))
    slope = float(np.sum(np.asarray(population.gradient(start), np.float64) ** 2))
    console.print(_rounds_table(options, found, options.epsilon or 0.01 * slope, population, start))
    inexact = next(outcome for outcome in found if outcome.theorem == "4.1")
    lines = table(certificates({name: column.reshape(-1) for name, column in inexact.rows.items()}))
    title = f"Certificates of {inexact.method}, all runs"
    console.print(numbers_table(("", ""), lines, title=title, show_header=False))
    _write(options, folder, found)
    write_manifest(folder, given.line, began, options=describe.describe(options))
    print_folder(Console(), folder, given.quiet)
    return exit_codes.verdict(all(outcome.holds for outcome in found))


def _bounds_table(found: list[TheoryOutcome]) -> Table:
    header = ("printed", "corrected", "tight", "reached", "ratio")
    numbers = (Column(name, justify="right", no_wrap=True) for name in header)
    title = "Mean of ‖∇f‖² over all rounds: bounds, the value reached, tight/reached"
    shown = Table(Column("theorem", no_wrap=True), *numbers, "result", title=title, title_justify="left")
    for one in found:
        versions = (one.printed, one.corrected, one.tight)
        verdict = "holds" if one.holds else "FAILS"
        verdict += "" if one.printed_holds else ", printed fails"
        verdict += "" if not one.broken else f" ({one.broken[0]})"
        shown.add_row(
            f"{one.theorem} {one.method}\n{one.parameters}", *(f"{bound.total[-1]:.3g}" for bound in versions),
            f"{one.reached:.3g}", f"{one.tight.total[-1] / one.reached:.2g}", verdict,
        )  # fmt: skip
    return shown


def _rounds_table(
    options: TheoryOptions, found: list[TheoryOutcome], epsilon: float, population: Quadratics, start: Any
) -> Table:
    """Corollaries 3.4 and 5.2: trips and bytes until the mean is below epsilon."""
    header = ("method", "order", "corrected", "tight", "bytes", "rounds", "bytes")
    rows = []
    for one in found:
        if one.theorem not in ("3.2", "5.1"):
            continue
        cohort = 1.0 if one.theorem == "3.2" else min(effective_cohort_of(population, options.cohort), 1e12)
        known = replace(one.known, error=0.0)
        loose, trips = (trips_needed(known, epsilon, cohort=cohort, version=name) for name in ("corrected", "tight"))
        alone = one.theorem == "3.2"
        method = spam(0.1, 0.1, solver=Exact()) if alone else spam_pp(options.cohort, 0.1, 0.1, solver=Exact())
        plan = ledger.plan(method, start, population)
        start_bytes, each = sum(traffic(plan, 0)), sum(traffic(plan, 1)) - sum(traffic(plan, 0))
        arrived = np.flatnonzero(one.sums.mean(0) <= epsilon)
        took = str(arrived[0] + 1) if len(arrived) else f"> {options.rounds}"
        spent = f"{start_bytes + each * (arrived[0] + 1):.3g}" if len(arrived) else "–"
        most_bytes = start_bytes * (trips // 2) + each * (trips - trips // 2)
        scale = f"{order(known, epsilon, cohort=cohort):.3g}"
        rows.append((one.method, scale, f"{loose:.3g}", f"{trips:.3g}", f"{most_bytes:.3g}", took, spent))
    title = f"Until the mean of ‖∇f‖² is at most {epsilon:.3g}: trips by theory, rounds used"
    return numbers_table(header, rows, title=title, no_wrap=True)


def _write(options: TheoryOptions, folder: Path, found: list[TheoryOutcome]) -> None:
    rows, panels = [], []
    for one in found:
        low, high = np.percentile(one.sums, (10, 90), axis=0)
        mean, *others = one.sums.mean(0), one.corrected.total, one.printed.total, one.tight.total
        curves = dict(zip(LOOKS, (mean, *others), strict=False))
        panels.append(BoundPanel(f"Theorem {one.theorem}: {one.method}", curves, low, high))
        columns = (mean, low, high, *others, *(one.rows[name].mean(0) for name in ("lyapunov", "gap", "error")))
        for number, line in enumerate(zip(*columns, strict=True)):
            rows.append([one.theorem, number + 1, *(f"{value:.6g}" for value in line)])
    header = ["theorem", "rounds", "mean", "low", "high", "corrected", "printed", "tight", "lyapunov", "gap", "error"]
    records.write(folder / "curves.csv", csv_text(header, rows).encode())
    first = found[0]
    value, gap = (first.rows[name].mean(0) for name in ("lyapunov", "gap"))
    parts = dict(zip(list(LOOKS)[4:], (value, gap, value - gap), strict=True))
    watched = BoundPanel(f"$V_k$ of SPAM, $c$ = {APPENDIX:g}", parts)
    note = (
        f"Quadratics: $\\delta$ = {options.delta:g}, $\\sigma$ = {options.sigma:g} at the minimizer and at most "
        f"{first.known.sigma:.3g} in the runs (the bounds use the latter), $F$ = {options.gap:g}, "
        f"{options.clients} clients.",
        f"Mean over {options.seeds} runs, band: 10th to 90th percentile. Largest step sizes and smallest fresh weights "
        "that the corrected theorems allow.",
    )
    save(draw_bounds(panels, watched, note), folder, "bound")
