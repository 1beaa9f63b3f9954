"""The figure of `fedspam theory`: one panel per theorem with its bound, and the Lyapunov function along a run."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedspam.app.figures import style

Curve = Float[np.ndarray, " rounds"]


class BoundPanel(NamedTuple):
    """One theorem: the running mean that it bounds, over several runs, and its bound in three versions."""

    title: str
    mean: Curve
    low: Curve
    high: Curve
    corrected: Curve
    printed: Curve
    tight: Curve


class LyapunovPanel(NamedTuple):
    """The Lyapunov function along the runs, and its two parts."""

    title: str
    value: Curve
    gap: Curve
    error: Curve


@style.styled
def draw_bounds(panels: Sequence[BoundPanel], lyapunov: LyapunovPanel, note: Sequence[str]) -> Figure:
    """The theorems on common axes, the Lyapunov function last on its own, a legend above, a note underneath."""
    columns = 3
    rows = -(-(len(panels) + 1) // columns)
    figure = style.new_figure(1.95 * rows, 0.5 + style.note_height(note))
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, panel in zip(axes, panels, strict=False):
        _draw_bound(axis, panel)
    lowest = min(panel.low[panel.low > 0].min() for panel in panels) / 2
    highest = max(max(panel.corrected.max(), panel.printed.max()) for panel in panels) * 2
    for number, axis in enumerate(axes[: len(panels)]):
        axis.set_ylim(lowest, highest)
        axis.tick_params(labelleft=number % columns == 0)
    for number in range(0, len(panels), columns):
        axes[number].set_ylabel(r"mean of $\|\nabla f(x_k)\|^2$")
    _draw_lyapunov(axes[len(panels)], lyapunov)
    for axis in axes[len(panels) + 1 :]:
        axis.set_axis_off()
    style.arrange(
        figure, style.legend_of(axes[0]), note, columns=4, top=0.52, bottom=0.52, left=0.09, right=0.985, wspace=0.2,
        hspace=0.42,
    )  # fmt: skip
    return figure


def _draw_bound(axis: Axes, panel: BoundPanel) -> None:
    rounds = np.arange(1, len(panel.mean) + 1)
    axis.fill_between(rounds, panel.low, panel.high, color=style.BLUE, alpha=0.18, linewidth=0)
    axis.plot(rounds, panel.mean, color=style.BLUE, label="measured")
    axis.plot(rounds, panel.corrected, color=style.BLACK, label="bound, corrected constants")
    axis.plot(rounds, panel.printed, color=style.ORANGE, linestyle=(0, (4, 1.5)), label="bound, as printed")
    axis.plot(rounds, panel.tight, color=style.GREEN, label="bound, tight constants")
    _log(axis, panel.title)


def _draw_lyapunov(axis: Axes, panel: LyapunovPanel) -> None:
    rounds = np.arange(1, len(panel.value) + 1)
    for values, label, color, dashes in (
        (panel.value, r"$V_k$", style.BLACK, "-"),
        (panel.gap, r"$f(x_k) - \inf f$", style.GREEN, "-"),
        (panel.error, r"$\alpha\|g_k - \nabla f(x_k)\|^2$", style.ORANGE, (0, (1, 1))),
    ):
        axis.plot(rounds, values, color=color, linewidth=0.9, linestyle=dashes, label=label)
    axis.legend(loc="upper right", fontsize=7.2, handlelength=2.2, borderaxespad=0.1, labelspacing=0.25)
    _log(axis, panel.title)


def _log(axis: Axes, title: str) -> None:
    axis.set_xscale("log")
    style.log_scale(axis, 8)
    axis.set_title(title, pad=4, fontsize=8.8)
    axis.set_xlabel("rounds $K$", labelpad=1)
    axis.grid(True)
