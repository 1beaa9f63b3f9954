"""Figures, drawn with Matplotlib from arrays; nothing is computed here."""

from fedspam.app.figures.comparison import draw_comparison as draw_comparison
from fedspam.app.figures.curves import Line as Line
from fedspam.app.figures.curves import draw_curves as draw_curves
from fedspam.app.figures.ridge import Band as Band
from fedspam.app.figures.ridge import Panel as Panel
from fedspam.app.figures.ridge import draw_ridge as draw_ridge
from fedspam.app.figures.style import save as save
from fedspam.app.figures.sweep import draw_sweep as draw_sweep
