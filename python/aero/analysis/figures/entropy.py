"""Figures of attention: head entropies, and where heads look."""

import math
from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike, NDArray

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


# Small weights stay visible: half of the colours are spent on the lowest quarter.
_NORM = PowerNorm(0.5, 0.0, 1.0)


def row_entropies(attention: ArrayLike) -> NDArray[np.float64]:
    """Returns the entropies of the last axis, nats, `-sum p log p` with 0 log 0 = 0."""
    weights = np.asarray(attention, dtype=np.float64)
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    return np.asarray(np.abs((weights * logarithms).sum(axis=-1)))


def plot_attention(attention: ArrayLike, *, title: str = "", axes: Axes | None = None) -> Axes:
    """Draws the causal attention of every head, layers to the right and heads downwards.

    In each head row i is the query, column j the key; white keys are hidden, darker ones have more
    weight. The number in a corner is the mean over the rows of E_i / log(i + 1): the share of the
    entropy that the head can reach.

    Args:
        attention: [L, H, T, T], weights.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes. Its last collection, `gid` "rows", holds a rectangle for every row of every head,
        in the order of `attention`, for titles on hovering.

    Raises:
        ValueError: `attention` is not [L, H, T, T].
    """
    weights = np.asarray(attention, dtype=np.float64)
    if weights.ndim != 4 or weights.size == 0 or weights.shape[2] != weights.shape[3]:
        raise ValueError(
            f"plot_attention: attention must be [L, H, T, T], got {list(weights.shape)}"
        )
    layers, heads, size, _ = weights.shape
    axes = own_or_new_axes(axes)
    step = size + max(1, size // 8)
    sheet = np.full((heads * step, layers * step), np.nan)
    seen = np.tril(np.ones((size, size), dtype=bool))
    rectangles = []
    reachable = np.log(np.arange(1, size + 1))
    for layer, head in np.ndindex(layers, heads):
        top, left = head * step, layer * step
        weight = weights[layer, head]
        sheet[top : top + size, left : left + size] = np.where(seen, weight, np.nan)
        rectangles += [
            [
                (left, top + i),
                (left + i + 1, top + i),
                (left + i + 1, top + i + 1),
                (left, top + i + 1),
            ]
            for i in range(size)
        ]
        entropy = row_entropies(weight)[1:] / reachable[1:]
        axes.text(
            left + size, top, f"{entropy.mean() if size > 1 else math.nan:.2f}", ha="right",
            va="top", color="0.25", size=7 if layers * heads > 1 else 10,
        )  # fmt: skip
    extent = (0, layers * step, heads * step, 0)
    axes.imshow(sheet, cmap="Blues", norm=_NORM, interpolation="none", extent=extent)
    axes.add_collection(PolyCollection(rectangles, facecolor=(1, 1, 1, 0.004), gid="rows"))
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    middles = size / 2
    axes.set_xticks(middles + step * np.arange(layers), [f"layer {i}" for i in range(layers)])
    axes.set_yticks(middles + step * np.arange(heads), [f"head {i}" for i in range(heads)])
    axes.set_xlim(0, layers * step - (step - size))
    axes.set_ylim(heads * step - (step - size), 0)
    axes.set_title(title)
    return axes
