"""Figures, drawn with Matplotlib from arrays; nothing here computes."""

from fedspam.figures.ridge import Band, Panel, draw_ridge
from fedspam.figures.style import save

__all__ = ["Band", "Panel", "draw_ridge", "save"]
