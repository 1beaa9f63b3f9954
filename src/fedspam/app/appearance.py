"""How figures and pages look: one list of colors for all of them, and the size and fonts of figures."""

import contextvars
from collections.abc import Mapping
from typing import NamedTuple

# the colors of curves: any two of the first nine are distinct, also under color blindness, on white and on a dark page
LIGHT = (
    "#0072b2", "#d55e00", "#00875f", "#ba69b9", "#523a9e", "#1591ff", "#9d3f00", "#435500", "#4f3131", "#06002a",
)  # fmt: skip
DARK = (
    "#56aee8", "#ff8a4c", "#35c998", "#b666a6", "#8b5cff", "#e0b8ed", "#bde359", "#b8442c", "#969701", "#3c75b2",
)  # fmt: skip


def style_sheet() -> str:
    """The colors as variables of a page: ``--series-0`` and so on."""
    variables = lambda colors: " ".join(f"--series-{i}: {color};" for i, color in enumerate(colors))
    light, dark = variables(LIGHT), variables(DARK)
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}"


class FigureStyle(NamedTuple):
    """The size and the fonts of a figure."""

    about: str  # what it is for
    width: float  # in inches
    across: int  # how many panels may stand side by side
    text: float = 1.0  # the size of all text and lines, relative to that of 'paper'
    panel: float = 1.0  # the height of a panel, relative to that of 'paper'
    fonts: tuple[str, ...] = ("STIXGeneral", "DejaVu Serif")  # the last has the letters that the others lack
    formulas: str = "stix"  # the font set of formulas


STYLES: Mapping[str, FigureStyle] = {
    "paper": FigureStyle("both columns of a paper", 7.0, 3),
    "column": FigureStyle("one column of a paper", 3.4, 1, text=0.9, panel=0.75),
    "slides": FigureStyle("slides", 12.0, 3, text=1.4, panel=1.3, fonts=("DejaVu Sans",), formulas="dejavusans"),
}
_chosen: contextvars.ContextVar[str] = contextvars.ContextVar("style", default="paper")


def choose(style: str | None) -> None:
    """Draw figures in this style of `STYLES`; None for 'paper'."""
    _chosen.set(style or "paper")


def chosen() -> FigureStyle:
    """The style of the figures of this command."""
    return STYLES[_chosen.get()]
