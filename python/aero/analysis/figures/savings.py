"""Figures of what a network saves step by step."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import label_rows, own_or_new_axes

__all__ = ["stepwise_savings"]

_OURS, _PUBLISHED = "#0072b2", "#d55e00"


def stepwise_savings(
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
        values: what each takes [N], positive.
        published: the same as published [N], NaN where nothing is; None: nothing is.
        unit: of all of them, for the axis.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes.

    Raises:
        ValueError: the arrays are not all [N], or N is 0.

    Example:
        >>> stepwise_savings(["SM+LN+G", "SM+ScFuFFN"], [25.2, 6.3], unit="GB").get_xlabel()
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
        text = f"  {bar:.2f}{factor}"
        axes.annotate(text, (ahead, row), va="center", fontsize="small", annotation_clip=False)
    label_rows(axes, list(names))
    axes.set_xlim(0, 1.3 * float(np.nanmax([bars.max(), np.nanmax(np.append(points, 0.0))])))
    axes.set_xlabel(unit)
    axes.set_title(title)
    return axes


def _vector(name: str, value: ArrayLike, size: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    array = np.asarray(value, dtype=np.float64)
    if array.shape != (size,) or size == 0:
        raise ValueError(
            f"stepwise_savings: {name} must be [N] = [{size}] with N > 0, got {list(array.shape)}"
        )
    return array
