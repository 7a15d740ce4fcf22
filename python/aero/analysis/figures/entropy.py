"""Figures of head entropies."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import (
    draw_heat_map,
    entropy_colors,
    ink_on,
    label_rows,
    layer_colors,
    matrix,
    own_or_new_axes,
    steps_and_rows,
)

__all__ = ["plot_entropy_heat_map", "plot_layerwise_entropy", "plot_quarter_shares"]

# The colours of the heat map at the middle of each quarter, so that both figures read alike.
_QUARTER_COLORS = ("#414487", "#26828e", "#6cce59", "#fde725")
_QUARTER_NAMES = ("collapsed, first quarter", "second", "third", "overloaded, last quarter")


def plot_entropy_heat_map(
    head_entropy: ArrayLike, *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws head entropies, layers downwards and heads to the right; NaN heads are named.

    The scale is [0, 1] in every figure, so that panels can be compared. Row i of a causal head
    sees i + 1 tokens, so its entropy reaches log(i + 1) and not log T: on a scale in nats that ends
    at log T = 4.85 for T = 128, a head that looks everywhere alike would show 3.88.

    Args:
        head_entropy: [L, H], shares of the entropy that each head can reach, such as
            `summarize_entropies(...).head_entropy_normalized_visible`.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: `head_entropy` is not [L, H], or an entropy is not in [0, 1].

    Example:
        >>> from aero.analysis import plot_entropy_heat_map
        >>> plot_entropy_heat_map([[0.25, 1.0]], title="SM").get_title()
        'SM'
    """
    values = matrix("plot_entropy_heat_map", "head_entropy", head_entropy)
    # A float32 entropy of equal weights may exceed its maximum by rounding.
    outside = values[(values < 0) | (values > 1 + 1e-4)]
    if outside.size:
        raise ValueError(
            "plot_entropy_heat_map: head_entropy must be shares in [0, 1], such as "
            f"head_entropy_normalized_visible, got {outside[0]:.4g}"
        )
    axes = own_or_new_axes(axes)
    draw_heat_map(axes, values, entropy_colors())
    axes.set_title(title)
    return axes


def plot_quarter_shares(
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
        >>> from aero.analysis import plot_quarter_shares
        >>> len(plot_quarter_shares({"SM": [0.1, 0.2, 0.3, 0.4]}).containers)
        4
    """
    axes = own_or_new_axes(axes)
    table = np.array([np.asarray(value, dtype=np.float64) for value in shares.values()])
    if table.shape != (len(shares), 4):
        raise ValueError("plot_quarter_shares: shares must be 4 fractions per network")
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


def plot_layerwise_entropy(
    steps: ArrayLike,
    entropies: ArrayLike,
    context_length: int,
    *,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws each layer's mean entropy over training steps (AERO, Figure 12).

    The dotted line is the most that a causal head can reach: the mean of log(i + 1) over the rows
    i < T, which is log(T!) / T.

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
        >>> from aero.analysis import plot_layerwise_entropy
        >>> len(plot_layerwise_entropy([0, 10], [[3.0, 3.1], [2.0, 1.0]], 128).get_lines())
        3
    """
    axes = own_or_new_axes(axes)
    positions, values = steps_and_rows("plot_layerwise_entropy", steps, "entropies", entropies)
    colors = layer_colors(values.shape[1]).to_rgba(np.arange(values.shape[1]))
    for layer, color in enumerate(colors):
        axes.plot(positions, values[:, layer], color=color, label=f"layer {layer}")
    maximum = math.lgamma(context_length + 1) / context_length
    axes.axhline(maximum, color="0.5", linestyle=":", linewidth=1)
    axes.set_ylim(0, 1.04 * maximum)
    axes.set_xlabel("step")
    axes.set_ylabel("entropy (nats)")
    axes.set_title(title)
    return axes
