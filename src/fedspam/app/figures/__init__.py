"""Figures, drawn with Matplotlib from arrays; nothing is computed here."""

from fedspam.app.figures.curves import Line as Line, draw_comparison as draw_comparison, draw_curves as draw_curves
from fedspam.app.figures.ridge import Band as Band, Panel as Panel, draw_ridge as draw_ridge
from fedspam.app.figures.style import save as save
from fedspam.app.figures.sweep import draw_sweep as draw_sweep
