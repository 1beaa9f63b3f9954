"""Methods against each other: one panel for each thing that is paid."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator

from fedspam.app.figures.style import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, STYLE, WIDTH, YELLOW

TOP = 3.0  # where the axis of relative gradients ends: what diverges leaves the figure there
LINE = 0.14  # inches a line of the note
COLOURS = (BLACK, ORANGE, BLUE, GREEN, PURPLE, SKY, YELLOW)
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))

Curve = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # paid, median, low, high


def look(number: int) -> dict[str, object]:
    """Colour and dashes of the curve of this number: colours first, then other dashes."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def draw_comparison(
    panels: Mapping[str, Mapping[str, Curve]], metric: str, hardest: float, note: Sequence[str]
) -> Figure:
    """Four panels, two by two, with a common legend above and a note underneath.

    Arguments:
        panels: by what is paid, then by method: what was paid, median error, low, high.
        metric: 'gradient' or 'accuracy', whose error is drawn.
        hardest: the least error that was a target; what goes far below it leaves the figure.
        note: lines that say what was compared and how.
    """
    names = list(next(iter(panels.values())))
    rows = -(-len(names) // 5)
    with mpl.rc_context(STYLE):
        height = 4.9 + LINE * len(note) + 0.19 * rows
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.subplots(2, -(-len(panels) // 2), sharey=True, squeeze=False)
        for axis, (label, curves) in zip(axes.flat, panels.items(), strict=False):
            _draw_panel(axis, label, curves)
        lows = np.concatenate([curve[2] for curves in panels.values() for curve in curves.values()])
        lows = lows[np.isfinite(lows) & (lows > 0)]
        axes[0, 0].set_ylim(max(lows.min(initial=1.0) / 1.5, hardest / 30), TOP if metric == "gradient" else 1.0)
        name = r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$" if metric == "gradient" else "1 − accuracy"
        for row in axes:
            row[0].set_ylabel(name)
        inch = 1 / height
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=min(5, len(names)),
            handlelength=2.4, columnspacing=1.8, borderaxespad=0.2,
        )  # fmt: skip
        for number, line in enumerate(reversed(note)):
            figure.text(0.012, (0.08 + LINE * number) * inch, line, fontsize=7.2, color=GREY, va="baseline")
        figure.subplots_adjust(
            left=0.095, right=0.98, wspace=0.1, hspace=0.28,
            top=1 - (0.16 + 0.19 * rows) * inch, bottom=(0.5 + LINE * len(note)) * inch,
        )  # fmt: skip
        return figure


def _draw_panel(axis: Axes, label: str, curves: Mapping[str, Curve]) -> None:
    axis.set_yscale("log")
    for number, (name, (paid, median, low, high)) in enumerate(curves.items()):
        style = look(number)
        # beyond the axis it does not matter how far, and infinity cannot be drawn
        median, low, high = (np.nan_to_num(part, nan=1e9, posinf=1e9) for part in (median, low, high))
        axis.fill_between(paid, low, high, color=str(style["color"]), alpha=0.1, linewidth=0, zorder=2)
        axis.plot(paid, median, label=name, zorder=3 + len(curves) - number, **style)  # pyright: ignore[reportArgumentType]
    axis.set_xlabel(label, labelpad=2)
    if label == "rounds":
        axis.set_xlim(0, max(curve[0][-1] for curve in curves.values()))
        axis.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    else:
        axis.set_xscale("log")  # a round of one method may cost a thousand times that of another
        axis.set_xlim(min(curve[0][1] for curve in curves.values()), max(curve[0][-1] for curve in curves.values()))
    axis.yaxis.set_major_locator(LogLocator(numticks=12))
    axis.yaxis.set_minor_locator(LogLocator(subs=()))
    axis.grid(True)
