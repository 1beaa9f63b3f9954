"""Figures, drawn with Matplotlib from arrays; nothing is computed here."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, NullFormatter

from fedspam.app.arrival import MEASURES
from fedspam.app.figures import style
from fedspam.app.figures.style import save as save
from fedspam.simulation.metrics import METRICS

GRADIENT = r"$\|\nabla f(x_k)\|\,/\,\|\nabla f(x_0)\|$"
FAR = 1e30  # beyond every axis, and far from the largest number, so that margins do not overflow

# --- reports and comparisons: one metric, one panel per measure of cost ----------------------------------------------

SPREAD = 30.0  # curves that span this factor have a logarithmic axis
BEYOND = 1e3  # the axis ends at this factor above the first value; curves that diverge leave the figure
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


# --- the paper's section 6 --------------------------------------------------------------------------------------------

HIGHEST = 100.0  # the largest upper end of the axis; curves that diverge leave the figure
SPACE = 3.0  # a factor of space below and above the curves


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
    axes[0].set_ylim(values[values > 0].min() / SPACE, min(HIGHEST, SPACE * highest))
    for row in grid:
        row[0].set_ylabel(GRADIENT)
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
        median, low, high = (np.minimum(part, 10 * HIGHEST) for part in band)
        axis.fill_between(rounds, low, high, color=look["color"], alpha=0.16, linewidth=0, zorder=2)
        axis.plot(rounds, median, label=key, zorder=3 + order, **look)
        if band.median[-1] > HIGHEST:
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


# --- the sweep --------------------------------------------------------------------------------------------------------

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


# --- the bounds of the theorems ---------------------------------------------------------------------------------------


class BoundPanel(NamedTuple):
    """A theorem, or the Lyapunov function along the runs: curves with the labels of `LOOKS`, and a band around one."""

    title: str
    curves: Mapping[str, Float[np.ndarray, " rounds"]]
    low: Float[np.ndarray, " rounds"] | None = None
    high: Float[np.ndarray, " rounds"] | None = None


CORRECTED, PRINTED = "bound, corrected constants", "bound, as printed"
LOOKS: Mapping[str, Mapping[str, Any]] = {
    "measured": {"color": style.BLUE},
    CORRECTED: {"color": style.BLACK},
    PRINTED: {"color": style.ORANGE, "linestyle": (0, (4, 1.5))},
    "bound, tight constants": {"color": style.GREEN},
    "$V_k$": {"color": style.BLACK, "linewidth": 0.9},
    r"$f(x_k) - \inf f$": {"color": style.GREEN, "linewidth": 0.9},
    r"$\alpha\|g_k - \nabla f(x_k)\|^2$": {"color": style.ORANGE, "linewidth": 0.9, "linestyle": (0, (1, 1))},
}


@style.styled
def draw_bounds(panels: Sequence[BoundPanel], lyapunov: BoundPanel, note: Sequence[str]) -> Figure:
    """The theorems on common axes, the Lyapunov function last on its own, a legend above, a note underneath."""
    columns = 3
    rows = -(-(len(panels) + 1) // columns)
    figure = style.new_figure(1.95 * rows, 0.5 + style.note_height(note))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, panel in zip(axes, [*panels, lyapunov], strict=False):
        _draw_bound(axis, panel)
    lowest = min(panel.low[panel.low > 0].min() for panel in panels if panel.low is not None) / 2
    highest = max(panel.curves[name].max() for panel in panels for name in (CORRECTED, PRINTED)) * 2
    for number, axis in enumerate(axes[: len(panels)]):
        axis.set_ylim(lowest, highest)
        axis.tick_params(labelleft=number % columns == 0)
    for number in range(0, len(panels), columns):
        axes[number].set_ylabel(r"mean of $\|\nabla f(x_k)\|^2$")
    axes[len(panels)].legend(loc="upper right", fontsize=7.2, handlelength=2.2, borderaxespad=0.1, labelspacing=0.25)
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    style.arrange(
        figure, style.legend_of(axes[0]), note, columns=4, top=0.52, bottom=0.52, left=0.09, right=0.985, wspace=0.2,
        hspace=0.42,
    )  # fmt: skip
    return figure


def _draw_bound(axis: Axes, panel: BoundPanel) -> None:
    rounds = np.arange(1, len(next(iter(panel.curves.values()))) + 1)
    if panel.low is not None and panel.high is not None:
        axis.fill_between(rounds, panel.low, panel.high, color=style.BLUE, alpha=0.18, linewidth=0)
    for label, values in panel.curves.items():
        axis.plot(rounds, values, label=label, **LOOKS[label])
    axis.set_xscale("log")
    style.log_scale(axis, 8)
    axis.set_title(panel.title, pad=4, fontsize=8.8)
    axis.set_xlabel("rounds $K$", labelpad=1)
    axis.grid(True)
