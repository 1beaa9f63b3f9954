"""The paper's "Observations" tested: a number and a verdict for each sentence."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from fedspam.app.arrival import arrivals, percentiles
from fedspam.app.reproduce.experiment import LABELS, SOLVERS, Curves

LEVEL = 0.01  # a relative gradient norm that counts as converged: above all floors, far below the start
MORE = 1.25  # the least factor for "larger", "slower" or "different"
MUCH_MORE = 1.5  # the least factor for "significantly"
SAME = 1.1  # the largest factor between curves that are "basically the same"
UNSTABLE = 10.0  # an unstable run exceeds its start by this factor


Finding = tuple[str, float, str, str, bool]  # an observation without its panel


@dataclass(frozen=True)
class Observation:
    """A sentence of the paper, the number that decides it, and whether it holds."""

    panel: str
    sentence: str
    value: float
    measured: str
    rule: str
    holds: bool


def floor(curve: Float[np.ndarray, "seeds rounds"]) -> float:
    """The error floor: the geometric mean over the last quarter of the rounds, in the median seed."""
    return float(np.median(_quarter(curve, 4)))


def drift(curve: Float[np.ndarray, "seeds rounds"]) -> float:
    """The factor between the last two quarters, in the median seed; 1 if a floor is reached."""
    with np.errstate(all="ignore"):
        ratio = float(np.median(_quarter(curve, 4) / _quarter(curve, 3)))
    return max(ratio, 1 / ratio) if ratio > 0 else np.inf


def swing(curve: Float[np.ndarray, "seeds rounds"]) -> float:
    """How far a run oscillates in its last quarter: 90th over 10th percentile, in the median seed."""
    low, high = percentiles(curve[:, -(curve.shape[1] // 4) :], (10, 90), axis=1)
    with np.errstate(all="ignore"):
        return float(np.median(high / low))


def rounds_to(curve: Float[np.ndarray, "seeds rounds"], level: float = LEVEL) -> float:
    """The round at which the median seed arrives at the level; infinite if it does not."""
    return float(np.median(arrivals(curve, level)))


def rise(curve: Float[np.ndarray, "seeds rounds"], level: float = LEVEL) -> float:
    """The largest factor by which a seed climbs above its lowest value before it reaches the level; 1 if none does."""
    lowest = np.minimum.accumulate(curve, axis=1)
    arrived = np.pad(lowest[:, :-1] <= level, ((0, 0), (1, 0)))
    with np.errstate(all="ignore"):
        return float(np.where(arrived, 1.0, curve / lowest).max())


def observations(curves: Curves) -> list[Observation]:
    """Every sentence of the paper's "Observations", measured."""
    parts = {"all": _on_all, "left": _on_left, "middle": _on_middle, "right": _on_right}
    return [Observation(panel, *finding) for panel, find in parts.items() for finding in find(curves)]


def _on_all(curves: Curves) -> Iterator[Finding]:
    converging = {name: curve for name, curve in curves.items() if name != ("left", "exact")}
    floors = [floor(curve) for curve in converging.values()]
    excepted = floor(curves["left", "exact"])
    drifts, swings = [drift(curve) for curve in converging.values()], [swing(curve) for curve in converging.values()]
    yield (
        "All plots indicate convergence to a neighbourhood of the stationary point",
        max(floors),
        f"floors of 8 of 9 curves: {min(floors):.1e} to {max(floors):.1e}; exact prox on the left: {excepted:.0e}",
        f"every floor but that of exact prox on the left is at most {LEVEL}",
        max(floors) <= LEVEL,
    )
    yield (
        "followed by oscillations around the error floor",
        min(swings),
        f"the last two quarters differ by {max(drifts):.2f}x at most; runs swing by {min(swings):.1f}x at least",
        f"the same curves: quarters within {MORE}x, swings of at least {MORE}x",
        max(drifts) <= MORE <= min(swings),
    )


def _on_left(curves: Curves) -> Iterator[Finding]:
    ends = {label: curves["left", label][:, -1] for label in SOLVERS}
    highest = {label: curves["left", label].max(axis=1) for label in SOLVERS}
    unstable, median = np.mean(highest["exact"] > UNSTABLE), np.median(ends["exact"])
    steps = np.concatenate([ends["1"], ends["10"]])
    robust, exact = np.mean(steps <= LEVEL), np.mean(ends["exact"] <= LEVEL)
    yield (
        "Small p and γ above 1/δ can be very unstable with exact prox",
        float(unstable),
        f"{unstable:.0%} of seeds exceed {UNSTABLE:g}x their start, the median ends at {median:.0e}x",
        "at least half of the seeds do",
        bool(unstable >= 0.5),
    )
    yield (
        "1 or 10 local steps result in more robust convergence",
        float(robust),
        f"{robust:.0%} of seeds end below {LEVEL} with 1 or 10 steps, {exact:.0%} with exact prox",
        "with local steps all do, with exact prox fewer",
        bool(robust == 1 and exact < 1),
    )


