"""The paper's experiment, section 6: its curves, its figure, and its "Observations" put to the test."""

import csv
import datetime as dt
import io
import json
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.app.reproduce.experiment import LABELS, READING, ROUNDS, SEEDS, SETTINGS, SOLVERS, Curves, experiment
from fedspam.app.reproduce.observations import Observation, observations, percentiles
from fedspam.simulation import records


class Reproduction(NamedTuple):
    """What `reproduce` leaves behind."""

    folder: Path
    curves: Curves
    observations: list[Observation]


def new_folder(parent: str | Path = "runs") -> Path:
    """A folder name that says when it was made and that nothing has yet."""
    stem = f"reproduce-{dt.datetime.now():%Y%m%d-%H%M%S}"
    names = (Path(parent) / (stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    return next(path for path in names if not path.exists())


def reproduce(
    folder: str | Path,
    *,
    seeds: int = SEEDS,
    rounds: int = ROUNDS,
    seed: int = 0,
    progress: Callable[[], None] | None = None,
) -> Reproduction:
    """Run the experiment and write figure.png, figure.svg, curves.csv, observations.csv and manifest.json."""
    from fedspam.app import figures

    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise records.RecordError(f"cannot make the folder {folder}: {error.strerror}; choose another") from error
    began = time.perf_counter()
    curves, deltas = experiment(seeds, rounds, seed, progress)
    found = observations(curves)
    records.write(folder / "curves.csv", _curves_csv(curves, seed).encode())
    records.write(folder / "observations.csv", _observations_csv(found).encode())
    panels = [
        figures.Panel(
            rf"$\gamma = {setting.ratio:g}/\delta,\quad p = {setting.fresh_weight:g}$",
            {label: figures.Band(*_band(curves[setting.name, label])) for label in SOLVERS},
        )
        for setting in SETTINGS
    ]
    what = f"Median over {seeds} seeds, each with its own problem and draws of clients; bands: 10th to 90th percentile."
    figures.save(figures.draw_ridge(panels, LABELS, (what, *READING)), folder, "figure")
    facts = records.manifest(
        command="fedspam reproduce",
        seeds=list(range(seed, seed + seeds)),
        rounds={setting.name: rounds * setting.stretch for setting in SETTINGS},
        delta=deltas.tolist(),
        dtype="float64",
        reading=" ".join(READING),
        holds=sum(observation.holds for observation in found),
        fails=[observation.sentence for observation in found if not observation.holds],
        finished=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        seconds=round(time.perf_counter() - began, 1),
    )
    records.write(folder / "manifest.json", json.dumps(facts, indent=1, ensure_ascii=False).encode())
    return Reproduction(folder, curves, found)


def _band(curve: Float[np.ndarray, "seeds rounds"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    low, median, high = percentiles(curve, (10, 50, 90), axis=0)
    return median, low, high


def _curves_csv(curves: Curves, seed: int) -> str:
    """One row a round: median, 10th and 90th percentile, and every seed's own value."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    count = next(iter(curves.values())).shape[0]
    header = ["panel", "gamma_delta", "fresh_weight", "prox", "round", "median", "low", "high"]
    table.writerow([*header, *(f"seed_{number}" for number in range(seed, seed + count))])
    for setting in SETTINGS:
        for label in SOLVERS:
            curve = curves[setting.name, label]
            name = (setting.name, setting.ratio, setting.fresh_weight, label)
            for k, (values, *around) in enumerate(zip(curve.T, *_band(curve), strict=True)):
                table.writerow([*name, k, *(f"{value:.9e}" for value in (*around, *values))])
    return text.getvalue()


def _observations_csv(found: list[Observation]) -> str:
    text = io.StringIO()
    names = [field.name for field in fields(Observation)]
    table = csv.writer(text, lineterminator="\n")
    table.writerow(names)
    table.writerows([getattr(observation, name) for name in names] for observation in found)
    return text.getvalue()
