"""Figures of a training: losses, heads that failed, and learned thresholds, slopes and scales."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike, NDArray

from aero.analysis.figures.drawing import (
    draw_heat_map,
    layer_colors,
    matrix,
    network_colors,
    own_or_new_axes,
    steps_and_rows,
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


def plot_thresholds_by_layer(
    thresholds: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws mean and standard deviation of each layer's thresholds (AERO, Figure 10b).

    Args:
        thresholds: [L, H], fractions of the maximum entropy; the scale is [0, 1].
        title: above the panel.
        axes: where to draw; None makes a figure.

    Raises:
        ValueError: `thresholds` is not [L, H].
    """
    axes = own_or_new_axes(axes)
    values = matrix("plot_thresholds_by_layer", "thresholds", thresholds)
    layers = np.arange(len(values))
    color = network_colors(1)[0]
    axes.bar(layers, values.mean(axis=1), color=color, alpha=0.35, label="mean")
    axes.errorbar(
        layers, values.mean(axis=1), values.std(axis=1), fmt="o", color=color, capsize=3,
        label="standard deviation over heads",
    )  # fmt: skip
    _layer_axis(axes)
    axes.set_ylim(0, 1)
    axes.set_ylabel("threshold (fraction of max)")
    axes.set_title(title)
    return axes


def plot_learned_slopes(
    steps: ArrayLike, slopes: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the negative slopes of a leaky ReLU over training (AERO, Figure 4).

    Args:
        steps: [N], optimizer steps.
        slopes: [N, L], one per layer, or [N, 1] if all layers share it.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes; the dotted line is slope 0, which is ReLU.

    Raises:
        ValueError: shapes do not fit.
    """
    axes = own_or_new_axes(axes)
    positions, values = steps_and_rows("plot_learned_slopes", steps, "slopes", slopes)
    _lines_by_layer(axes, positions, values, "all layers")
    axes.axhline(0.0, color="0.5", linestyle=":", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("negative slope")
    axes.set_title(title)
    return axes


def plot_learned_scales(
    alpha: ArrayLike, beta: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the scales of every layer's FFN, `beta x + FFN(x) / alpha` (AERO, Eq. 6, Figure 11).

    Args:
        alpha: [L], the divisors of the FFNs' outputs.
        beta: [L], the factors of the residuals.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Raises:
        ValueError: alpha and beta are not both [L].
    """
    divisors = np.asarray(alpha, dtype=np.float64)
    factors = np.asarray(beta, dtype=np.float64)
    if divisors.ndim != 1 or divisors.shape != factors.shape:
        raise ValueError(
            "plot_learned_scales: alpha and beta must both be [L], "
            f"got {list(divisors.shape)} and {list(factors.shape)}"
        )
    axes = own_or_new_axes(axes)
    layers = np.arange(len(divisors))
    named = (("alpha, divides the FFN", divisors, "o-"), ("beta, of the residual", factors, "s--"))
    for (name, values, line), color in zip(named, network_colors(2), strict=True):
        axes.plot(layers, values, line, color=color, label=name)
    axes.axhline(1.0, color="0.5", linestyle=":", linewidth=1)
    _layer_axis(axes)
    axes.set_ylabel("learned scale")
    axes.set_title(title)
    axes.legend()
    return axes


def _layer_axis(axes: Axes) -> None:
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _lines_by_layer(
    axes: Axes, steps: NDArray[np.float64], values: NDArray[np.float64], only: str
) -> None:
    """One line per column in the colour of its depth; `only` names a single column."""
    count = values.shape[1]
    colors = layer_colors(count).to_rgba(np.arange(count))
    for layer, color in enumerate(colors):
        name = f"layer {layer}" if count > 1 else only
        axes.plot(steps, values[:, layer], color=color, label=name)


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
