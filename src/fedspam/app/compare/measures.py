"""What runs cost until they arrive at a target, and which setting costs least."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.app.arrival import AVERAGED, MEASURES as MEASURES, arrivals, percentiles

DIVERGED = 10.0  # a run has diverged if its error ends this many times above its start


class Curves(NamedTuple):
    """Runs of one setting with several seeds: at every probe, the error and the cost so far."""

    error: Float[np.ndarray, "seeds probes"]
    rounds: Float[np.ndarray, "seeds probes"]
    bytes_up: Float[np.ndarray, "seeds probes"]
    bytes: Float[np.ndarray, "seeds probes"]
    gradients: Float[np.ndarray, "seeds probes"]
    void: Float[np.ndarray, " seeds"]  # void rounds: a reply was not finite

    @property
    def final(self) -> float:
        """The error at the end: the root mean square over the last probes, in the median seed."""
        with np.errstate(over="ignore", invalid="ignore"):
            last = np.sqrt(np.mean(self.error[:, -AVERAGED:] ** 2, axis=1))
        return float(np.median(np.where(np.isnan(last), np.inf, last)))

    @property
    def diverged(self) -> bool:
        """Whether the median seed ends far above its start, or most seeds had void rounds."""
        return not self.final <= DIVERGED * np.median(self.error[:, 0]) or bool(np.median(self.void) > 0)


def costs(curves: Curves, measure: str, target: float) -> Float[np.ndarray, " seeds"]:
    """The cost of each seed until it arrives; infinite if it does not."""
    arrived = arrivals(curves.error, target)
    paid = getattr(curves, measure)
    return np.array([paid[i, int(k)] if np.isfinite(k) else np.inf for i, k in enumerate(arrived)])


class TunedCost(NamedTuple):
    """One number of the table: the cost of a method with the setting tuned for this measure and target."""

    method: str
    target: float  # an error
    measure: str
    median: float  # infinite if it did not arrive, as its band
    low: float
    high: float
    reached: int
    seeds: int
    trial: int | None = None  # None if no setting arrived during tuning
    setting: str = ""


@dataclass(frozen=True)
class MethodResult:
    """What is shown of a method on one problem."""

    costs: Sequence[TunedCost]
    tuning: Sequence[Sequence[Any]]  # the rows of tuning.csv: every setting that was tried
    shown: Mapping[str, int]  # by measure, the setting that a figure shows
    diverged: int  # settings
    finals: Mapping[int, Curves] = field(default_factory=dict)  # the chosen settings on the reported seeds


class CostSummary(NamedTuple):
    """A cost over seeds: median, 10th and 90th percentile, and how many seeds arrived."""

    median: float
    low: float
    high: float
    reached: int
    seeds: int


def cell(values: Float[np.ndarray, " seeds"]) -> CostSummary:
    low, median, high = percentiles(values, (10, 50, 90))
    return CostSummary(float(median), float(low), float(high), int(np.isfinite(values).sum()), len(values))


@dataclass(frozen=True)
class Trial:
    """A setting that was tried, and its curves."""

    method: str
    number: int  # 1, 2, ... up to the budget
    setting: Mapping[str, Any]
    curves: Curves
    status: str  # 'fine' or 'diverged'
    early: bool = False  # whether a run has ended at the hardest target: its final error is that of its end

    def cost(self, measure: str, target: float) -> float:
        """The cost of the median seed until it arrives."""
        return cell(costs(self.curves, measure, target)).median


def best(trials: Sequence[Trial], measure: str, target: float) -> Trial | None:
    """The trial that arrives at the lowest cost, then with the lowest final error; None if none arrives."""
    arrived = [trial for trial in trials if np.isfinite(trial.cost(measure, target))]
    return min(arrived, key=lambda trial: (trial.cost(measure, target), trial.curves.final), default=None)


def best_of_all(trials: Sequence[Trial], measure: str, targets: Sequence[float]) -> Trial:
    """The best trial for the hardest target that any reaches; if none reaches any, the lowest final error."""
    for target in sorted(targets):
        found = best(trials, measure, target)
        if found is not None:
            return found
    return min(trials, key=lambda trial: (trial.status != "fine", trial.curves.final))
