"""The experiment of the paper's section 6: its curves, its figure, and a test of its "Observations"."""

import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.app.arrival import percentiles
from fedspam.app.folders import csv_text, make_folder, write_manifest
from fedspam.app.reproduce.experiment import LABELS, READING, ROUNDS, SEEDS, SETTINGS, SOLVERS, Curves, experiment
from fedspam.app.reproduce.observations import Observation, observations
from fedspam.simulation import records


class Reproduction(NamedTuple):
    """The result of `reproduce`."""

    folder: Path
    curves: Curves
    observations: list[Observation]


def reproduce(
    folder: str | Path,
    *,
    seeds: int = SEEDS,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Reproduction:
    """Run the experiment and write figure.png, figure.svg, curves.csv, observations.csv, manifest.json and command."""
    from fedspam.app import figures

    folder = make_folder(folder)
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
    write_manifest(
        folder,
        "fedspam reproduce",
        began,
        seeds=list(range(seed, seed + seeds)),
        rounds={setting.name: rounds * setting.stretch for setting in SETTINGS},
        delta=deltas.tolist(),
        dtype="float64",
        reading=" ".join(READING),
        holds=sum(observation.holds for observation in found),
        fails=[observation.sentence for observation in found if not observation.holds],
    )
    return Reproduction(folder, curves, found)


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