def _on_middle(curves: Curves) -> Iterator[Finding]:
    middle = {label: curves["middle", label] for label in SOLVERS}
    highest = max(rise(curve) for curve in middle.values())
    ends = np.concatenate([curve[:, -1] for curve in middle.values()])
    needed = {label: rounds_to(curve) for label, curve in middle.items()}
    floors = {label: floor(curve) for label, curve in middle.items()}
    faster, larger = _ratio(needed["1"], needed["10"]), _ratio(floors["10"], floors["1"])
    largest = min(larger, _ratio(floors["exact"], floors["1"]))
    yield (
        "Greater p = 0.9 results in steady convergence even for too large γ",
        highest,
        f"no run of any seed climbs back by more than {highest:.2f}x on its way to {LEVEL} (on the left "
        f"{rise(curves['left', '10']):.1f}x with 10 steps); {np.mean(ends <= LEVEL):.0%} end below it",
        f"at most {MUCH_MORE}x, and all end below {LEVEL}",
        bool(highest <= MUCH_MORE and np.all(ends <= LEVEL)),
    )
    yield (
        "More accurate prox is significantly faster",
        faster,
        f"rounds to {LEVEL}: exact {needed['exact']:.0f}, 10 steps {needed['10']:.0f}, 1 step {needed['1']:.0f}",
        f"exact no later than 10 steps, 1 step {MUCH_MORE}x later",
        bool(needed["exact"] <= needed["10"] and faster >= MUCH_MORE),
    )
    yield (
        "but to a larger neighbourhood than for one local step",
        largest,
        f"floors: exact {floors['exact']:.1e}, 10 steps {floors['10']:.1e}, 1 step {floors['1']:.1e}",
        f"both at least {MORE}x that of 1 step",
        bool(largest >= MORE),
    )
    yield (
        "This agrees with local gradient descent (more local steps: faster, larger neighbourhood)",
        larger,
        f"10 steps against 1: {faster:.1f}x faster, {larger:.1f}x the floor",
        f"both at least {MORE}x",
        bool(faster >= MORE and larger >= MORE),
    )


def _on_right(curves: Curves) -> Iterator[Finding]:
    needed = {name: rounds_to(curve) for name, curve in curves.items()}
    floors = {name: floor(curve) for name, curve in curves.items()}
    # the same prox in the other panels, if it arrives there
    pairs = [(panel, label) for panel in ("left", "middle") for label in SOLVERS]
    slower = {pair: _ratio(needed["right", pair[1]], needed[pair]) for pair in pairs if np.isfinite(needed[pair])}
    lower = {pair: _ratio(floors[pair], floors["right", pair[1]]) for pair in pairs}
    own = [floors["right", label] for label in SOLVERS]
    spread = _ratio(max(own), min(own))
    same = _ratio(needed["right", "10"], needed["right", "exact"])
    exact, ten = (np.median(curves["right", label], axis=0) for label in ("exact", "10"))
    with np.errstate(all="ignore"):
        gap = float(np.max(np.maximum(exact / ten, ten / exact)))
    yield (
        "Smaller γ = 0.5/δ slows down convergence",
        _median(slower),
        f"rounds to {LEVEL}, same prox in the other panels: {_summary(slower, 'more')}",
        f"median at least {MORE}x, none below 1x",
        bool(_median(slower) >= MORE and min(slower.values(), default=0) >= 1),
    )
    yield (
        "However, the method reaches a significantly lower error floor",
        _median(lower),
        f"same prox in the other panels: {_summary(lower, 'lower')}",
        f"median at least {MUCH_MORE}x, none below 1x",
        bool(_median(lower) >= MUCH_MORE and min(lower.values()) >= 1),
    )
    yield (
        "which does not depend much on the accuracy of the prox",
        spread,
        f"floors: exact {own[0]:.1e}, 10 steps {own[2]:.1e}, 1 step {own[1]:.1e}; they differ by {spread:.2f}x",
        f"at most {MORE}x",
        bool(spread <= MORE),
    )
    yield (
        "10 local steps give basically the same fast convergence as exact prox",
        gap,
        f"rounds to {LEVEL}: {needed['right', '10']:.0f} and {needed['right', 'exact']:.0f}; "
        f"the median curves differ by at most {gap:.3f}x",
        f"both within {SAME}x",
        bool(max(same, 1 / same if same else np.inf) <= SAME and gap <= SAME),
    )


def _quarter(curve: Float[np.ndarray, "seeds rounds"], number: int) -> Float[np.ndarray, " seeds"]:
    """The geometric mean over a quarter of the rounds, for every seed; the fourth is the last."""
    length = curve.shape[1] // 4
    end = curve.shape[1] - (4 - number) * length
    with np.errstate(divide="ignore"):
        return np.exp(np.log(curve[:, end - length : end]).mean(axis=1))


def _ratio(a: float, b: float) -> float:
    """a / b; infinite if only a is infinite; 0, which passes no rule, if the ratio is undefined."""
    return a / b if np.isfinite(a) and b > 0 else (np.inf if b > 0 and np.isfinite(b) else 0.0)


def _median(ratios: Mapping[Any, float]) -> float:
    return float(np.median(list(ratios.values()))) if ratios else 0.0


def _summary(ratios: Mapping[tuple[str, str], float], word: str) -> str:
    if not ratios:
        return "no curve arrives"
    (panel, label), least = min(ratios.items(), key=lambda item: item[1])
    return f"median {_median(ratios):.1f}x {word}, least {least:.2f}x ({LABELS[label]}, {panel})"
