"""The figure of the paper's section 6: three panels of relative gradient norms over rounds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from fedspam.app.figures import style

TOP = 100.0  # the largest upper end of the axis; curves that diverge leave the figure
ROOM = 3.0  # a factor of space below and above the curves


class Band(NamedTuple):
    """A curve and its band, one value per round."""

    median: Float[np.ndarray, " rounds"]
    low: Float[np.ndarray, " rounds"]
    high: Float[np.ndarray, " rounds"]


class Panel(NamedTuple):
    """One panel: its title, and its curves by label."""

    title: str
    bands: Mapping[str, Band]


# the exact prox is drawn first, wide and light, because other curves cover parts of it
LINES = {
    "exact": {"color": style.ORANGE, "linewidth": 2.4, "alpha": 0.7, "linestyle": "-"},
    "1": {"color": style.BLUE, "linewidth": 1.1, "linestyle": "-"},
    "10": {"color": style.BLACK, "linewidth": 1.0, "linestyle": (0, (3.5, 1.8))},
}


@style.styled
def draw_ridge(panels: Sequence[Panel], labels: Mapping[str, str], note: Sequence[str]) -> Figure:
    """The panels side by side on one vertical axis, a legend with the labels above, the lines of a note underneath."""
    columns = style.across(len(panels), len(panels))
    rows, beside = -(-len(panels) // columns), style.legend_columns(len(labels), len(labels))
    legend = 0.46 + 0.19 * (-(-len(labels) // beside) - 1)
    figure = style.new_figure(1.68 * rows, legend + 0.46 + style.note_height(note))
    grid = figure.subplots(rows, columns, sharey=True, squeeze=False)
    axes = list(grid.flat)
    for axis, panel in zip(axes, panels, strict=True):
        _draw_panel(axis, panel)
    values = np.concatenate([band.low for panel in panels for band in panel.bands.values()])
    highest = max(np.max(band.high) for panel in panels for band in panel.bands.values())
    axes[0].set_ylim(values[values > 0].min() / ROOM, min(TOP, ROOM * highest))
    for row in grid:
        row[0].set_ylabel(r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$")
    curves = {labels[key]: curve for key, curve in style.legend_of(axes[0]).items()}
    style.arrange(
        figure, curves, note, columns=beside, top=legend, bottom=0.46, left=0.083, right=0.98, wspace=0.09, hspace=0.8
    )
    return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    style.log_scale(axis)
    for order, (key, band) in enumerate(panel.bands.items()):
        look, rounds = LINES[key], np.arange(len(band.median))
        # infinity cannot be drawn; any value beyond the axis will do
        median, low, high = (np.minimum(part, 10 * TOP) for part in band)
        axis.fill_between(rounds, low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=2)
        axis.plot(rounds, median, label=key, zorder=3 + order, **look)
        if band.median[-1] > TOP:
            # where a curve ends that leaves the figure
            last = band.median[-1]
            end = rf"ends at $10^{{{np.log10(last):.0f}}}$" if np.isfinite(last) else "overflows"
            place = {"transform": axis.transAxes, "ha": "right", "va": "top"}
            axis.text(0.98, 0.97, end, color=look["color"], fontsize="small", **place)
    axis.set_title(panel.title, pad=5)
    axis.set_xlabel("communication rounds $k$", labelpad=2)
    axis.set_xlim(0, len(next(iter(panel.bands.values())).median) - 1)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axis.grid(True)
