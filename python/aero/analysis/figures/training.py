"""Figures of how a training run went."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import (
    layer_colors,
    network_colors,
    own_or_new_axes,
    steps_and_rows,
)

__all__ = ["plot_loss_curves", "plot_nan_counts"]

_MOST_MARKED_POINTS = 30


def plot_loss_curves(
    curves: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]],
    *,
    endings: Mapping[str, str] | None = None,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws loss over steps; several seeds of one network share its colour.

    Args:
        curves: network -> one (steps [N], losses [N]) per seed, nats per token.
        endings: network -> a note for the legend, such as "NaN at step 120"; the last point of such
            a network gets a cross.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes, with one legend handle per network.

    Example:
        >>> from aero.analysis import plot_loss_curves
        >>> plot_loss_curves({"SM": [([1, 2], [5.0, 4.0])]}).get_ylabel()
        'loss (nats per token)'
    """
    axes = own_or_new_axes(axes)
    notes = endings or {}
    for (name, runs), color in zip(curves.items(), network_colors(len(curves)), strict=True):
        note = f" ({notes[name]})" if name in notes else ""
        for index, (steps, losses) in enumerate(runs):
            label = f"{name}{note}" if index == 0 else None
            x, y = np.asarray(steps), np.asarray(losses, dtype=np.float64)
            # Few points are points, not a curve; one alone would be invisible as a line.
            marker = "." if len(x) <= _MOST_MARKED_POINTS else ""
            axes.plot(x, y, color=color, linewidth=1.2, marker=marker, label=label)
            finite = np.flatnonzero(np.isfinite(y))
            if note and len(finite):
                last = finite[-1]
                axes.plot(x[last], y[last], "x", color=color, markersize=9, markeredgewidth=2)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    return axes


def plot_nan_counts(
    steps: ArrayLike, counts: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws how many non-finite heads each layer has over training (AERO, Figure 6a).

    Args:
        steps: [N], optimizer steps.
        counts: [N, L], heads (`aero.analysis.statistics.nan_counts`), or any other count per layer.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes; lines of layers without any NaN lie on zero.

    Raises:
        ValueError: shapes do not fit.

    Example:
        >>> from aero.analysis.figures.training import plot_nan_counts
        >>> len(plot_nan_counts([0, 10, 20], [[0, 0], [0, 2], [1, 4]]).get_lines())
        2
    """
    axes = own_or_new_axes(axes)
    positions, values = steps_and_rows("plot_nan_counts", steps, "counts", counts)
    colors = layer_colors(values.shape[1]).to_rgba(np.arange(values.shape[1]))
    for layer, color in enumerate(colors):
        axes.step(positions, values[:, layer], where="post", color=color, label=f"layer {layer}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, max(1.0, 1.05 * float(values.max())))
    axes.set_xlabel("step")
    axes.set_ylabel("heads with NaN")
    axes.set_title(title)
    return axes
