"""What each run paid until it arrived at a target."""

import itertools
import math
from collections.abc import Iterator, Sequence

import numpy as np

from fedspam.app.arrival import arrival
from fedspam.app.report.series import MEASURES, AskedTarget, Curve, Series, Source, TargetCell, rises

MOST = 4  # targets that are chosen if none are given
LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)  # targets of rising metrics
Run = tuple[Series, AskedTarget | None]
PERCENTS = tuple(percent / 100 for percent in range(1, 100))


def choose(curves: Sequence[Curve], *, up: bool) -> list[float]:
    """Targets that some curve reaches, but not at its start."""
    values = [finite for curve in curves if len(finite := curve.value[np.isfinite(curve.value)])]
    if not values:
        return []
    levels = _rising_levels(values) if up else _falling_levels(values)
    arrived = {level: [arrival(curve.value, level, rising=up) for curve in curves] for level in levels}
    reached = [level for level, found in arrived.items() if any(at is not None for at in found)]
    # a level that all have at once tells nothing, unless there is no other
    reached = [level for level in reached if any((at or 0) > 1 for at in arrived[level])] or reached
    if len(reached) <= MOST:
        return reached
    # from the easiest to the hardest that some curve reaches, and the hardest that all do
    spread = {reached[i] for i in np.linspace(0, len(reached) - 1, MOST - 1).round().astype(int)}
    common = [level for level in reached if None not in arrived[level]]
    return [level for level in reached if level in spread | set(common[-1:])]


def _rising_levels(values: Sequence[np.ndarray]) -> list[float]:
    """Levels between the starts and the best value. A method may begin with a step of its own, above other starts."""
    starts, best = [part[0] for part in values], max(float(part.max()) for part in values)
    between = lambda levels: [level for level in levels if max(starts) < level <= best]
    return between(LEVELS) or between(PERCENTS) or [level for level in LEVELS if level > np.median(starts)]


def _falling_levels(values: Sequence[np.ndarray]) -> list[float]:
    """Powers of ten below the median start."""
    start = float(np.median([part[0] for part in values]))
    if start <= 0:
        return []
    highest = math.ceil(math.log10(start)) - 1
    return [float(f"1e{power}") for power in range(highest, highest - 16, -1)]


def cells(sources: Sequence[Source], given: Sequence[float] = ()) -> list[TargetCell]:
    """The table of costs: of a comparison as it was tuned, of runs as their curves show."""
    goals = [goal for source in sources for goal in source.goals]
    runs = [(one, source.asked) for source in sources if not source.goals for one in source.series]
    if given and not runs:
        own = ", ".join(f"{target:g}" for target in dict.fromkeys(goal.target for goal in goals))
        raise ValueError(
            f"the settings of a comparison were tuned for its own targets, {own}; leave out --targets, or compare again"
        )
    metrics = dict.fromkeys(name for one, _ in runs for name in one.metrics if name not in one.bounds)
    return goals + [cell for metric in metrics for cell in _cells_of(metric, runs, given)]


def _cells_of(metric: str, runs: Sequence[Run], given: Sequence[float]) -> Iterator[TargetCell]:
    """The costs until the targets of a metric: those given, else those that the runs were asked for, else chosen."""
    have = [(one, asked) for one, asked in runs if metric in one.metrics]
    wanted = dict.fromkeys(asked.value for _, asked in have if asked is not None and asked.metric == metric)
    chosen = given or wanted or choose([one.metrics[metric] for one, _ in have], up=rises(metric))
    for target, (one, asked) in itertools.product(chosen, have):
        at = _arrived(one.metrics[metric], metric, target, asked)
        for measure in (name for name in MEASURES if name in one.paid):
            paid = math.nan if at is None else float(one.paid[measure].after(np.asarray(at)))
            yield TargetCell(one.name, metric, target, measure, None if math.isnan(paid) else paid)


def _arrived(curve: Curve, metric: str, target: float, asked: AskedTarget | None) -> float | None:
    """The round in which a curve arrives. A run that has ended at its own target has no values after it."""
    at = arrival(curve.value, target, rising=rises(metric))
    if at is not None:
        return float(curve.at[at])
    if asked is None or asked.metric != metric:
        return None
    easier = target <= asked.value if rises(metric) else target >= asked.value
    return asked.round if easier else None
