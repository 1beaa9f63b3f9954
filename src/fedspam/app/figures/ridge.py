"""The figure of the paper's section 6: three panels of relative gradient norms over rounds."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from fedspam.app.figures.style import BLACK, BLUE, GREY, ORANGE, STYLE, WIDTH

TOP = 100.0  # where the axis ends at the latest: what diverges leaves the figure there
ROOM = 3.0  # a factor of space below and above the curves
LINE = 0.14  # inches a line of the note


class Band(NamedTuple):
    """A curve with what lies around it, one value a round."""

    median: Float[np.ndarray, " rounds"]
    low: Float[np.ndarray, " rounds"]
    high: Float[np.ndarray, " rounds"]


class Panel(NamedTuple):
    """One plot: its title and its curves by label."""

    title: str
    bands: Mapping[str, Band]


# the exact prox lies underneath, wide and light, as in places the other curves cover it
LINES = {
    "exact": {"color": ORANGE, "linewidth": 2.4, "alpha": 0.7, "linestyle": "-"},
    "1": {"color": BLUE, "linewidth": 1.1, "linestyle": "-"},
    "10": {"color": BLACK, "linewidth": 1.0, "linestyle": (0, (3.5, 1.8))},
}


def draw_ridge(panels: Sequence[Panel], labels: Mapping[str, str], note: Sequence[str]) -> Figure:
    """The panels side by side on one vertical axis, their common legend above, the note underneath.

    Arguments:
        panels: from left to right.
        labels: what the legend calls each curve.
        note: lines that say how the text of the paper was read.
    """
    with mpl.rc_context(STYLE):
        height = 2.6 + LINE * len(note)
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw_panel(axis, panel)
        values = np.concatenate([band.low for panel in panels for band in panel.bands.values()])
        highest = max(np.max(band.high) for panel in panels for band in panel.bands.values())
        axes[0].set_ylim(values[values > 0].min() / ROOM, min(TOP, ROOM * highest))
        axes[0].set_ylabel(r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$")
        handles, keys = axes[0].get_legend_handles_labels()
        inch = 1 / height
        figure.legend(
            handles,
            [labels[key] for key in keys],
            loc="upper center",
            bbox_to_anchor=(0.5, 1.0),
            ncols=len(keys),
            handlelength=2.4,
            columnspacing=2.2,
            borderaxespad=0.2,
        )
        for number, line in enumerate(reversed(note)):
            figure.text(0.012, (0.08 + LINE * number) * inch, line, fontsize=7.2, color=GREY, va="baseline")
        bottom = (0.46 + LINE * len(note)) * inch
        figure.subplots_adjust(left=0.083, right=0.98, wspace=0.09, top=1 - 0.46 * inch, bottom=bottom)
        return figure


def _draw_panel(axis: Axes, panel: Panel) -> None:
    axis.set_yscale("log")
    for order, (key, band) in enumerate(panel.bands.items()):
        style, rounds = LINES[key], np.arange(len(band.median))
        # beyond the axis it does not matter how far, and infinity cannot be drawn
        median, low, high = (np.minimum(part, 10 * TOP) for part in band)
        axis.fill_between(rounds, low, high, color=style["color"], alpha=0.16, linewidth=0, zorder=2)
        axis.plot(rounds, median, label=key, zorder=3 + order, **style)
        if band.median[-1] > TOP:
            _mark_exit(axis, band.median[-1], style["color"])
    axis.set_title(panel.title, pad=5)
    axis.set_xlabel("communication rounds $k$", labelpad=2)
    axis.set_xlim(0, len(next(iter(panel.bands.values())).median) - 1)
    axis.xaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10], integer=True))
    axis.yaxis.set_major_locator(LogLocator(numticks=12))
    axis.yaxis.set_minor_locator(LogLocator(subs=()))
    axis.grid(True)


def _mark_exit(axis: Axes, last: float, colour: str) -> None:
    """Say where a curve that leaves the figure ends up."""
    end = rf"ends at $10^{{{np.log10(last):.0f}}}$" if np.isfinite(last) else "overflows"
    axis.text(0.98, 0.97, end, transform=axis.transAxes, color=colour, fontsize=8.5, ha="right", va="top")
