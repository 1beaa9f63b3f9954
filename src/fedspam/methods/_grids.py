"""The settings that a comparison tries for a method, as multiples of a problem's scales."""

import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from fedspam.methods._registry import Scales

Grid = Callable[[Scales], list[Mapping[str, Any]]]
Axis = Iterable[Any] | Callable[[Scales], Iterable[Any]]


def grid(**axes: Axis) -> Grid:
    """All combinations of the arguments' values, given as they are or made from the scales; the last varies fastest.

    >>> grid(step_size=over_smoothness(0.1, 1.0), local_steps=(1, 5))(Scales(0.1, 2.0, clients=10, cohort=5))[1]
    {'step_size': 0.05, 'local_steps': 5}
    """

    def settings(scales: Scales) -> list[Mapping[str, Any]]:
        values = [axis(scales) if callable(axis) else axis for axis in axes.values()]
        return [dict(zip(axes, combination, strict=True)) for combination in itertools.product(*values)]

    return settings


def over_smoothness(*multiples: float) -> Callable[[Scales], list[float]]:
    """Multiples of 1/L."""
    return lambda scales: [c / scales.smoothness for c in multiples]


def over_delta(*multiples: float) -> Callable[[Scales], list[float]]:
    """Multiples of 1/delta."""
    return lambda scales: [c / scales.delta for c in multiples]


def cohort_share(*multiples: float) -> Callable[[Scales], list[float]]:
    """Multiples of cohort / clients, at most 1."""
    return lambda scales: [min(1.0, c * scales.cohort / scales.clients) for c in multiples]


def with_fixed(grid: Grid, **fixed: Any) -> Grid:
    """A grid each of whose settings also has the fixed arguments."""
    return lambda scales: [{**setting, **fixed} for setting in grid(scales)]


def with_prox_rate(grid: Grid) -> Grid:
    """A grid of step sizes of a prox of the client's own loss, with the rate of the gradient steps that answer it."""
    rate = lambda scales, gamma: 1 / (scales.smoothness + scales.delta + 1 / gamma)
    return lambda scales: [{**each, "local_rate": rate(scales, each["step_size"])} for each in grid(scales)]


def _most_steps(scales: Scales) -> int:
    """L/delta local steps, which make up one step of 1/delta."""
    return max(4, min(1000, round(scales.smoothness / scales.delta)))


# a prox around an estimate: step sizes around 1/delta
FRESH_WEIGHTS = (0.1, 0.3, 0.9)
prox_sizes = over_delta(0.1, 0.3, 1.0, 3.0)
prox_grid = grid(step_size=prox_sizes, fresh_weight=FRESH_WEIGHTS)
COIN_AXES: Mapping[str, Axis] = {"step_size": prox_sizes, "probability": cohort_share(0.5, 1, 2)}
coin_grid = grid(**COIN_AXES)
# a prox alone, up to the step sizes of alike clients
step_grid = grid(step_size=lambda scales: [0.01 * 2.5**i / scales.delta for i in range(12)])
# a step of the server, on the scale of 1/L
server_step_grid = grid(step_size=lambda scales: [0.01 * 3**i / scales.smoothness for i in range(12)])
# local SGD: rates up to 1/L, up to 20 steps
few_steps_grid = grid(local_rate=over_smoothness(0.03, 0.1, 0.3, 1.0), local_steps=(1, 5, 20))
# local steps along an estimate, up to L/delta of them
local_grid = grid(
    local_rate=over_smoothness(0.1, 0.3, 0.6, 0.9),
    local_steps=lambda scales: (1, max(2, _most_steps(scales) // 4), _most_steps(scales)),
)
recursive_grid = grid(
    local_rate=over_smoothness(0.3, 0.9),
    local_steps=lambda scales: (_most_steps(scales) // 4, _most_steps(scales)),
    fresh_weight=FRESH_WEIGHTS,
)
# a prox of the client's own loss: from 1/L, about a gradient step, up; rough and fine answers
prox_steps_grid = with_prox_rate(grid(step_size=over_smoothness(0.1, 0.3, 1.0, 3.0, 10.0, 30.0), local_steps=(5, 20)))
