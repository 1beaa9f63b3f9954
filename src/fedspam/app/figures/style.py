"""How every figure looks: sizes of a two-column paper, colours that colour-blind readers tell apart."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

WIDTH = 7.0  # inches, both columns of a paper
DPI = 200

# Okabe and Ito: distinct under every common colour blindness, and in print
BLUE, ORANGE, GREEN, SKY, PURPLE, YELLOW, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#56B4E9", "#CC79A7", "#E69F00", "#000000",
)  # fmt: skip
GREY = "#6B6B6B"

STYLE: dict[Any, Any] = {
    "font.family": ["STIXGeneral", "DejaVu Serif"],  # the second for letters that the first lacks
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
    # letters as outlines look the same everywhere; without a date and with a fixed salt equal figures are equal files
    "svg.fonttype": "path",
    "svg.hashsalt": "fedspam",
}


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write a figure as PNG and SVG; the same figure gives the same bytes."""
    paths = [folder / f"{name}.png", folder / f"{name}.svg"]
    with mpl.rc_context(STYLE):  # some of the style is only looked up now
        figure.savefig(paths[0], dpi=DPI, metadata={"Software": None})
        figure.savefig(paths[1], metadata={"Date": None})
    return paths
