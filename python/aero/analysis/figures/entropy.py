"""Figures of head entropies and of what the entropy penalty learned."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import (
    draw_heat_map,
    entropy_colors,
    ink_on,
    label_rows,
    layer_colors,
    matrix,
    network_colors,
    own_or_new_axes,
    threshold_colors,
)

__all__ = [
    "entropy_heat_map",
    "layerwise_entropy",
    "learned_temperatures",
    "learned_thresholds",
    "quarter_shares",
]

# The colours of the heat map at the middle of each quarter, so that both figures read alike.
_QUARTER_COLORS = ("#414487", "#26828e", "#6cce59", "#fde725")
_QUARTER_NAMES = ("collapsed, first quarter", "second", "third", "overloaded, last quarter")


def entropy_heat_map(
    head_entropy: ArrayLike, context_length: int, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws head entropies, layers downwards and heads to the right; NaN heads are crossed out.

    The scale is [0, log T] in every figure, so that panels can be compared; `entropy_colors` gives
    the matching colour bar.

    Args:
        head_entropy: [L, H], nats.
        context_length: T of the scale.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: `head_entropy` is not [L, H].

    Example:
        >>> entropy_heat_map([[1.0, 2.0]], 128, title="SM").get_title()
        'SM'
    """
    axes = own_or_new_axes(axes)
    scale = entropy_colors(context_length)
    draw_heat_map(axes, matrix("entropy_heat_map", "head_entropy", head_entropy), scale)
    axes.set_title(title)
    return axes


def quarter_shares(
    shares: Mapping[str, ArrayLike], *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the share of heads in each entropy quarter, one stacked bar per network (Figure 3a).

    Args:
        shares: network -> [4] fractions, lowest quarter first.
        title: above the panel; it should name the maximum the quarters divide.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes, with a legend handle per quarter.

    Raises:
        ValueError: a value is not [4].

    Example:
        >>> len(quarter_shares({"SM": [0.1, 0.2, 0.3, 0.4]}).containers)
        4
    """
    axes = own_or_new_axes(axes)
    table = np.array([np.asarray(value, dtype=np.float64) for value in shares.values()])
    if table.shape != (len(shares), 4):
        raise ValueError("quarter_shares: shares must be 4 fractions per network")
    left = np.zeros(len(shares))
    for quarter, (name, color) in enumerate(zip(_QUARTER_NAMES, _QUARTER_COLORS, strict=True)):
        width = 100.0 * table[:, quarter]
        bars = axes.barh(range(len(shares)), width, left=left, color=color, label=name)
        text = [f"{value:.0f}" if value >= 6 else "" for value in width]
        axes.bar_label(bars, text, label_type="center", color=ink_on(color), fontsize="small")
        left += width
    label_rows(axes, list(shares))
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of heads (%)")
    axes.set_title(title)
    return axes


def layerwise_entropy(
    steps: ArrayLike,
    entropies: ArrayLike,
    context_length: int,
    *,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws each layer's mean entropy over training steps (AERO, Figure 12).

    The y axis is [0, log T], the dotted line is log T.

    Args:
        steps: [N], optimizer steps.
        entropies: [N, L], nats; NaN breaks the line.
        context_length: T.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: shapes do not fit.

    Example:
        >>> len(layerwise_entropy([0, 10], [[3.0, 3.1], [2.0, 1.0]], 128).get_lines())
        3
    """
    axes = own_or_new_axes(axes)
    values = matrix("layerwise_entropy", "entropies", entropies)
    positions = np.asarray(steps)
    if positions.shape != values.shape[:1]:
        raise ValueError(
            f"layerwise_entropy: steps must be [N] = [{values.shape[0]}], "
            f"got {list(positions.shape)}"
        )
    colors = layer_colors(values.shape[1]).to_rgba(np.arange(values.shape[1]))
    for layer, color in enumerate(colors):
        axes.plot(positions, values[:, layer], color=color, label=f"layer {layer}")
    maximum = float(np.log(context_length))
    axes.axhline(maximum, color="0.5", linestyle=":", linewidth=1)
    axes.set_ylim(0, 1.04 * maximum)
    axes.set_xlabel("step")
    axes.set_ylabel("entropy (nats)")
    axes.set_title(title)
    return axes


def learned_thresholds(thresholds: ArrayLike, *, title: str = "", axes: Axes | None = None) -> Axes:
    """Draws the learned thresholds, fractions of the maximum entropy (AERO, Figure 10a).

    Args:
        thresholds: [L, H]; the scale is [0, 1].
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: `thresholds` is not [L, H].

    Example:
        >>> learned_thresholds([[0.5, 0.4]]).get_xlabel()
        'head'
    """
    axes = own_or_new_axes(axes)
    values = matrix("learned_thresholds", "thresholds", thresholds)
    draw_heat_map(axes, values, threshold_colors())
    axes.set_title(title)
    return axes


def learned_temperatures(
    temperature: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws one layer's learned temperatures, one line per head.

    Args:
        temperature: [H, T] over the query position, or [H] or [1], drawn as one marker per value.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: `temperature` has another number of dimensions.

    Example:
        >>> len(learned_temperatures([[1.0, 0.9], [1.0, 1.2]]).get_lines())
        2
    """
    axes = own_or_new_axes(axes)
    values = np.asarray(temperature, dtype=np.float64)
    if values.ndim not in (1, 2):
        raise ValueError(
            "learned_temperatures: temperature must be [H, T], [H] or [1], "
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
