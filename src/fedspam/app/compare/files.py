"""The CSV files of a comparison: the settings that were tried, the curves, and the costs."""

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedspam._internal import describe
from fedspam.app.compare.measures import MEASURES, Trial
from fedspam.app.compare.tuning import ComparisonPlan
from fedspam.app.folders import csv_text


def number(value: float) -> str:
    """A number with ten digits; empty if it is not finite, as the cost of a target that was never reached."""
    return f"{value:.10g}" if np.isfinite(value) else ""


def setting_text(setting: Mapping[str, Any]) -> str:
    return json.dumps(describe.describe(dict(setting)), sort_keys=True)


def chosen(entry: Any, trials: Mapping[str, Sequence[Trial]]) -> tuple[int | None, str]:
    """The trial of an entry and its setting; None and no text if no setting arrived."""
    return entry.trial, "" if entry.trial is None else setting_text(trials[entry.method][entry.trial - 1].setting)


def tuning(trials: Mapping[str, Sequence[Trial]], plan: ComparisonPlan) -> str:
    """Every setting in the order of trial, with its median costs on the seeds for tuning."""
    pairs = [(error, measure) for error in plan.errors for measure in MEASURES]
    header = ["method", "trial", "status", "final_error", *(f"{m}_to_{plan.text(e)}" for e, m in pairs), "setting"]
    rows = []
    for trial in itertools.chain(*trials.values()):
        numbers = (trial.curves.final, *(trial.cost(measure, error) for error, measure in pairs))
        rows.append([trial.method, trial.number, trial.status, *map(number, numbers), setting_text(trial.setting)])
    return csv_text(header, rows)


def curves(finals: Mapping[str, Mapping[int, Trial]], plan: ComparisonPlan) -> str:
    """Every probe of the chosen settings on the reported seeds. After divergence an error may be inf or nan."""
    header = ["method", "trial", "seed", "rounds", "error", "bytes_up", "bytes", "gradients"]
    rows = (
        [key, chosen, seed, int(k), f"{error:.9e}", int(up), int(both), f"{gradients:.10g}"]
        for key, runs in finals.items()
        for chosen, trial in runs.items()
        for i, seed in enumerate(plan.reported)
        for error, k, up, both, gradients in zip(*(part[i] for part in trial.curves[:5]), strict=True)
    )
    return csv_text(header, rows)


def table(entries: Iterable[Any], trials: Mapping[str, Sequence[Trial]], plan: ComparisonPlan) -> str:
    """One row per method, target and measure: the median over seeds, its band, and the setting."""
    header = ["method", "target", "measure", "median", "low", "high", "reached", "seeds", "trial", "setting"]
    rows = []
    for entry in entries:
        where = (entry.method, plan.text(entry.target), entry.measure)
        rows.append([*where, *map(number, entry.cell[:3]), *entry.cell[3:], *chosen(entry, trials)])
    return csv_text(header, rows)
