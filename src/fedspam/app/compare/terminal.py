"""The output of `fedspam compare`: a progress bar while it runs, then one table per target."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from fedspam.app.compare import MEASURES, ComparisonResult, compare, load, waves
from fedspam.app.compare import sweep as sweeping
from fedspam.app.compare.options import CompareOptions
from fedspam.app.folders import new_folder
from fedspam.app.terminal import progress_bar
from fedspam.methods import METHODS


def show(
    options: CompareOptions,
    *,
    data: Path | None = None,
    folder: Path | None = None,
    command: str = "",
    quiet: bool = False,
    console: Console | None = None,
) -> int:
    """Run a comparison or the sweep, print its tables, and return the exit code 0."""
    console = Console() if console is None else console
    folder = new_folder("sweep" if options.problem is None else "compare") if folder is None else folder
    with progress_bar(quiet) as progress:
        if options.problem is None:
            lines = _sweep(options, folder, command, progress)
        else:
            lines = _compare(options, options.problem, data, folder, command, progress)
    if quiet:
        console.print(str(folder), highlight=False, soft_wrap=True)
        return 0
    for line in lines:
        console.print(line, highlight=False)
    names = ", ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
    console.print(f"{folder}: {names}", highlight=False, soft_wrap=True)
    return 0


def _compare(
    options: CompareOptions, problem: str, data: Path | None, folder: Path, command: str, progress: Progress
) -> list[Any]:
    plan = options.plan
    task = progress.add_task(f"loading {problem}", total=None)
    loaded = load(problem, data)
    progress.update(task, description="compiling and running", total=len(options.methods) * (waves(plan.budget) + 1))
    found = compare(loaded, options.methods, plan, folder, command=command, progress=lambda: progress.advance(task))
    ratio = loaded.delta / loaded.smoothness
    head = f"{loaded.what}; delta = {loaded.delta:.3g}, L = {loaded.smoothness:.3g}, delta/L = {ratio:.3g}"
    return [head, *(table(found, error) for error in plan.errors), *remarks(found)]


def _sweep(options: CompareOptions, folder: Path, command: str, progress: Progress) -> list[Any]:
    task = progress.add_task("compiling and running", total=sweeping.steps(len(options.methods), options.plan))
    rows = sweeping.sweep(
        folder, options.methods, options.plan, command=command, progress=lambda: progress.advance(task)
    )
    tables = [quotients(rows, measure) for measure in sweeping.SHOWN]
    return [*tables, *standing(rows)]


def quotients(rows: Sequence[sweeping.Row], measure: str) -> Table:
    """The cost of each rival relative to SPAM-PP; red if SPAM-PP loses."""
    methods = list(dict.fromkeys(row.method for row in rows if row.method != sweeping.HERO))
    hero = METHODS[sweeping.HERO].name
    shown = Table(
        title=f"{MEASURES[measure]}: the cost of {hero}, and that of each rival relative to it (inf: only {hero} "
        "arrives, 0: only the rival does, -: neither)",
        title_justify="left",
    )
    for name in ("problem", "delta/L", "target", hero, *(METHODS[key].name for key in methods)):
        shown.add_column(name, justify="left" if name == "problem" else "right")
    for own, found in sweeping.quotients(rows, measure).items():
        cells = [amount(own.median, measure), *(_quotient(found[key]) for key in methods)]
        shown.add_row(own.family, own.case, f"{own.target:g}", *cells)
    return shown


def standing(rows: Sequence[sweeping.Row]) -> list[str]:
    """One line per rival: how often SPAM-PP wins, ties and loses."""
    lines = []
    both = {measure: sweeping.tally(rows, measure) for measure in sweeping.SHOWN}
    for key in next(iter(both.values())):
        parts = [
            f"in {measure} {count[key]['wins']} won, {count[key]['ties']} tied, {count[key]['loses']} lost"
            for measure, count in both.items()
        ]
        lines.append(f"{METHODS[sweeping.HERO].name} against {METHODS[key].name}: {'; '.join(parts)}")
    return lines


def _quotient(ratio: float) -> str:
    text = "-" if np.isnan(ratio) else f"{ratio:.2g}" if ratio < 10 else f"{ratio:.0f}"
    return {"loses": f"[red]{text}[/]", "wins": f"[green]{text}[/]"}.get(sweeping.verdict(ratio), text)


def table(found: ComparisonResult, error: float) -> Table:
    """The cost of every method until the target; each number has its own best setting."""
    plan = found.plan
    goal = f"relative gradient norm {error:g}" if plan.metric == "gradient" else f"accuracy {plan.label(error):g}"
    shown = Table(
        title=f"to {goal}: median of {plan.seeds} seeds, each number tuned over {plan.budget} settings",
        title_justify="left",
    )
    shown.add_column("method")
    for label in MEASURES.values():
        shown.add_column(label, justify="right")
    costs = {key: [found.entry(key, error, measure).cell for measure in MEASURES] for key in found.trials}
    for key in sorted(costs, key=lambda key: costs[key][0].median):
        cells = [amount(cell.median, measure) for cell, measure in zip(costs[key], MEASURES, strict=True)]
        shown.add_row(METHODS[key].name, *cells)
    return shown


def remarks(found: ComparisonResult) -> list[str]:
    diverged = {key: sum(trial.status == "diverged" for trial in tried) for key, tried in found.trials.items()}
    named = [f"{METHODS[key].name} {count}" for key, count in diverged.items() if count]
    return [f"settings that diverged, of {found.plan.budget} each: {', '.join(named)}"] if named else []


def amount(value: float, measure: str) -> str:
    """A number as text: bytes with their unit, others with separators of thousands."""
    if not np.isfinite(value):
        return "-"
    if measure in ("bytes", "bytes_up"):
        for unit in ("B", "kB", "MB"):
            if value < 1000:
                return f"{value:.3g} {unit}"
            value /= 1000
        return f"{value:.3g} GB"
    return f"{value:,.0f}" if value >= 100 or value == round(value) else f"{value:.1f}"
