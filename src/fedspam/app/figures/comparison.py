"""The figure of a comparison: the error of every method, one panel per measure of cost."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedspam.app.figures.style import (
    across,
    arrange,
    ends_early,
    legend_columns,
    legend_of,
    line_style,
    log_scale,
    new_figure,
    note_height,
    styled,
)
from fedspam.simulation.metrics import METRICS

TOP = 3.0  # the upper end of the axis of relative gradient norms; curves that diverge leave the figure
GRADIENT = r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$"
Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # cost, median, low, high


@styled
def draw_comparison(
    panels: Mapping[str, Mapping[str, Curve]], metric: str, hardest: float, note: Sequence[str]
) -> Figure:
    """Four panels, two by two where there is room, with a common legend above and a note underneath.

    Arguments:
        panels: by measure of cost, then by method: cost, median error, low, high.
        metric: its name. If more of it is better, as of an accuracy, the error is 1 minus it.
        hardest: the smallest target. The axis ends somewhat below it.
    """
    names = list(next(iter(panels.values())))
    columns = legend_columns(len(names), 5)
    wide, legend = across(len(panels), 2), 0.19 * -(-len(names) // columns)
    figure = new_figure(2.45 * -(-len(panels) // wide), note_height(note) + legend)
    axes = figure.subplots(-(-len(panels) // wide), wide, sharey=True, squeeze=False)
    for axis, (label, curves) in zip(axes.flat, panels.items(), strict=False):
        _draw_panel(axis, label, curves)
    lows = np.concatenate([curve[2] for curves in panels.values() for curve in curves.values()])
    lows = lows[np.isfinite(lows) & (lows > 0)]
    starts = [curve[1][0] for curves in panels.values() for curve in curves.values()]
    top = TOP if metric == "gradient" else 1.0 if METRICS[metric].rising else TOP * max(starts)
    axes[0, 0].set_ylim(max(lows.min(initial=1.0) / 1.5, hardest / 30), top)
    name = GRADIENT if metric == "gradient" else ("1 − " if METRICS[metric].rising else "") + METRICS[metric].label
    for row in axes:
        row[0].set_ylabel(name)
    arrange(
        figure, legend_of(axes[0, 0]), note, columns=columns, top=0.16 + legend, bottom=0.5,
        left=0.095, right=0.98, wspace=0.1, hspace=0.28,
    )  # fmt: skip
    return figure


def _draw_panel(axis: Axes, label: str, curves: Mapping[str, Curve]) -> None:
    log_scale(axis)
    for number, (name, (paid, median, low, high)) in enumerate(curves.items()):
        style = line_style(number)
        # infinity cannot be drawn; any value beyond the axis will do
        median, low, high = (np.nan_to_num(part, nan=1e9, posinf=1e9) for part in (median, low, high))
        axis.fill_between(paid, low, high, color=style["color"], alpha=0.1, linewidth=0, zorder=2)
        axis.plot(paid, median, label=name, zorder=3 + len(curves) - number, **style)
    axis.set_xlabel(label, labelpad=2)
    if label == "rounds" and not ends_early((curve[0], curve[1]) for curve in curves.values()):
        axis.set_xlim(0, max(curve[0][-1] for curve in curves.values()))
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    else:
        axis.set_xscale("log")  # a round of one method may cost a thousand times as much as a round of another
        axis.set_xlim(min(curve[0][1] for curve in curves.values()), max(curve[0][-1] for curve in curves.values()))
    axis.grid(True)
