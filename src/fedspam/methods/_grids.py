"""Settings that a comparison tries for a method on a problem of known scales."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedspam.methods._registry import Scales

Grid = Callable[[Scales], list[Mapping[str, Any]]]


def settings(**values: Iterable[Any]) -> list[Mapping[str, Any]]:
    """All combinations of the arguments' values; the last argument varies fastest."""
    return [dict(zip(values, combination, strict=True)) for combination in itertools.product(*values.values())]


def with_fixed(grid: Grid, **fixed: Any) -> Grid:
    """A grid each of whose settings also has the fixed arguments."""
    return lambda scales: [{**setting, **fixed} for setting in grid(scales)]


def prox_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for a method with a prox and a fresh weight: step sizes around 1/delta, three fresh weights."""
    return [{"step_size": c / scales.delta, "fresh_weight": p} for c in (0.1, 0.3, 1.0, 3.0) for p in (0.1, 0.3, 0.9)]


def step_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for a method whose only number is the step size of its prox, up to those of alike clients."""
    return [{"step_size": 0.01 * 2.5**i / scales.delta} for i in range(12)]


def coin_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for a method with a prox and a coin: step sizes around 1/delta, chances around cohort / clients."""
    unit = 1 / scales.delta
    return settings(step_size=[c * unit for c in (0.1, 0.3, 1.0, 3.0)], probability=coin_chances(scales))


def coin_chances(scales: Scales) -> list[float]:
    return [min(1.0, factor * scales.cohort / scales.clients) for factor in (0.5, 1, 2)]


def server_step_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for a method whose only number is a step size on the scale 1/L."""
    return [{"step_size": 0.01 * 3**i / scales.smoothness} for i in range(12)]


def few_steps_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for local SGD: rates up to 1/L, and up to 20 local steps."""
    return [{"local_rate": c / scales.smoothness, "local_steps": m} for c in (0.03, 0.1, 0.3, 1.0) for m in (1, 5, 20)]


def prox_steps_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for a prox of the client's own loss: from 1/L, about a gradient step, up; rough and fine answers."""
    sizes = [c / scales.smoothness for c in (0.1, 0.3, 1.0, 3.0, 10.0, 30.0)]
    rate = lambda gamma: 1 / (scales.smoothness + scales.delta + 1 / gamma)
    return [{"step_size": gamma, "local_rate": rate(gamma), "local_steps": m} for gamma in sizes for m in (5, 20)]


def local_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """Settings for local steps: sizes up to 1/L, and up to L/delta of them, which make up one step of 1/delta."""
    most = max(4, min(1000, round(scales.smoothness / scales.delta)))
    sizes, steps = (0.1, 0.3, 0.6, 0.9), (1, max(2, most // 4), most)
    return [{"local_rate": c / scales.smoothness, "local_steps": m} for c in sizes for m in steps]


def recursive_grid(scales: Scales) -> list[Mapping[str, Any]]:
    """As `local_grid`, with fresh weights from slow to fast."""
    most = max(4, min(1000, round(scales.smoothness / scales.delta)))
    rates = [c / scales.smoothness for c in (0.3, 0.9)]
    return settings(local_rate=rates, local_steps=(most // 4, most), fresh_weight=(0.1, 0.3, 0.9))
