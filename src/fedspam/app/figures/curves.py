"""The figures of reports and comparisons: one metric, one panel per measure of cost."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from fedspam.app.figures import style
from fedspam.simulation.metrics import METRICS

SPREAD = 30.0  # curves that span this factor have a logarithmic axis
GRADIENT = r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$"
BEYOND = 1e3  # the axis ends at this factor above the first value; curves that diverge leave the figure
FAR = 1e30  # beyond every axis, and far from the largest number, so that margins do not overflow
TOP = 3.0  # the same for the relative gradient norms of a comparison


class Line(NamedTuple):
    """A curve against its cost. `number` says which color it has: a bound has that of its curve."""

    name: str
    cost: Float[np.ndarray, " points"]
    value: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"] | None
    high: Float[np.ndarray, " points"] | None
    number: int
    bound: bool = False


@style.styled
def draw_curves(
    panels: Mapping[str, Sequence[Line]],
    metric: str,
    note: Sequence[str] = (),
    *,
    beside: int = 3,
    limits: tuple[float, float] | None = None,
) -> Figure:
    """Panels with a common legend above and a note underneath.

    Arguments:
        beside: how many panels stand side by side, where there is room; the fourth of four is not left alone.
        limits: of one vertical axis for all panels; then costs have logarithmic axes, because a round of one method
            may cost a thousand times as much as a round of another. None for the axes that suit each panel.
    """
    every = [line for lines in panels.values() for line in lines]
    values = _finite(every)
    logarithmic = limits is not None or bool(values.min() > 0 and values.max() > SPREAD * values.min())
    columns, names = style.across(len(panels), 2 if len(panels) == 4 else beside), len({line.name for line in every})
    in_legend = style.legend_columns(names, 4)
    rows, legend = -(-len(panels) // columns), 0.19 * -(-names // in_legend)
    figure = style.new_figure(2.1 * rows, 0.4 + style.note_height(note) + legend)
    axes = figure.subplots(rows, columns, squeeze=False, sharey=limits is not None)
    handles: dict[str, Artist] = {}
    for axis, (label, lines) in zip(axes.flat, panels.items(), strict=False):
        _draw(axis, label, lines, logarithmic, limits)
        handles |= style.legend_of(axis)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for row in axes:
        row[0].set_ylabel(metric)
    style.arrange(
        figure, handles, note, columns=in_legend, top=0.16 + legend, bottom=0.45, left=0.09,
        right=0.985, wspace=0.27 if limits is None else 0.1, hspace=0.38,
    )  # fmt: skip
    return figure


def draw_comparison(panels: Mapping[str, Sequence[Line]], metric: str, hardest: float, note: Sequence[str]) -> Figure:
    """The errors of methods, two panels by two where there is room.

    Arguments:
        metric: its name. If more of it is better, as of an accuracy, the error is 1 minus it.
        hardest: the smallest target. The axis ends somewhat below it.
    """
    lines = [line for lines in panels.values() for line in lines]
    lows = np.concatenate([line.value if line.low is None else line.low for line in lines])
    lows = lows[np.isfinite(lows) & (lows > 0)]
    rising = METRICS[metric].rising
    top = TOP if metric == "gradient" else 1.0 if rising else TOP * max(line.value[0] for line in lines)
    limits = max(lows.min(initial=1.0) / 1.5, hardest / 30), top
    name = GRADIENT if metric == "gradient" else ("1 − " if rising else "") + METRICS[metric].label
    return draw_curves(panels, name, note, beside=2, limits=limits)


def _draw(axis: Axes, label: str, lines: Sequence[Line], logarithmic: bool, limits: tuple[float, float] | None) -> None:
    if logarithmic:
        style.log_scale(axis, 9)
    for line in lines:
        look = style.line_style(line.number)
        if line.bound:
            look |= {"linestyle": (0, (1, 1.2)), "linewidth": 1.0}
        value = np.where(np.isfinite(line.value) & ((line.value > 0) | (not logarithmic)), line.value, np.nan)
        if line.low is not None and line.high is not None:
            # infinity cannot be drawn; any value beyond the axis will do
            low, high = (np.minimum(np.nan_to_num(part, nan=FAR), FAR) for part in (line.low, line.high))
            axis.fill_between(line.cost, low, high, color=look["color"], alpha=0.12, linewidth=0)
        axis.plot(line.cost, value, label=line.name, **look)
    axis.set_ylim(*(limits or _limits(lines, logarithmic)))
    early = logarithmic and style.ends_early((line.cost, line.value) for line in lines if not line.bound)
    if early or (limits is not None and label != "rounds"):
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
