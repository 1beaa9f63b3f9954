"""When a run has arrived at a target, what is counted until then, and percentiles over runs that may never arrive."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

# the measures of cost, by the name of their column, and what tables and axes call them
MEASURES: Mapping[str, str] = {
    "rounds": "rounds",
    "bytes_up": "bytes up",
    "bytes": "bytes in total",
    "gradients": "client gradients",
}
AVERAGED = 10  # probes over which an error is averaged, so that one low value is not an arrival


def arrivals(errors: Float[np.ndarray, "*runs probes"], target: float) -> Float[np.ndarray, "*runs"]:
    """The index of the probe at which each run arrives; infinite where it does not.

    A run arrives at the first probe whose error is at most the target and from which the root mean square of ten
    errors is at most the target (of a quarter of the probes, where there are fewer than forty). For a negative target
    the mean takes the place of the root mean square. `fedspam run`, `compare`, `report` and the benchmarks all use
    this rule. A run that `evaluate.stop` ends at its target has no later probes: it arrives with its last one.

    >>> arrivals(np.array([[1.0, 0.05, 0.3] + [0.1] * 40, [1.0] * 43]), 0.1).tolist()
    [3.0, inf]
    """
    count = errors.shape[-1]
    if not count:
        return np.full(errors.shape[:-1], np.inf)
    errors = np.where(np.isfinite(errors), errors, np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(errors, min(AVERAGED, max(1, count // 4)), axis=-1)
    with np.errstate(over="ignore"):
        means = windows.mean(axis=-1) if target < 0 else np.sqrt((np.maximum(windows, 0) ** 2).mean(axis=-1))
    goal = target + 1e-12 * abs(target)  # the mean of equal errors must not miss them by rounding
    reached = (errors[..., : means.shape[-1]] <= goal) & (means <= goal)
    return np.where(reached.any(axis=-1), reached.argmax(axis=-1), np.inf)


def arrival(values: Float[np.ndarray, " probes"], target: float, *, rising: bool = False) -> int | None:
    """The index of the probe at which one curve arrives; None if it does not.

    Arguments:
        rising: whether more is better. The error of an accuracy is 1 - accuracy.

    >>> arrival(np.array([0.1, 0.5, 0.8, 0.9]), 0.75, rising=True)
    2
    """
    if rising:
        best = 1.0 if target <= 1 else 0.0
        values, target = best - values, best - target
    found = float(arrivals(np.asarray(values, np.float64), target))
    return int(found) if np.isfinite(found) else None


def percentiles(values: np.ndarray, percents: Sequence[float], axis: int = 0) -> Float[np.ndarray, "percents ..."]:
    """Percentiles along an axis. NaN counts as infinite; between a finite and an infinite value lies infinity.

    >>> percentiles(np.array([1.0, 2.0, 3.0, np.inf]), (10, 50, 90)).tolist()
    [1.3, 2.5, inf]
    """
    ordered = np.sort(np.moveaxis(np.where(np.isnan(values), np.inf, values), axis, 0), axis=0)
    found = []
    for percent in percents:
        place = percent / 100 * (len(ordered) - 1)
        below, share = int(place), place - int(place)
        above = ordered[min(below + 1, len(ordered) - 1)]
        with np.errstate(invalid="ignore"):
            found.append(ordered[below] + share * (above - ordered[below]) if share > 0 else ordered[below])
    return np.where(np.isnan(found), np.inf, found)
