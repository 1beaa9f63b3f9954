"""What a report shows, for every kind of folder: curves, their costs, and the facts of the run."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.app import arrival
from fedspam.simulation.status import Status

MEASURES: Mapping[str, str] = {**arrival.MEASURES, "seconds": "time"}
MOST = 1300  # points of a curve on a page

Vector = Float[np.ndarray, " points"]


class Curve(NamedTuple):
    """Values along a run: the rounds, the values, and optionally a band."""

    at: Vector
    value: Vector
    low: Vector | None = None
    high: Vector | None = None


class Paid(NamedTuple):
    """The cost after so many rounds; linear between the points."""

    at: Vector
    amount: Vector

    def after(self, rounds: Vector) -> Vector:
        return np.interp(rounds, self.at, self.amount)


@dataclass(frozen=True)
class Series:
    """One run or setting: one color of the report."""

    name: str  # in the legend
    paid: Mapping[str, Paid]  # the costs, by measure
    metrics: Mapping[str, Curve]  # the probes by name: a loss, a gradient norm, an accuracy
    details: Mapping[str, Curve] = field(default_factory=dict)  # of each round: its step size, its fresh weight
    clients: Mapping[str, Mapping[int, Curve]] = field(default_factory=dict)  # by metric, percentiles over clients
    certificates: Mapping[str, Any] | None = None  # of the local solutions, if they were recorded
    bounds: Mapping[str, Curve] = field(default_factory=dict)  # by metric, the theoretical bound
    only: tuple[str, ...] | None = None  # the measures it is drawn against; None for all
    trial: int | None = None  # its number in the tables of a comparison, which may draw a method with several settings

    def against(self, measure: str) -> bool:
        """Whether it is drawn against a measure."""
        return measure in self.paid and (self.only is None or measure in self.only)


class TargetCell(NamedTuple):
    """The cost of one series until one target; None if it never arrived or did not record the measure."""

    series: str
    metric: str
    target: float
    measure: str
    paid: float | None
    low: float | None = None
    high: float | None = None


class AskedTarget(NamedTuple):
    """The target that a run was given, and the round in which it arrived there; None if it did not."""

    metric: str
    value: float
    round: float | None


class ModelScores(NamedTuple):
    """What the test rows say of the trained model."""

    scores: Mapping[str, float] = {}  # F1, AUC, the calibration error, and for numbers RMSE, MAE and R², by their names
    confusion: Sequence[Sequence[int]] = ()  # for each true class how often each class was predicted
    classes: Sequence[str] = ()  # their names
    columns: Sequence[str] = ()  # the header of the table of clients
    clients: Sequence[Sequence[str | float | None]] = ()  # its rows; None where a client has no test rows


@dataclass(frozen=True)
class Source:
    """The contents of a folder."""

    folder: Path
    kind: str  # 'run', 'comparison', 'reproduction' or 'theory'
    status: Status  # how it ended
    series: Sequence[Series]
    facts: dict[str, Any]  # the manifest: versions, device, dates
    configuration: Mapping[str, Any]  # what was run
    command: str | None = None  # that made it, if it is known
    script: str | None = None  # a configuration file that `fedspam run` takes
    goals: Sequence[TargetCell] = ()  # costs until targets that a comparison tuned
    notes: Sequence[str] = ()  # lines above the curves
    tested: ModelScores = field(default_factory=ModelScores)
    asked: AskedTarget | None = None  # the target of a run, if it was given one


def rises(metric: str) -> bool:
    """Whether more is better, as for an accuracy or a reward; for all other metrics less is."""
    return any(word in metric.lower() for word in ("accuracy", "auc", "f1", "recall", "precision", "reward", "r²"))


def thin(curve: Curve, most: int = MOST) -> Curve:
    """The curve with at most so many points: all early ones, then the first and the extremes of each piece.

    The early ones are all kept, since a logarithmic axis spreads them.

    >>> long = Curve(np.arange(10000.0), np.sin(np.arange(10000.0)))
    >>> len(thin(long).at) < 1400, bool(thin(long).value.max() == long.value.max())
    (True, True)
    """
    count = len(curve.at)
    if count <= most:
        return curve
    early = most // 13
    value = np.where(np.isfinite(curve.value), curve.value, -np.inf)
    kept = {*range(early), count - 1}
    edges = np.linspace(early, count, (most - early) // 4 + 1).astype(int)
    for begin, end in itertools.pairwise(edges):
        part = value[begin:end]
        kept |= {int(begin), int(begin + part.argmax()), int(begin + part.argmin())}
    index = np.array(sorted(kept))
    cut = lambda part: None if part is None else part[index]
    return Curve(curve.at[index], curve.value[index], cut(curve.low), cut(curve.high))


def straightened(paid: Paid, most: int = MOST) -> Paid:
    """The same line through fewer points: points within straight pieces are left out.

    >>> straightened(Paid(np.arange(5.0), np.array([0.0, 2.0, 4.0, 5.0, 6.0]))).at.tolist()
    [0.0, 2.0, 4.0]
    """
    slope = np.diff(paid.amount) / np.maximum(np.diff(paid.at), 1e-300)
    bends = np.flatnonzero(~np.isclose(slope[1:], slope[:-1], rtol=1e-9, atol=0)) + 1
    if len(bends) > most:  # every round has another cost: keep about as many points as a curve has
        bends = bends[np.unique(np.linspace(0, len(bends) - 1, most).astype(int))]
    index = np.concatenate([[0], bends, [len(paid.at) - 1]]) if len(paid.at) > 1 else np.array([0])
    return Paid(paid.at[index], paid.amount[index])


def printable(text: str) -> str:
    """The text with "?" for lone surrogates, which no file can hold; names of folders may have them."""
    return text.encode("utf-8", "replace").decode()


def finite(values: Any) -> list[float | None]:
    """Numbers with six digits for JSON; None for NaN and infinity, which JSON does not have."""
    return [float(f"{value:.6g}") if np.isfinite(value) else None for value in np.asarray(values, np.float64)]
