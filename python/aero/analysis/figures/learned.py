"""Figures of a training: losses, and learned thresholds and temperatures."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import (
    draw_heat_map,
    matrix,
    network_colors,
    own_or_new_axes,
    threshold_colors,
)


def plot_learned_thresholds(
    thresholds: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the learned thresholds, fractions of the maximum entropy (AERO, Figure 10a).

    Args:
        thresholds: [L, H]; the scale is [0, 1].
        title: above the panel.
        axes: where to draw; None makes a figure.

    Raises:
        ValueError: `thresholds` is not [L, H].
    """
    axes = own_or_new_axes(axes)
    values = matrix("plot_learned_thresholds", "thresholds", thresholds)
    draw_heat_map(axes, values, threshold_colors())
    axes.set_title(title)
    return axes


def plot_learned_temperatures(
    temperature: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws one layer's learned temperatures, one line per head.

    Args:
        temperature: [H, T] over the query position, or [H] or [1], drawn as one marker per value.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Raises:
        ValueError: `temperature` has another number of dimensions.
    """
    axes = own_or_new_axes(axes)
    values = np.asarray(temperature, dtype=np.float64)
    if values.ndim not in (1, 2):
        raise ValueError(
            "plot_learned_temperatures: temperature must be [H, T], [H] or [1], "
            f"got {list(values.shape)}"
        )
    if values.ndim == 1:
        axes.plot(np.arange(len(values)), values, "o", color=network_colors(1)[0])
        axes.set_xlabel("head")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        for head, (line, color) in enumerate(zip(values, network_colors(len(values)), strict=True)):
            axes.plot(line, color=color, linewidth=0.9, label=f"head {head}")
        axes.set_xlabel("query position")
    axes.set_ylabel("temperature")
    axes.set_title(title)
    return axes


_MOST_MARKED_POINTS = 30


def plot_loss_curves(
    curves: Mapping[str, Sequence[tuple[ArrayLike, ArrayLike]]],
    *,
    endings: Mapping[str, str] | None = None,
    series: Sequence[str] | None = None,
    series_order: Sequence[str] | None = None,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws loss over steps; several seeds of one network share its colour.

    Args:
        curves: network -> one (steps [N], losses [N]) per seed, nats per token.
        endings: network -> a note for the legend, such as "NaN at step 120"; the last point of such
            a network gets a cross.
        series: one per network; networks of one series share a colour and differ in their dashes;
            None: each has its own.
        series_order: all series, those of other figures too, so that each has its colour in all of
            them; None: in order of appearance.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes, with one legend handle per network.

    Raises:
        ValueError: `series` has another length than `curves`.

    Example:
        >>> from aero.analysis import plot_loss_curves
        >>> plot_loss_curves({"SM": [([1, 2], [5.0, 4.0])]}).get_ylabel()
        'loss (nats per token)'
    """
    axes = own_or_new_axes(axes)
    notes = endings or {}
    styles = _styles([*curves] if series is None else [*series], [*(series_order or ())])
    if len(styles) != len(curves):
        raise ValueError(
            f"plot_loss_curves: series must have one entry per network, {len(curves)}, got "
            f"{len(styles)}"
        )
    for (name, runs), (color, dashes) in zip(curves.items(), styles, strict=True):
        note = f" ({notes[name]})" if name in notes else ""
        for index, (steps, losses) in enumerate(runs):
            label = f"{name}{note}" if index == 0 else None
            x, y = np.asarray(steps), np.asarray(losses, dtype=np.float64)
            # Few points are points, not a curve; one alone would be invisible as a line.
            marker = "." if len(x) <= _MOST_MARKED_POINTS else ""
            axes.plot(x, y, dashes, color=color, linewidth=1.2, marker=marker, label=label)
            finite = np.flatnonzero(np.isfinite(y))
            if note and len(finite):
                last = finite[-1]
                axes.plot(x[last], y[last], "x", color=color, markersize=9, markeredgewidth=2)
    axes.set_xlabel("step")
    axes.set_ylabel("loss (nats per token)")
    axes.set_title(title)
    axes.grid(alpha=0.25)
    return axes


_DASHES = ("-", "--", ":", "-.")


def _styles(series: list[str], order: list[str]) -> list[tuple[str, str]]:
    """The colour of each entry's series, and its dashes within the series."""
    distinct = list(dict.fromkeys([*order, *series]))
    colors = dict(zip(distinct, network_colors(len(distinct)), strict=True))
    return [
        (colors[name], _DASHES[series[:index].count(name) % len(_DASHES)])
        for index, name in enumerate(series)
    ]
