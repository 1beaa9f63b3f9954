"""The style of all figures: sizes, fonts, and colors that color-blind readers can tell apart."""

import functools
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ParamSpec

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from fedspam.app.appearance import LIGHT as COLORS, STYLES, chosen

P = ParamSpec("P")
WIDTH = STYLES["paper"].width
LETTERS = 21  # of a note, per inch
DPI = 200
EVALUATED = 24  # the points of a curve, above which it can end early

# Okabe and Ito: distinct under every common color blindness, and in print
BLUE, ORANGE, GREEN, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#000000", "#6B6B6B"
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (4, 1.2, 1, 1.2)))

STYLE: dict[Any, Any] = {
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
GROWING = ("size", "width")  # the settings that grow with the text


def settings() -> dict[Any, Any]:
    """What Matplotlib is told, in the chosen style."""
    style = chosen()
    scaled = {name: value * style.text if name.endswith(GROWING) else value for name, value in STYLE.items()}
    return scaled | {"font.family": list(style.fonts), "mathtext.fontset": style.formulas}


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """The function, drawing in the chosen style."""

    @functools.wraps(draw)
    def drawn(*arguments: P.args, **options: P.kwargs) -> Figure:
        with mpl.rc_context(settings()):
            return draw(*arguments, **options)

    return drawn


def new_figure(panels: float, texts: float) -> Figure:
    """A figure of the chosen width, with so many inches in height for its panels, and for its texts."""
    style = chosen()
    return Figure(figsize=(style.width, panels * style.panel + texts * style.text))


def across(count: int, most: int) -> int:
    """How many of some panels stand side by side, at most so many."""
    return max(1, min(count, most, chosen().across))


def legend_columns(count: int, most: int) -> int:
    """How many of some names stand side by side in a legend, where a wide figure has at most so many."""
    style = chosen()
    return max(1, min(count, int(most * style.width / (WIDTH * style.text) + 1e-9)))


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
    """The inches that the lines of a note take, at the text size of a paper."""
    return 0.14 * len(_lines(note))


def _lines(note: Sequence[str]) -> list[str]:
    """The lines of a note as they fit into the figure; formulas, between dollars, are not broken."""
    style = chosen()
    if style.width >= WIDTH * style.text:
        return list(note)
    whole = (re.sub(r"\$[^$]*\$", lambda formula: formula[0].replace(" ", "\0"), line) for line in note)
    width = int(LETTERS * style.width / style.text)
    return [part.replace("\0", " ") for line in whole for part in textwrap.wrap(line, width)]


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
        top: inches above the panels, at the text size of a paper.
        bottom: inches below the panels, without the note.
        margins: of `Figure.subplots_adjust`, for both columns of a paper.
    """
    style, note = chosen(), _lines(note)
    inch = style.text / figure.get_figheight()
    wide = WIDTH * style.text / style.width  # how much more of the width a margin takes
    margins |= {"left": wide * margins["left"], "right": 1 - wide * (1 - margins["right"])}
    margins |= {
        "wspace": wide * margins.get("wspace", 0.2),
        "hspace": style.text / style.panel * margins.get("hspace", 0.2),
    }
    figure.legend(
        list(legend.values()), list(legend), loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=columns,
        handlelength=2.2, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
    for number, line in enumerate(reversed(note)):
        place = 0.08 + 0.14 * number
        figure.text(0.012, place * inch, line, fontsize=7.2 * style.text, color=GREY, va="baseline")
    figure.subplots_adjust(top=1 - top * inch, bottom=(bottom + 0.14 * len(note)) * inch, **margins)


def legend_of(axis: Axes) -> dict[str, Artist]:
    """The curves of an axis by label."""
    handles, labels = axis.get_legend_handles_labels()
    return dict(zip(labels, handles, strict=True))


def save(figure: Figure, folder: Path, name: str, vector: str = "svg") -> list[Path]:
    """Write a figure as PNG and as SVG or PDF; the same figure gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.{vector}"]
    dates = {"svg": ("Date",), "pdf": ("CreationDate", "Creator", "Producer")}[vector]
    with mpl.rc_context({**settings(), "pdf.fonttype": 42}):  # fonts that the checks of publishers accept
        figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata=dict.fromkeys(dates))
    return paths
