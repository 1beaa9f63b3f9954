"""What a run costs until it arrives: curves, targets, and who is nearest to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

# what is paid, by the name of its column, and what tables and axes call it
MEASURES: Mapping[str, str] = {
    "rounds": "rounds",
    "bytes_up": "bytes up",
    "bytes": "bytes in total",
    "gradients": "client gradients",
}
WINDOW = 10  # looks over which an error is averaged, so that a lucky dip is no arrival
DIVERGED = 10.0  # an error this many times that at the start


class Curves(NamedTuple):
    """Runs of one setting with several seeds: the error at every look, and what was paid until then."""

    error: Float[np.ndarray, "seeds looks"]
    rounds: Float[np.ndarray, "seeds looks"]
    bytes_up: Float[np.ndarray, "seeds looks"]
    bytes: Float[np.ndarray, "seeds looks"]
    gradients: Float[np.ndarray, "seeds looks"]
    void: Float[np.ndarray, " seeds"]  # rounds without effect, as a reply was not finite

    @property
    def final(self) -> float:
        """The error at the end: the root mean square of the last looks, in the median seed."""
        with np.errstate(over="ignore", invalid="ignore"):
            last = np.sqrt(np.mean(self.error[:, -WINDOW:] ** 2, axis=1))
        return float(np.median(np.where(np.isnan(last), np.inf, last)))

    @property
    def diverged(self) -> bool:
        """Whether the median seed ends far above its start, or most seeds saw a reply that was not finite."""
        return not self.final <= DIVERGED * np.median(self.error[:, 0]) or bool(np.median(self.void) > 0)


def arrivals(error: Float[np.ndarray, "seeds looks"], target: float) -> Float[np.ndarray, " seeds"]:
    """The first look at the target from which the error stays there, in mean square over ten looks; else infinite.

    A run of fewer looks must be there from its first to its last.

    >>> arrivals(np.array([[1.0, 0.05, 0.3] + [0.1] * 10, [1.0] * 13]), 0.1).tolist()
    [3.0, inf]
    """
    window = min(WINDOW, error.shape[1])
    with np.errstate(over="ignore"):
        squares = np.where(np.isfinite(error), error, np.inf) ** 2
        means = np.lib.stride_tricks.sliding_window_view(squares, window, axis=1).mean(axis=2)
    goal = target * (1 + 1e-12)  # the mean of equal errors must not miss them by rounding
    reached = (error[:, : means.shape[1]] <= goal) & (np.sqrt(means) <= goal)
    return np.where(reached.any(axis=1), reached.argmax(axis=1), np.inf)


def costs(curves: Curves, measure: str, target: float) -> Float[np.ndarray, " seeds"]:
    """What each seed paid until it arrived; infinite where it did not."""
    looks = arrivals(curves.error, target)
    paid = getattr(curves, measure)
    return np.array([paid[i, int(k)] if np.isfinite(k) else np.inf for i, k in enumerate(looks)])


class CostCell(NamedTuple):
    """A number of the table: the median over seeds and what lies around it, and how many seeds arrived."""

    median: float
    low: float
    high: float
    reached: int
    seeds: int


def cell(values: Float[np.ndarray, " seeds"]) -> CostCell:
    low, median, high = percentiles(values, (10, 50, 90))
    return CostCell(float(median), float(low), float(high), int(np.isfinite(values).sum()), len(values))


def percentiles(values: Float[np.ndarray, "seeds ..."], wanted: Sequence[float]) -> Float[np.ndarray, "..."]:
    """Percentiles over seeds of values of which some may be infinite; between a finite and an infinite one, infinite.

    >>> percentiles(np.array([1.0, 2.0, 3.0, np.inf]), (10, 50, 90)).tolist()
    [1.3, 2.5, inf]
    """
    ordered = np.sort(np.where(np.isnan(values), np.inf, values), axis=0)
    found = []
    for percent in wanted:
        place = percent / 100 * (len(ordered) - 1)
        below, share = int(place), place - int(place)
        above = ordered[min(below + 1, len(ordered) - 1)]
        with np.errstate(invalid="ignore"):
            found.append(ordered[below] + share * (above - ordered[below]) if share > 0 else ordered[below])
    return np.where(np.isnan(found), np.inf, found)


@dataclass(frozen=True)
class Trial:
    """A setting that was tried: how it was made, what became of it."""

    method: str
    number: int  # 1, 2, ... up to the budget
    setting: Mapping[str, Any]
    curves: Curves
    status: str  # 'fine' or 'diverged'

    def cost(self, measure: str, target: float) -> float:
        """What the median seed paid until it arrived."""
        return cell(costs(self.curves, measure, target)).median


def best(trials: Sequence[Trial], measure: str, target: float) -> Trial | None:
    """The trial that arrives for the least; of equals the one with the lower error at its end; None if none arrives."""
    arrived = [trial for trial in trials if np.isfinite(trial.cost(measure, target))]
    return min(arrived, key=lambda trial: (trial.cost(measure, target), trial.curves.final), default=None)


def best_of_all(trials: Sequence[Trial], measure: str, targets: Sequence[float]) -> Trial:
    """The best for the hardest target that any trial reaches; where none reaches any, the one that ends lowest."""
    for target in sorted(targets):
        found = best(trials, measure, target)
        if found is not None:
            return found
    return min(trials, key=lambda trial: (trial.status != "fine", trial.curves.final))
