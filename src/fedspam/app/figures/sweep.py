"""The figure of the sweep: rounds and bytes against delta / L."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from fedspam.app.arrival import MEASURES
from fedspam.app.figures import style

Points = tuple[np.ndarray, np.ndarray]


@style.styled
def draw_sweep(panels: Mapping[str, Mapping[str, Mapping[str, Points]]], note: Sequence[str]) -> Figure:
    """A row for each measure, a column for each family of problems, a line for each method.

    Arguments:
        panels: by measure, family and method: delta / L, and the cost; infinite where the method did not arrive.
    """
    measures, families = list(panels), list(next(iter(panels.values())))
    names = list(panels[measures[0]][families[0]])
    columns = style.legend_columns(len(names), 6)
    legend = 0.19 * -(-len(names) // columns)
    # where there is no room, families stand below each other, and measures beside
    narrow = style.across(len(families), len(families)) == 1
    figure = style.new_figure(2.3 * len(families if narrow else measures), style.note_height(note) + legend)
    if narrow:
        axes = figure.subplots(len(families), len(measures), sharey="col", sharex="row", squeeze=False).T
    else:
        axes = figure.subplots(len(measures), len(families), sharey="row", sharex="col", squeeze=False)
    for i, measure in enumerate(measures):
        for axis, family in zip(axes[i], families, strict=True):
            axis.set_xscale("log")
            axis.xaxis.set_major_locator(style.Decades())
            style.log_scale(axis)
            for number, name in enumerate(names):
                ratios, paid = panels[measure][family][name]
                # a line breaks where the method did not arrive
                shown = np.where(np.isfinite(paid), paid, np.nan)
                # a point without a line has no dashes to tell it apart
                marker = "os^D"[number // len(style.COLORS) % 4]
                order = {"zorder": 3 + len(names) - number, "markersize": 3.0, "marker": marker}
                axis.plot(ratios, shown, label=name, **order, **style.line_style(number))
            axis.grid(True)
            axis.xaxis.set_minor_formatter(NullFormatter())
            if i == 0:
                axis.set_title(family, pad=5)
        axes[i, 0].set_ylabel(MEASURES[measure])
    for axis in axes[-1]:
        axis.set_xlabel(r"$\delta / L$", labelpad=2)
    style.arrange(
        figure, style.legend_of(axes[0, 0]), note, columns=columns, top=0.3 + legend, bottom=0.48,
        left=0.085, right=0.985, wspace=0.2 if narrow else 0.08, hspace=0.4 if narrow else 0.12,
    )  # fmt: skip
    return figure
