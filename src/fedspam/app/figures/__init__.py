"""Figures, drawn with Matplotlib from arrays; nothing here computes."""

from fedspam.app.figures.comparison import draw_comparison
from fedspam.app.figures.ridge import Band, Panel, draw_ridge
from fedspam.app.figures.style import save
from fedspam.app.figures.sweep import draw_sweep

__all__ = ["Band", "Panel", "draw_comparison", "draw_ridge", "draw_sweep", "save"]
