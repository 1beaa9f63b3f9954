"""Folders that a report can be made from: of `simulate`, and of `fedspam run`, `compare`, `reproduce` and `theory`."""

import csv
import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fedspam._internal import files, strict
from fedspam._internal.strict import MIB
from fedspam.app.arrival import percentiles
from fedspam.app.experiment.scores import LABELS
from fedspam.app.report.provenance import command_of, configuration_file, method_name, plain_math, sites
from fedspam.app.report.series import AskedTarget, Curve, ModelScores, Paid, Series, Source, TargetCell, rises
from fedspam.methods import METHODS
from fedspam.simulation import records
from fedspam.simulation.metrics import METRICS
from fedspam.simulation.status import COMPLETED, Status
from fedspam.theory import certificates

TABLE = 512 * MIB  # the largest CSV that is read
PERCENTS = (5, 25, 50, 75, 95)  # over clients, for probes with one value per client
QUANTILE = re.compile(r"(.+?)[._](?:q|p)(\d{1,2})")  # a probe that is a quantile: loss.q05, loss_p95
Row = Mapping[str, str]  # of a CSV file
# what `fedspam run` calls its probes, and what a report calls them, as it does in comparisons
RENAMED = {
    **{name: metric.label for name, metric in METRICS.items()},
    "accuracy.clients": "accuracy, mean over clients",
    "test_loss": "test loss",
    "test_loss.clients": "test loss, mean over clients",
}
PRICES = ("floats_up", "floats_down", "bytes_up", "bytes_down", "gradients", "seconds", "void")


class NoCurvesError(records.RecordError):
    """A folder without curves, such as that of ``fedspam compare --sweep``, or of a run that did not begin."""


def read(folder: str | Path) -> Source:
    """Read a result folder; `RecordError` if fedspam did not write it."""
    try:
        source = _read(Path(folder))
        return replace(source, command=command_of(source.folder, source.facts))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise records.RecordError(
            f"{folder} holds files that do not fit together ({type(error).__name__}: {error}); run it again"
        ) from error


def _read(folder: Path) -> Source:
    if not folder.is_dir():
        raise NoCurvesError(f"{folder} is not a folder; give one that `fedspam run` or `fedspam compare` wrote")
    if (folder / "rows.bin").exists():
        return _run(folder)
    if not (folder / "manifest.json").exists():
        inside = sorted(path.parent.name for path in folder.glob("*/manifest.json"))
        hint = f"did you mean {folder / inside[0]}?" if inside else "give one that `fedspam run` wrote"
        raise NoCurvesError(f"{folder} holds no manifest.json, so it is not the folder of a run; {hint}")
    if (folder / "curves.csv").exists():
        header, rows = table_of(folder / "curves.csv")
        if "panel" in header:
            return _reproduction(folder, rows)
        if {"method", "trial", "seed", "rounds", "error"} <= set(header):
            return _comparison(folder, rows)
        if {"theorem", "corrected"} <= set(header):
            return _theory(folder, rows)
    try:
        status = Status.from_json(records.read(folder)[0].get("status"))
    except records.RecordError:  # it holds no run
        raise NoCurvesError(
            f"{folder} holds neither rows.bin nor a curves.csv that a report can be made from; give a folder of "
            "`fedspam run`, `compare`, `reproduce` or `theory`"
        ) from None
    raise NoCurvesError(f"the run in {folder} has no state yet (status: {status}); resume it first")


# --- a run -----------------------------------------------------------------------------------------------------------


