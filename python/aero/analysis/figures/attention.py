"""Figures of where attention looks."""

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import PowerNorm
from numpy.typing import ArrayLike, NDArray

from aero.analysis.figures.drawing import own_or_new_axes

__all__ = ["plot_attention", "row_entropies"]

# Small weights stay visible: half of the colours are spent on the lowest quarter.
_NORM = PowerNorm(0.5, 0.0, 1.0)


def row_entropies(attention: ArrayLike) -> NDArray[np.float64]:
    """Returns the entropies of the last axis, nats, `-sum p log p` with 0 log 0 = 0.

    Example:
        >>> from aero.analysis.figures.attention import row_entropies
        >>> row_entropies([[1.0, 0.0], [0.5, 0.5]]).round(3).tolist()
        [0.0, 0.693]
    """
    weights = np.asarray(attention, dtype=np.float64)
    logarithms = np.log(np.where(weights > 0, weights, 1.0))
    return np.asarray(np.abs((weights * logarithms).sum(axis=-1)))


def plot_attention(
    attention: ArrayLike,
    *,
    tokens: Sequence[str] | None = None,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws the causal attention of every head, layers to the right and heads downwards.

    In each head row i is the query, column j the key; white keys are hidden, darker ones have more
    weight. The number in a corner is the mean over the rows of E_i / log(i + 1): the share of the
    entropy that the head can reach.

    Args:
        attention: [L, H, T, T], weights.
        tokens: T of them, written at the axes of a single head.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes. Its last collection, `gid` "rows", holds a rectangle for every row of every head,
        in the order of `attention`, for titles on hovering.

    Raises:
        ValueError: `attention` is not [L, H, T, T], or there are not T tokens.

    Example:
        >>> import numpy as np
        >>> from aero.analysis.figures.attention import plot_attention
        >>> weights = np.tril(np.ones((1, 2, 4, 4))) / np.arange(1, 5)[:, None]
        >>> [text.get_text() for text in plot_attention(weights).texts]
        ['1.00', '1.00']
    """
    weights = np.asarray(attention, dtype=np.float64)
    if weights.ndim != 4 or weights.size == 0 or weights.shape[2] != weights.shape[3]:
        raise ValueError(
            f"plot_attention: attention must be [L, H, T, T], got {list(weights.shape)}"
        )
    layers, heads, size, _ = weights.shape
    if tokens is not None and len(tokens) != size:
        raise ValueError(f"plot_attention: tokens must be T = {size}, got {len(tokens)}")
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
    if tokens is not None and layers * heads == 1:
        axes.set_xticks(np.arange(size) + 0.5, tokens, rotation=90, parse_math=False)
        axes.set_yticks(np.arange(size) + 0.5, tokens, parse_math=False)
    axes.set_xlim(0, layers * step - (step - size))
    axes.set_ylim(heads * step - (step - size), 0)
    axes.set_title(title)
    return axes
