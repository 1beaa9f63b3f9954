"""Figures, drawn with Matplotlib from arrays; nothing here computes."""

from fedspam.figures.comparison import draw_comparison
from fedspam.figures.ridge import Band, Panel, draw_ridge
from fedspam.figures.style import save
from fedspam.figures.sweep import draw_sweep

__all__ = ["Band", "Panel", "draw_comparison", "draw_ridge", "draw_sweep", "save"]