def _run(folder: Path) -> Source:
    facts, rows, probes = records.read(folder)
    identity = facts.pop("identity")
    rounds = max((len(column) for column in rows.values()), default=0)
    script = configuration_file(folder)
    if script is not None:  # the probes are those of `fedspam run`
        probes = {RENAMED.get(name, name): column for name, column in probes.items()}
    numbers = _probes(probes, identity, rounds, 1)
    series = Series(
        name=method_name(identity.get("method")) or folder.name,
        paid={**_seconds(folder), **_paid(rows, rounds)},  # the time of a federation, where rows have it
        metrics={name: Curve(at, value) for name, at, value in numbers if not QUANTILE.fullmatch(name)},
        details={
            name: Curve(np.arange(1.0, len(column) + 1), _float(column))
            for name, column in rows.items()
            if name not in PRICES and _has_numbers(column, 1) and not name.startswith("certificate.")
        },
        clients=_clients(probes, identity, rounds),
        certificates=_certificates(rows),
    )
    void = int(np.sum(rows.get("void", np.zeros(1))))
    told = f"{folder.name}: {void} of {rounds} rounds were void: their bytes count, but they had no effect"
    notes = [told] if void else []
    status = Status.from_json(facts.pop("status", None))
    facts |= sites(folder)
    summary = _json(folder / "summary.json") if os.path.lexists(folder / "summary.json") else {}
    asked = None
    if target := summary.get("target"):
        at, metric = target["round"], str(target["metric"])
        asked = AskedTarget(RENAMED.get(metric, metric), float(target["value"]), None if at is None else float(at))
    return Source(
        folder, "run", status, [series], facts, identity, script=script, notes=notes, tested=_tested(folder, summary),
        asked=asked,
    )  # fmt: skip


def _tested(folder: Path, facts: Mapping[str, Any]) -> ModelScores:
    """What summary.json and clients.csv say of the trained model; nothing where they are not there."""
    columns, rows = table_of(folder / "clients.csv") if os.path.lexists(folder / "clients.csv") else ([], [])
    numbers = {label: facts.get(name) for name, label in LABELS.items()}
    cell = lambda column, text: text if column == "client" else _number(text)
    return ModelScores(
        {label: float(value) for label, value in numbers.items() if isinstance(value, int | float)},
        facts.get("confusion") or (),
        facts.get("classes") or (),
        columns,
        [[cell(column, row[column]) for column in columns] for row in rows],
    )


def _paid(rows: Mapping[str, np.ndarray], rounds: int) -> dict[str, Paid]:
    """Running sums. The rows do not include the cost of the start of the method."""
    at = np.arange(rounds + 1.0)
    running = lambda column: Paid(at, np.concatenate([[0.0], np.cumsum(_float(column))]))
    columns = {name: rows[name] for name in ("bytes_up", "gradients", "seconds") if name in rows}
    if "bytes_up" in rows:
        columns["bytes"] = rows["bytes_up"] + rows["bytes_down"]
    return {"rounds": Paid(at, at), **{name: running(column) for name, column in columns.items()}}


def _seconds(folder: Path) -> dict[str, Paid]:
    """Seconds of the rounds without compilation: known where rows were saved, linear in between."""
    at, amount, total = [], [], 0.0
    for frame in files.frames(folder / "rows.bin")[0]:
        try:
            spent, done = float(frame.facts["seconds"]), int(frame.facts["round"])
        except (KeyError, ValueError):
            return {}
        total += spent if math.isfinite(spent) and spent > 0 else 0.0
        at.append(float(done))
        amount.append(total)
    return {"seconds": Paid(np.array(at), np.array(amount) - amount[0])} if len(at) > 1 else {}


def _probes(
    probes: Mapping[str, np.ndarray], identity: Mapping[str, Any], rounds: int, ndim: int
) -> Iterable[tuple[str, np.ndarray, np.ndarray]]:
    """Name, rounds and values of the probes that are numbers, or vectors."""
    every = identity.get("every")
    every = every if isinstance(every, int) and every > 0 else 1
    for name, column in probes.items():
        if _has_numbers(column, ndim):
            yield name, np.minimum(every * np.arange(float(len(column))), max(rounds, 1)), _float(column)


def _clients(probes: Mapping[str, np.ndarray], identity: Mapping[str, Any], rounds: int) -> dict[str, dict[int, Curve]]:
    """Percentiles over clients: of probes with one value per client, and of probes named like loss.q05."""
    found: dict[str, dict[int, Curve]] = {}
    for name, at, value in _probes(probes, identity, rounds, 2):
        levels = percentiles(value, PERCENTS, axis=1)
        found[name] = {percent: Curve(at, level) for percent, level in zip(PERCENTS, levels, strict=True)}
    for name, at, value in _probes(probes, identity, rounds, 1):
        if match := QUANTILE.fullmatch(name):
            found.setdefault(match[1], {})[int(match[2])] = Curve(at, value)
    return {name: dict(sorted(levels.items())) for name, levels in found.items() if len(levels) > 1}


