"""What a run costs until it arrives: curves, targets, and who is nearest to them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from fedspam.app.arrival import MEASURES as MEASURES
from fedspam.app.arrival import WINDOW, arrivals, percentiles

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
