"""What each run paid until it arrived at a target."""

import itertools
import math
from collections.abc import Sequence

import numpy as np

from fedspam.app.arrival import arrival
from fedspam.app.report.series import MEASURES, AskedTarget, Curve, Source, TargetCell, rises

MOST = 4  # targets that are chosen if none are given
LEVELS = (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.97, 0.98, 0.99)  # targets of rising metrics
PERCENTS = tuple(percent / 100 for percent in range(1, 100))


def choose(curves: Sequence[Curve], *, up: bool) -> list[float]:
    """Targets that some curve reaches, but not at its start."""
    values = [curve.value[np.isfinite(curve.value)] for curve in curves]
    values = [part for part in values if len(part)]
    if not values:
        return []
    starts = [part[0] for part in values]
    start = float(np.median(starts))
    if up:
        # a method may begin with a step of its own: levels that it has at its start tell nothing, if there are others
        best = max(float(part.max()) for part in values)
        between = lambda levels: [level for level in levels if max(starts) < level <= best]
        wanted = between(LEVELS) or between(PERCENTS) or [level for level in LEVELS if level > start]
    else:
        if start <= 0:
            return []
        highest = math.ceil(math.log10(start)) - 1
        wanted = [float(f"1e{power}") for power in range(highest, highest - 16, -1)]
    reached = [level for level in wanted if any(arrival(curve.value, level, rising=up) is not None for curve in curves)]
    # a level that all have at once tells nothing, unless there is no other
    at_once = lambda level: all((arrival(curve.value, level, rising=up) or 0) <= 1 for curve in curves)
    reached = [level for level in reached if not at_once(level)] or reached
    if len(reached) <= MOST:
        return reached
    # from the easiest to the hardest that some curve reaches, and the hardest that all do
    spread = {reached[i] for i in np.linspace(0, len(reached) - 1, MOST - 1).round().astype(int)}
    common = [level for level in reached if all(arrival(curve.value, level, rising=up) is not None for curve in curves)]
    return [level for level in reached if level in spread | set(common[-1:])]


def cells(sources: Sequence[Source], given: Sequence[float] = ()) -> list[TargetCell]:
    """The table of costs: of a comparison as it was tuned, of runs as their curves show."""
    found = [goal for source in sources for goal in source.goals]
    series = [(one, source.asked) for source in sources if not source.goals for one in source.series]
    if given and not series:
        own = ", ".join(f"{target:g}" for target in dict.fromkeys(goal.target for goal in found))
        raise ValueError(
            f"the settings of a comparison were tuned for its own targets, {own}; leave out --targets, or compare again"
        )
    for metric in dict.fromkeys(name for one, _ in series for name in one.metrics if name not in one.bounds):
        have = [(one, asked) for one, asked in series if metric in one.metrics]
        wanted = dict.fromkeys(asked.value for _, asked in have if asked is not None and asked.metric == metric)
        chosen = lambda: choose([one.metrics[metric] for one, _ in have], up=rises(metric))
        for target, (one, asked) in itertools.product(list(given) or list(wanted) or chosen(), have):
            at = _arrived(one.metrics[metric], metric, target, asked)
            for measure in (name for name in MEASURES if name in one.paid):
                paid = math.nan if at is None else float(one.paid[measure].after(np.asarray(at)))
                found.append(TargetCell(one.name, metric, target, measure, None if math.isnan(paid) else paid))
    return found


def _arrived(curve: Curve, metric: str, target: float, asked: AskedTarget | None) -> float | None:
    """The round in which a curve arrives. A run that has ended at its own target has no values after it."""
    at = arrival(curve.value, target, rising=rises(metric))
    if at is not None:
        return float(curve.at[at])
    if asked is None or asked.metric != metric:
        return None
    easier = target <= asked.value if rises(metric) else target >= asked.value
    return asked.round if easier else None