def _certificates(rows: Mapping[str, np.ndarray]) -> dict[str, Any] | None:
    """How many local solutions passed their test, over all rounds and along them."""
    column = lambda name: _float(rows[f"certificate.{name}"])
    if "certificate.certified" not in rows or not len(rows["certificate.certified"]):
        return None
    certified, at = column("certified"), np.arange(1.0, len(rows["certificate.certified"]) + 1)
    window = max(1, min(50, len(certified) // 10))
    share = np.convolve(certified, np.ones(window) / window, mode="valid")
    along = Curve(at[window - 1 :], share)
    found: dict[str, Any] = {"share": float(np.mean(certified)), "window": window, "along": along}
    with np.errstate(divide="ignore", invalid="ignore"):  # minibatch clients have infinite step sizes
        try:
            judged = certificates(rows)
        except ValueError:  # not all of a certificate was recorded, or every round is void
            return found
        ratio = column("stationarity") * column("step_size") / column("distance")
    return found | {
        "decreased": judged.decreased,
        "passed": judged.relative,
        "floor": judged.floor,
        "epsilons": judged.epsilons,
        "relative": Curve(at, ratio),
        "steps": float(np.mean(column("steps"))) if "certificate.steps" in rows else None,
    }


# --- a comparison ----------------------------------------------------------------------------------------------------


def _comparison(folder: Path, rows: Sequence[Row]) -> Source:
    facts = _json(folder / "manifest.json")
    plan = facts.pop("plan", {})
    if not isinstance(plan, dict):
        raise records.RecordError(f"{folder / 'manifest.json'} is damaged: plan is {plan!r:.40}, not an object")
    metric = METRICS.get(str(plan.get("metric")), METRICS["gradient"]).label
    goals, shown = _costs(folder, metric)
    series = []
    for (method, trial), tried in _grouped(rows, "method", "trial"):
        column = lambda name: np.array([_column(run, name) for _, run in _grouped(tried, "seed")])
        try:
            band = percentiles(column("error"), (10, 50, 90))  # of errors: one that is NaN is the worst, not the best
            low, value, high = 1 - band[::-1] if rises(metric) else band
            at = np.median(column("rounds"), axis=0)
            paid = {name: Paid(at, np.median(column(name), axis=0)) for name in ("bytes_up", "bytes", "gradients")}
        except (KeyError, ValueError) as error:
            path = folder / "curves.csv"
            raise records.RecordError(f"{path} is damaged at {method}, trial {trial}: {error}") from None
        only = shown.get(method)
        chosen = None if only is None else tuple(measure for measure, best in only.items() if best == trial)
        if chosen != ():
            metrics, paid = {metric: Curve(at, value, low, high)}, {"rounds": Paid(at, at), **paid}
            series.append(Series(_name(method), paid, metrics, only=chosen, trial=int(trial)))
    problem = facts.pop("problem", {})
    notes = [str(problem["what"])] if isinstance(problem, dict) and "what" in problem else []
    notes.append(
        "Each axis shows every method with its best setting for that axis and the hardest target that it reached in "
        "tuning; in the table of costs each number has its own best setting. Medians of the seeds, and 10th to 90th "
        "percentiles."
    )
    configuration = {"problem": problem, "plan": plan, **{name: facts.pop(name, None) for name in ("methods", "seeds")}}
    return Source(folder, "comparison", COMPLETED, series, facts, configuration, goals=goals, notes=notes)


def _costs(folder: Path, metric: str) -> tuple[list[TargetCell], dict[str, dict[str, str]]]:
    """The costs in table.csv, and by method and measure the trial of the hardest target that was reached.

    The targets are as the user gave them: the highest accuracy is the hardest, and the lowest loss.
    """
    rows = table_of(folder / "table.csv")[1] if os.path.lexists(folder / "table.csv") else []
    goals = []
    for row in rows:
        cells = (_number(row.get(name)) for name in ("median", "low", "high"))
        band = (value if math.isfinite(value) else None for value in cells)
        goals.append(TargetCell(_name(row["method"]), metric, _number(row["target"]), row["measure"], *band))
    shown: dict[str, dict[str, str]] = {}
    for row in sorted(rows, key=lambda row: _number(row["target"]), reverse=not rises(metric)):
        if row.get("trial"):
            shown.setdefault(row["method"], {})[row["measure"]] = row["trial"]
    return goals, shown


def _name(key: str) -> str:
    return METHODS[key].name if key in METHODS else key


# --- the paper's experiment ------------------------------------------------------------------------------------------


def _reproduction(folder: Path, rows: Sequence[Row]) -> Source:
    facts = _json(folder / "manifest.json")
    series = []
    for (_, prox), line in _grouped(rows, "panel", "prox"):
        setting = f"γδ = {line[0]['gamma_delta']}, p = {line[0]['fresh_weight']}"
        solver = "exact prox" if prox == "exact" else f"{prox} local step{'s' if prox != '1' else ''}"
        at, *band = (_column(line, name) for name in ("round", "median", "low", "high"))
        curve = Curve(at, *band)
        series.append(Series(f"{solver}, {setting}", {"rounds": Paid(at, at)}, {"relative gradient norm": curve}))
    reading = facts.pop("reading", None)
    names = ("seeds", "rounds", "delta", "dtype", "holds", "fails")
    configuration = {name: facts.pop(name, None) for name in names}
    notes = [plain_math(str(reading))] if reading else []
    return Source(folder, "reproduction", COMPLETED, series, facts, configuration, notes=notes)


# --- the bounds of the theorems -------------------------------------------------------------------------------------


def _theory(folder: Path, rows: Sequence[Row]) -> Source:
    facts = _json(folder / "manifest.json")
    metric, series = "mean squared gradient norm", []
    for (theorem,), line in _grouped(rows, "theorem"):
        at, bound, *band = (_column(line, name) for name in ("rounds", "corrected", "mean", "low", "high"))
        metrics, bounds = {metric: Curve(at, *band)}, {metric: Curve(at, bound)}
        series.append(Series(f"Theorem {theorem}", {"rounds": Paid(at, at)}, metrics, bounds=bounds))
    configuration = next((facts.pop(name) for name in ("options", "asked") if name in facts), {})
    return Source(folder, "theory", COMPLETED, series, facts, configuration)


# --- files -----------------------------------------------------------------------------------------------------------


def _json(path: Path) -> dict[str, Any]:
    try:
        return strict.json_object(files.read(path, size=records.MANIFEST), size=records.MANIFEST, depth=records.DEPTH)
    except strict.MalformedError as error:
        raise records.RecordError(f"{path} is damaged: {error}") from None


def table_of(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    try:
        text = files.read(path, size=TABLE).decode("utf-8")
        rows = csv.DictReader(text.splitlines(), strict=True)
        if not rows.fieldnames:
            raise csv.Error("it has no header")
        return list(rows.fieldnames), list(rows)
    except (UnicodeDecodeError, csv.Error) as error:
        raise records.RecordError(f"{path} is damaged: {error}") from None


def _grouped(rows: Iterable[Row], *names: str) -> Iterable[tuple[tuple[str, ...], list[Row]]]:
    """The rows with equal values in some columns, in order of appearance."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return groups.items()


def _column(rows: Iterable[Row], name: str) -> np.ndarray:
    return np.array([_number(row[name]) for row in rows])


def _number(text: str | None) -> float:
    try:
        return float(text or "nan")
    except ValueError:
        return math.nan


def _has_numbers(column: np.ndarray, ndim: int) -> bool:
    return column.ndim == ndim and column.dtype.kind in "fiub"


def _float(column: Any) -> np.ndarray:
    return np.asarray(column, np.float64)
