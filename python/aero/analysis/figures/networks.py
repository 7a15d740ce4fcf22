"""Figures that compare networks: losses and bytes."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import label_rows, network_colors, own_or_new_axes

__all__ = ["bytes_by_kind", "loss_curves", "ordered_kinds"]

_MOST_MARKED_POINTS = 30
_KIND_COLORS = {
    "softmax": "#0072b2",
    "layernorm": "#d55e00",
    "act": "#e69f00",
    "qkv/proj": "#009e73",
    "QK": "#56b4e9",
    "PV": "#8fd0f5",
    "ffn": "#cc79a7",
    "embed": "#7f7f7f",
    "lm head": "#a9a9a9",
    "argmax": "#c9c9c9",
    "setup": "#e2e2e2",
}


def loss_curves(
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
        >>> loss_curves({"SM": [([1, 2], [5.0, 4.0])]}).get_ylabel()
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


def bytes_by_kind(
    comm_bytes: Mapping[str, Mapping[str, float]], *, title: str = "", axes: Axes | None = None
) -> Axes:
    """Draws the bytes of one private forward pass: a bar per network, a colour per kind of part.

    Args:
        comm_bytes: network -> kind of part -> bytes of both parties.
        title: above the panel; it should name sizes and protocol stack.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes, in GB of 1e9 bytes, with one legend handle per kind.

    Example:
        >>> bytes_by_kind({"SM": {"softmax": 4e9, "ffn": 1e9}}).get_xlabel()
        'GB, both parties'
    """
    axes = own_or_new_axes(axes)
    rows = list(comm_bytes)
    left = np.zeros(len(rows))
    for kind in ordered_kinds(comm_bytes):
        width = np.array([comm_bytes[name].get(kind, 0.0) for name in rows]) / 1e9
        color = _KIND_COLORS.get(kind, "#444444")
        axes.barh(range(len(rows)), width, left=left, color=color, label=kind)
        left += width
    for row, total in enumerate(left):
        axes.annotate(
            f" {total:.3g}", (total, row), va="center", fontsize="small", annotation_clip=False
        )
    label_rows(axes, rows)
    axes.set_xlim(0, 1.12 * float(left.max(initial=0.0)) or 1.0)
    axes.set_xlabel("GB, both parties")
    axes.set_title(title)
    return axes


def ordered_kinds(comm_bytes: Mapping[str, Mapping[str, float]]) -> list[str]:
    """Returns the kinds of part that cost anything, in the order of the bars, unknown ones last.

    Example:
        >>> ordered_kinds({"SM": {"ffn": 1.0, "softmax": 2.0, "argmax": 0.0}})
        ['softmax', 'ffn']
    """
    paid = {kind for parts in comm_bytes.values() for kind, value in parts.items() if value > 0}
    known = [kind for kind in _KIND_COLORS if kind in paid]
    return known + sorted(paid - set(known))
