"""The style of all figures: the sizes of a two-column paper, and colors that color-blind readers can tell apart."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

WIDTH = 7.0  # inches, both columns of a paper
DPI = 200
EVALUATED = 24  # the points of a curve, above which it can end early

# Okabe and Ito: distinct under every common color blindness, and in print
BLUE, ORANGE, GREEN, SKY, PURPLE, YELLOW, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#000000",
)  # fmt: skip
WINE, VIOLET, OLIVE = "#8A1C5B", "#4B3FD0", "#7D7A00"  # as far from these as three more can be
GREY = "#6B6B6B"
COLORS = (BLACK, ORANGE, BLUE, GREEN, PURPLE, SKY, YELLOW, WINE, VIOLET, OLIVE)
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))

STYLE: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],  # the second has letters that the first lacks
    "mathtext.fontset": "stix",
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.labelsize": 9.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "grid.color": "#E3E3E3",
    "grid.linewidth": 0.5,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "lines.linewidth": 1.2,
    "lines.solid_capstyle": "round",
    # outlines of letters need no fonts; without a date and with a fixed salt, equal figures are equal files
    "svg.fonttype": "path",
    "svg.hashsalt": "fedspam",
}


def line_style(number: int) -> dict[str, Any]:
    """The color and dashes of a curve: first all colors, then other dashes."""
    return {"color": COLORS[number % len(COLORS)], "linestyle": DASHES[number // len(COLORS) % len(DASHES)]}


def ends_early(curves: Iterable[tuple[np.ndarray, np.ndarray]]) -> bool:
    """Whether a race ends early, so that a logarithmic axis of cost suits it: a report draws its axis by the same rule.

    A quarter of the curves (cost, positive value) make four fifths of their way in the first twelfth of the axis.

    >>> rounds = np.arange(100.0)
    >>> ends_early([(rounds, 0.9**rounds)]), ends_early([(rounds, np.maximum(0.1**rounds, 1e-3))])
    (False, True)
    """
    arrivals, ends = [], []
    for cost, value in curves:
        there = np.isfinite(value) & (value > 0)
        if there.sum() > EVALUATED:
            way = np.abs(np.log(value[there] / value[there][0]))
            arrivals.append(cost[there][np.argmax(way >= 0.8 * way.max())] if way.max() > 0 else cost[-1])
            ends.append(cost[-1])
    return bool(arrivals and sorted(arrivals)[(len(arrivals) - 1) // 4] < max(ends) / 12)


class Decades(LogLocator):
    """Ticks at powers of ten. Limits that only rounding tells apart count as equal: around these there is a decade."""

    def nonsingular(self, v0: float, v1: float) -> tuple[float, float]:
        return super().nonsingular(v0, v0 if np.isclose(v0, v1, rtol=1e-9, atol=0) else v1)


def log_scale(axis: Axes, ticks: int = 12) -> None:
    """A logarithmic vertical axis with at most so many ticks."""
    axis.set_yscale("log")
    axis.yaxis.set_major_locator(Decades(numticks=ticks))
    axis.yaxis.set_minor_locator(LogLocator(subs=()))


def note_height(note: Sequence[str]) -> float:
    """The inches that the lines of a note take."""
    return 0.14 * len(note)


def arrange(
    figure: Figure,
    legend: Mapping[str, Artist],
    note: Sequence[str] = (),
    *,
    columns: int,
    top: float,
    bottom: float,
    **margins: float,
) -> None:
    """Put a common legend above the panels and a note below them.

    Arguments:
        legend: the curves by label.
        columns: of the legend.
        top: inches above the panels.
        bottom: inches below the panels, without the note.
        margins: of `Figure.subplots_adjust`.
    """
    inch = 1 / figure.get_figheight()
    figure.legend(
        list(legend.values()), list(legend), loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=columns,
        handlelength=2.2, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
    for number, line in enumerate(reversed(note)):
        place = 0.08 + note_height(note[:number])
        figure.text(0.012, place * inch, line, fontsize=7.2, color=GREY, va="baseline")
    figure.subplots_adjust(top=1 - top * inch, bottom=(bottom + note_height(note)) * inch, **margins)


def legend_of(axis: Axes) -> dict[str, Artist]:
    """The curves of an axis by label."""
    handles, labels = axis.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def save(figure: Figure, folder: Path, name: str, vector: str = "svg") -> list[Path]:
    """Write a figure as PNG and as SVG or PDF; the same figure gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.{vector}"]
    dates = {"svg": ("Date",), "pdf": ("CreationDate", "Creator", "Producer")}[vector]
    with mpl.rc_context({**STYLE, "pdf.fonttype": 42}):  # fonts that the checks of publishers accept
        figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata=dict.fromkeys(dates))
    return paths
