"""The experiment of the paper's section 6: its curves, its figure, and a test of its "Observations"."""

import argparse
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path

import numpy as np
from jaxtyping import Float
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from fedspam.app import exit_codes
from fedspam.app.arrival import percentiles
from fedspam.app.folders import csv_text, make_folder, new_folder, write_manifest
from fedspam.app.reproduce.experiment import LABELS, READING, SETTINGS, SOLVERS, Curves, experiment
from fedspam.app.reproduce.observations import Observation, observations
from fedspam.app.terminal import print_folder, progress_bar
from fedspam.simulation import records

FILES = ("figure.png", "figure.svg", "curves.csv", "observations.csv", "manifest.json", "command")


def show(options: argparse.Namespace) -> int:
    """Run the experiment, write its files, print the verdicts, and return the exit code."""
    folder = make_folder(options.out or new_folder("reproduce"))
    with progress_bar(options.quiet) as bar:
        task = bar.add_task("compiling and running", total=options.seeds * len(SOLVERS))
        found = reproduce(folder, options.seeds, options.rounds, options.seed, lambda: bar.advance(task))
    console = Console()
    if not options.quiet:
        console.print(table(found, options.seeds))
        holding = sum(observation.holds for observation in found)
        style = "bold green" if holding == len(found) else "bold red"
        console.print(Text(f"{holding} of {len(found)} sentences hold", style=style))
    print_folder(console, folder, options.quiet, FILES)
    return exit_codes.verdict(all(observation.holds for observation in found))


def reproduce(
    folder: Path, seeds: int, rounds: int, seed: int = 0, progress: Callable[[], None] = lambda: None
) -> list[Observation]:
    """Run the experiment and write `FILES`."""
    from fedspam.app import figures

    began = time.perf_counter()
    curves, deltas = experiment(seeds, rounds, seed, progress)
    found = observations(curves)
    records.write(folder / "curves.csv", _curves_csv(curves, seed).encode())
    names = [field.name for field in fields(Observation)]
    rows = ([getattr(observation, name) for name in names] for observation in found)
    records.write(folder / "observations.csv", csv_text(names, rows).encode())
    panels = [
        figures.Panel(
            rf"$\gamma = {setting.ratio:g}/\delta,\quad p = {setting.fresh_weight:g}$",
            {label: figures.Band(*_band(curves[setting.name, label])) for label in SOLVERS},
        )
        for setting in SETTINGS
    ]
    what = f"Median over {seeds} seeds, each with its own problem and draws of clients; bands: 10th to 90th percentile."
    figures.save(figures.draw_ridge(panels, LABELS, (what, *READING)), folder, "figure")
    lengths = {setting.name: rounds * setting.stretch for setting in SETTINGS}
    fails = [observation.sentence for observation in found if not observation.holds]
    write_manifest(
        folder, "fedspam reproduce", began, seeds=list(range(seed, seed + seeds)), rounds=lengths,
        delta=deltas.tolist(), dtype="float64", reading=" ".join(READING), holds=len(found) - len(fails), fails=fails,
    )  # fmt: skip
    return found


def table(observations: list[Observation], seeds: int) -> Table:
    """One row per sentence: what the paper says, what was measured, the rule, and the verdict."""
    title = f"The paper's observations on its figure, measured over {seeds} seed{'s' if seeds > 1 else ''}"
    columns = ("panel", Column("the paper says", ratio=2), Column("measured", ratio=3), "verdict")
    shown = Table(*columns, title=title, title_justify="left", show_lines=True)
    for observation in observations:
        measured = Text(observation.measured)
        measured.append(f"\nholds if: {observation.rule}", style="dim")
        verdict = Text("holds", style="green") if observation.holds else Text("fails", style="bold red")
        shown.add_row(observation.panel, observation.sentence, measured, verdict)
    return shown


def _band(curve: Float[np.ndarray, "seeds rounds"]) -> Float[np.ndarray, "3 rounds"]:
    """Median, 10th and 90th percentile."""
    return percentiles(curve, (50, 10, 90))


def _curves_csv(curves: Curves, seed: int) -> str:
    """One row per round: median, 10th and 90th percentile, and the value of each seed."""
    count = next(iter(curves.values())).shape[0]
    header = ["panel", "gamma_delta", "fresh_weight", "prox", "round", "median", "low", "high"]
    rows = (
        [setting.name, setting.ratio, setting.fresh_weight, label, k, *(f"{value:.9e}" for value in values)]
        for setting in SETTINGS
        for label in SOLVERS
        for k, values in enumerate(np.concatenate([_band(curves[setting.name, label]), curves[setting.name, label]]).T)
    )
    return csv_text([*header, *(f"seed_{number}" for number in range(seed, seed + count))], rows)
