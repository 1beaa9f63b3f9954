"""The output of `fedspam compare`: a progress bar while it runs, then one table per target."""

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

from fedspam.app.amounts import amount
from fedspam.app.compare import MEASURES, ComparisonResult, compare, merge_parts, sweep as sweeping, waves
from fedspam.app.compare.options import CompareOptions
from fedspam.app.compare.parts import ComparisonPart, read_parts
from fedspam.app.folders import new_folder
from fedspam.app.named_problems import load
from fedspam.app.terminal import numbers_table, print_folder, progress_bar
from fedspam.methods import METHODS
from fedspam.simulation.metrics import METRICS


def show(options: CompareOptions, given: argparse.Namespace) -> int:
    """Run a comparison or the sweep, print its tables, and return the exit code 0. A part prints its folder alone.

    Arguments:
        options: what is compared.
        given: the arguments of the command: the folders, the part, and whether to be quiet.
    """
    plan, methods, own = options.plan, options.methods, options.own
    folder = given.out or new_folder("sweep" if options.problem is None else "compare")
    part = None if given.part is None else ComparisonPart(*given.part)
    with progress_bar(given.quiet) as bar, jax.enable_x64(True) if own is not None and own.double else nullcontext():
        task = bar.add_task(f"loading {options.problem or 'the sweep'}", total=None)
        begin = lambda steps: bar.update(task, description="compiling and running", total=steps)
        more: dict[str, Any] = {"command": given.line, "progress": lambda: bar.advance(task), "part": part}
        if options.problem is None:
            begin(sweeping.steps(len(methods), plan))
            rows = sweeping.sweep(folder, methods, plan, **more)
            lines = [] if part is not None else sweep_lines(rows)
        else:
            if own is not None:
                bar.update(task, description="measuring delta and L")
            problem = load(options.problem, given.data) if own is None else own.problem
            begin(len(methods) * (waves(plan.budget) + 1))
            found = compare(problem, methods, plan, folder, **more)
            lines = [] if part is not None else lines_of(found)
    return _print(lines, folder, given.quiet)


def merge(given: argparse.Namespace) -> int:
    """Join the parts of a comparison or of the sweep, and print its tables."""
    saved = read_parts(given.merge)
    is_sweep = saved[0].whole["kind"] == "sweep"
    folder = given.out or new_folder("sweep" if is_sweep else "compare")
    if is_sweep:
        lines = sweep_lines(sweeping.merge_parts(saved, folder, command=given.line))
    else:
        lines = lines_of(merge_parts(saved, folder, command=given.line))
    return _print(lines, folder, given.quiet)


def lines_of(found: ComparisonResult) -> list[Any]:
    """What is printed of a comparison."""
    problem, plan = found.problem, found.plan
    ratio = problem.delta / problem.smoothness
    head = f"{problem.what}; delta = {problem.delta:.3g}, L = {problem.smoothness:.3g}, delta/L = {ratio:.3g}"
    lines: list[Any] = [head, *(table(found, error) for error in plan.errors)]
    diverged = [f"{METHODS[key].name} {one.diverged}" for key, one in found.methods.items() if one.diverged]
    if diverged:
        lines.append(f"settings that diverged, of {plan.budget} each: {', '.join(diverged)}")
    return lines


def sweep_lines(rows: Sequence[sweeping.Row]) -> list[Any]:
    """What is printed of the sweep."""
    hero = METHODS[sweeping.HERO].name
    return [Markdown(sweeping.markdown(rows)), f"∞: only {hero} arrives, 0: only the rival does, –: neither"]


def table(found: ComparisonResult, error: float) -> Table:
    """The cost of every method until the target; each number has its own best setting."""
    plan = found.plan
    goal = f"{METRICS[plan.metric].label} {plan.text(error)}"
    costs = {key: [found.entry(key, error, measure) for measure in MEASURES] for key in found.methods}
    rows = [
        [
            METHODS[key].name + (" (nothing to tune)" if key in found.untuned else ""),
            *(amount(cell.median, measure) for cell, measure in zip(costs[key], MEASURES, strict=True)),
        ]
        for key in sorted(costs, key=lambda key: costs[key][0].median)
    ]
    title = f"to {goal}: median of {plan.seeds} seeds, each number tuned over {plan.budget} settings"
    return numbers_table(("method", *MEASURES.values()), rows, title=title)


def _print(lines: Sequence[Any], folder: Path, quiet: bool) -> int:
    console = Console()
    for line in () if quiet else lines:
        console.print(line, highlight=False)
    print_folder(console, folder, quiet)
    return 0
