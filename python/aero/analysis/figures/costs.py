"""Figures of the private cost of networks, and of their savings."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import label_rows, own_or_new_axes
from aero.internals.palette import NETWORK_COLORS, PART_COLORS

_OURS, _PUBLISHED = NETWORK_COLORS[:2]


# The parts that a reader can tell apart in a bar; the last one holds the rest.
_GROUPS = {
    "softmax": ("softmax",),
    "LayerNorm": ("layernorm",),
    "activation": ("act",),
    "linear layers": ("qkv/proj", "QK", "PV", "ffn"),
    "embedding, output, rest": (),
}


def plot_bytes_by_kind(
    comm_bytes: Mapping[str, Mapping[str, float]], *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the bytes of one private forward pass: a bar per network, a colour per kind of part.

    Five colours at most: the linear layers are one part here, as are embedding, output and rest.

    Args:
        comm_bytes: network -> kind of part -> bytes of both parties.
        title: above the panel; it should name sizes and protocol stack.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes, in GB of 1e9 bytes, with one legend handle per part that costs anything.

    Example:
        >>> from aero.analysis import plot_bytes_by_kind
        >>> plot_bytes_by_kind({"SM": {"softmax": 4e9, "ffn": 1e9}}).get_xlabel()
        'GB, both parties'
    """
    axes = own_or_new_axes(axes)
    left = np.zeros(len(comm_bytes))
    named = {kind for kinds in _GROUPS.values() for kind in kinds}
    for group, kinds in _GROUPS.items():
        width = np.array(
            [
                sum(parts[kind] for kind in parts if kind in kinds or not (kinds or kind in named))
                for parts in comm_bytes.values()
            ]
        )
        if width.any():
            color = PART_COLORS[kinds[0] if kinds else "embed"]
            axes.barh(range(len(left)), width / 1e9, left=left, color=color, label=group)
            left += width / 1e9
    for row, total in enumerate(left):
        axes.annotate(
            f" {total:.3g}", (total, row), va="center", fontsize="small", annotation_clip=False
        )
    label_rows(axes, list(comm_bytes))
    axes.set_xlim(0, 1.12 * float(left.max(initial=0.0)) or 1.0)
    axes.set_xlabel("GB, both parties")
    axes.set_title(title)
    return axes


def plot_stepwise_savings(
    names: Sequence[str],
    values: ArrayLike,
    *,
    published: ArrayLike | None = None,
    unit: str,
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws one bar per step with how many times less it takes than the first.

    Args:
        names: the steps [N], the baseline first.
        values: the cost of each [N], positive.
        published: the same as published [N], NaN where nothing is; None: nothing is.
        unit: of all of them, for the axis.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: the arrays are not all [N], or N is 0.

    Example:
        >>> from aero.analysis import plot_stepwise_savings
        >>> plot_stepwise_savings(["SM+LN+G", "SM+ScFuFFN"], [25.2, 6.3], unit="GB").get_xlabel()
        'GB'
    """
    bars = _vector("values", values, len(names))
    points = _vector("published", np.full(len(names), np.nan), len(names))
    if published is not None:
        points = _vector("published", published, len(names))
    axes = own_or_new_axes(axes)
    rows = np.arange(len(names))
    axes.barh(rows, bars, color=_OURS, height=0.62, label="ours")
    if np.isfinite(points).any():
        axes.plot(points, rows, "D", color=_PUBLISHED, markersize=6, label="paper")
    for row, bar in enumerate(bars):
        factor = "" if row == 0 else f" ({bars[0] / bar:.2f}x less)"
        ahead = np.nanmax([bar, points[row]])
        # An offset, as SVG shows no spaces at the start of a text.
        axes.annotate(
            f"{bar:.2f}{factor}", (ahead, row), xytext=(5, 0), textcoords="offset points",
            va="center", fontsize="small", annotation_clip=False,
        )  # fmt: skip
    label_rows(axes, list(names))
    axes.set_xlim(0, 1.3 * float(np.nanmax([bars.max(), np.nanmax(np.append(points, 0.0))])))
    axes.set_xlabel(unit)
    axes.set_title(title)
    return axes


def _vector(name: str, value: ArrayLike, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (size,) or size == 0:
        raise ValueError(
            f"plot_stepwise_savings: {name} must be [N] = [{size}] with N > 0, "
            f"got {list(array.shape)}"
        )
    return array
