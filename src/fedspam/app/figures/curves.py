"""The figures of a report: one metric, one panel per measure of cost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedspam.app.figures.style import (
    across,
    arrange,
    ends_early,
    legend_columns,
    legend_of,
    line_style,
    log_scale,
    new_figure,
    styled,
)

SPREAD = 30.0  # curves that span this factor have a logarithmic axis
BEYOND = 1e3  # the axis ends at this factor above the first value; curves that diverge leave the figure


class Line(NamedTuple):
    """A curve against its cost. `number` says which color it has: a bound has that of its curve."""

    name: str
    cost: Float[np.ndarray, " points"]
    value: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"] | None
    high: Float[np.ndarray, " points"] | None
    number: int
    bound: bool = False


@styled
def draw_curves(panels: Mapping[str, Sequence[Line]], metric: str) -> Figure:
    """Panels, three per row, with a common legend above."""
    every = [line for lines in panels.values() for line in lines]
    values = _finite(every)
    logarithmic = bool(values.min() > 0 and values.max() > SPREAD * values.min())
    columns, names = across(len(panels), 3), len({line.name for line in every})
    beside = legend_columns(names, 4)
    rows, legend = -(-len(panels) // columns), 0.19 * -(-names // beside)
    figure = new_figure(2.1 * rows, 0.4 + legend)
    axes = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Artist] = {}
    for axis, (label, lines) in zip(axes.flat, panels.items(), strict=False):
        _draw(axis, label, lines, logarithmic)
        handles |= legend_of(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel(metric)
    arrange(
        figure, handles, columns=beside, top=0.16 + legend, bottom=0.45, left=0.09,
        right=0.985, wspace=0.27, hspace=0.38,
    )  # fmt: skip
    return figure


def _draw(axis: Axes, label: str, lines: Sequence[Line], logarithmic: bool) -> None:
    if logarithmic:
        log_scale(axis, 9)
    for line in lines:
        style = line_style(line.number)
        if line.bound:
            style |= {"linestyle": (0, (1, 1.2)), "linewidth": 1.0}
        value = np.where(np.isfinite(line.value) & ((line.value > 0) | (not logarithmic)), line.value, np.nan)
        if line.low is not None and line.high is not None:
            # infinity cannot be drawn; any value beyond the axis will do
            low, high = (np.nan_to_num(part, nan=1e300, posinf=1e300) for part in (line.low, line.high))
            axis.fill_between(line.cost, low, high, color=style["color"], alpha=0.12, linewidth=0)
        axis.plot(line.cost, value, label=line.name, **style)
    axis.set_ylim(*_limits(lines, logarithmic))
    if logarithmic and ends_early((line.cost, line.value) for line in lines if not line.bound):
        axis.set_xscale("log")
    else:
        axis.set_xlim(left=0)
        axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
    unit = "B" if label.startswith("bytes") else "s" if label == "time" else ""
    axis.xaxis.set_major_formatter(EngFormatter(unit=unit, sep="\N{THIN SPACE}" if unit else ""))
    axis.set_xlabel(label, labelpad=2)
    axis.grid(True)


def _finite(lines: Sequence[Line]) -> np.ndarray:
    values = np.concatenate([line.value for line in lines]) if lines else np.ones(1)
    values = values[np.isfinite(values)]
    return values if len(values) else np.ones(1)


def _limits(lines: Sequence[Line], logarithmic: bool) -> tuple[float, float]:
    values = _finite(lines)
    first = max((abs(line.value[0]) for line in lines if len(line.value) and np.isfinite(line.value[0])), default=1.0)
    low, high = float(values.min()), float(min(values.max(), max(BEYOND * first, values.min())))
    if logarithmic:
        return low / 1.6, high * 1.6
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    return low - room, high + room
