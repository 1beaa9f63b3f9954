"""What methods pay as clients become less alike: rounds and bytes against delta / L."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from fedspam.app.figures.comparison import LINE, look
from fedspam.app.figures.style import GREY, STYLE, WIDTH

Points = tuple[np.ndarray, np.ndarray]
AXES = {"rounds": "rounds", "bytes": "bytes, up and down"}


def draw_sweep(panels: Mapping[str, Mapping[str, Mapping[str, Points]]], note: Sequence[str]) -> Figure:
    """A row for each measure, a column for each family of problems, a line for each method.

    Arguments:
        panels: by measure, family and method: delta / L, and what was paid; infinite where the method did not arrive.
        note: lines that say what was compared and how.
    """
    measures, families = list(panels), list(next(iter(panels.values())))
    names = list(panels[measures[0]][families[0]])
    rows = -(-len(names) // 6)
    with mpl.rc_context(STYLE):
        height = 4.6 + LINE * len(note) + 0.19 * rows
        figure = Figure(figsize=(WIDTH, height))
        axes = figure.subplots(len(measures), len(families), sharey="row", sharex="col", squeeze=False)
        for i, measure in enumerate(measures):
            for j, family in enumerate(families):
                axis = axes[i, j]
                axis.set_xscale("log")
                axis.set_yscale("log")
                for number, name in enumerate(names):
                    ratios, paid = panels[measure][family][name]
                    style = look(number)
                    # a line breaks where the method did not arrive
                    shown = np.where(np.isfinite(paid), paid, np.nan)
                    order = {"zorder": 3 + len(names) - number, "markersize": 3.0, "marker": "o"}
                    axis.plot(ratios, shown, label=name, **order, **style)  # pyright: ignore[reportArgumentType]
                axis.grid(True)
                axis.xaxis.set_minor_formatter(NullFormatter())
                axis.yaxis.set_major_locator(LogLocator(numticks=12))
                axis.yaxis.set_minor_locator(LogLocator(subs=()))
                if i == 0:
                    axis.set_title(family, pad=5)
            axes[i, 0].set_ylabel(AXES.get(measure, measure))
        for axis in axes[-1]:
            axis.set_xlabel(r"$\delta / L$", labelpad=2)
        inch = 1 / height
        handles, labels = axes[0, 0].get_legend_handles_labels()
        figure.legend(
            handles, labels, loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=min(6, len(names)),
            handlelength=2.2, columnspacing=1.4, borderaxespad=0.2,
        )  # fmt: skip
        for number, line in enumerate(reversed(note)):
            figure.text(0.012, (0.08 + LINE * number) * inch, line, fontsize=7.2, color=GREY, va="baseline")
        figure.subplots_adjust(
            left=0.085, right=0.985, wspace=0.08, hspace=0.12,
            top=1 - (0.3 + 0.19 * rows) * inch, bottom=(0.48 + LINE * len(note)) * inch,
        )  # fmt: skip
        return figure
