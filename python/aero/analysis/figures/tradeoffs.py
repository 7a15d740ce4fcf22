"""Figures that weigh many networks or settings against each other, with the spread over seeds."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Annotation, Text
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike, NDArray

from aero.analysis.figures.drawing import network_colors, own_or_new_axes
from aero.internals.pareto import pareto_front

# In points, 1/72 inch: half a marker with its rim, the gap between marker and name, and from how
# far off a name needs a line to its point.
_MARKER, _GAP, _FAR = 3.5, 5.0, 9.0
# How far names can move away from their point, to each side.
_SHIFTS = (0.0, 6.0, 12.0, 20.0, 30.0, 42.0, 56.0, 72.0, 90.0)
# Square pixels that are no overlap.
_ROUNDING = 1e-3


def name_points(
    axes: Axes,
    points: ArrayLike,
    names: Sequence[str],
    *,
    others: ArrayLike = (),
    strokes: ArrayLike = (),
    texts: Sequence[Text] = (),
) -> None:
    """Writes names next to points, off each other and off everything else.

    Free places are known only when the panel has its size, so every drawing searches again. A name
    takes the nearest place inside the panel where it covers nothing, else the one where it covers
    least.

    Args:
        axes: the panel.
        points: [N, 2], data coordinates.
        names: [N].
        others: [M, 2], points without a name.
        strokes: [K, 2, 2], from where to where, each horizontal or vertical.
        texts: already in the panel.
    """
    anchors = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    markers = np.concatenate([anchors, np.asarray(others, dtype=np.float64).reshape(-1, 2)])
    lines = np.asarray(strokes, dtype=np.float64).reshape(-1, 2, 2)
    earlier: list[Text] = [*texts]
    for text, anchor in zip(names, anchors, strict=True):
        name = _Name(text, anchor, markers, lines, tuple(earlier))
        name.set_in_layout(False)  # a name not yet placed must not shrink the panel
        axes.add_artist(name)
        earlier.append(name)


class _Name(Annotation):
    """A name that looks for its place whenever it is drawn, after those drawn before it."""

    def __init__(
        self,
        text: str,
        anchor: NDArray[np.float64],
        markers: NDArray[np.float64],
        strokes: NDArray[np.float64],
        earlier: tuple[Text, ...],
    ) -> None:
        super().__init__(
            text, (float(anchor[0]), float(anchor[1])), textcoords="offset points", xytext=(0, 0),
            fontsize="small", ha="left", va="bottom",
            arrowprops={"arrowstyle": "-", "color": "0.5", "linewidth": 0.7, "shrinkB": _MARKER},
        )  # fmt: skip
        self._markers = markers
        self._strokes = strokes
        self._earlier = earlier

    def draw(self, renderer: RendererBase) -> None:
        assert self.axes is not None and self.arrow_patch is not None
        dot = float(np.asarray(renderer.points_to_pixels(1.0)))  # pixels per point
        extent = Text.get_window_extent(self, renderer)
        x, y = self.axes.transData.transform(self.xy)
        panel, taken = self.axes.bbox, self._taken(renderer, dot)
        places = _places(extent.width / dot, extent.height / dot)
        corners = np.array([x, y]) + dot * places[:, :2]
        boxes = np.hstack([corners, corners + np.array([extent.width, extent.height])])
        covered = _covered(boxes, np.asarray(panel.extents), taken)
        dx, dy, away = places[np.argmin(np.where(covered < _ROUNDING, 0.0, covered))].tolist()
        self.set_position((dx, dy))
        self.arrow_patch.set_visible(away > _FAR)
        super().draw(renderer)

    def _taken(self, renderer: RendererBase, dot: float) -> NDArray[np.float64]:
        """The boxes that names must not cover, [N, 4] in pixels."""
        assert self.axes is not None
        to_pixels = self.axes.transData.transform
        taken = [
            Bbox([pixel - _MARKER * dot, pixel + _MARKER * dot])
            for pixel in to_pixels(self._markers)
        ]
        for start, end in self._strokes:
            corners = to_pixels([start, end])
            taken.append(Bbox([corners.min(axis=0) - dot, corners.max(axis=0) + dot]))
        taken += [Text.get_window_extent(name, renderer) for name in self._earlier]
        return np.array([box.extents for box in taken]).reshape(-1, 4)


def _places(width: float, height: float) -> NDArray[np.float64]:
    """[P, 3]: lower left corners relative to the point, nearest first, and their distance."""
    across = [x for shift in _SHIFTS for x in (_GAP + shift, -_GAP - width - shift)]
    across += [-width * part for part in (0.25, 0.5, 0.75)]
    up = [y for shift in _SHIFTS for y in (_GAP + shift, -_GAP - height - shift)]
    dx, dy = (part.ravel() for part in np.meshgrid(across, [*up, -height / 2], indexing="ij"))
    away = np.hypot(_away(dx, width), _away(dy, height))
    return np.column_stack([dx, dy, away])[np.argsort(away, kind="stable")]


def _away(start: NDArray[np.float64], length: float) -> NDArray[np.float64]:
    """The distance from 0 to the nearest point of [start, start + length]."""
    return np.maximum(np.maximum(start, -start - length), 0.0)


def _covered(
    boxes: NDArray[np.float64], panel: NDArray[np.float64], taken: NDArray[np.float64]
) -> NDArray[np.float64]:
    """[P]: square pixels of each of the boxes [P, 4] outside the panel or on something else."""
    area = np.prod(boxes[:, 2:] - boxes[:, :2], axis=1)
    outside = area - _shared(boxes, panel[None])[:, 0]
    return np.asarray(outside + np.sum(_shared(boxes, taken), axis=1))


def _shared(boxes: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    """[P, N]: square pixels that boxes [P, 4] and others [N, 4] have in common."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray(np.prod(np.clip(high - low, 0.0, None), axis=2))


# Beyond this ratio of the largest to the smallest cost the cheap networks would lie on each other.
_LOGARITHMIC_FROM = 10.0


def plot_pareto(
    costs: ArrayLike,
    losses: Sequence[ArrayLike],
    names: Sequence[str],
    *,
    series: Sequence[str] | None = None,
    series_order: Sequence[str] | None = None,
    named: Sequence[int] | None = None,
    front_per_series: bool = False,
    xlabel: str = "GB, both parties",
    ylabel: str = "perplexity",
    title: str = "",
    axes: Axes | None = None,
) -> Axes:
    """Draws quality against cost: means, their range over seeds, and the front that nothing beats.

    Args:
        costs: [N], positive.
        losses: N arrays [S], one value per seed; the numbers of seeds may differ. Values that are
            not finite (a run that diverged) take the point out.
        names: [N], written next to the points.
        series: [N], points of one series share a colour; None: all are one.
        series_order: all series, those of other panels too, so that each has its colour in all of
            them; None: in order of appearance.
        named: indices of the points that are named; None: those on the front.
        front_per_series: a front for every series, in its colour; else one for all points.
        xlabel: the name of `costs`, with the unit.
        ylabel: the name of `losses`.
        title: above the panel.
        axes: where to draw; None makes a figure.

    Returns:
        The Axes; the dashed steps are the front of the means, the bars reach from the best to the
        worst seed, an arrow points to the better corner. The cost axis is logarithmic where costs
        differ more than tenfold.

    Raises:
        ValueError: the lengths differ, there is no point, or a cost is not positive.

    Example:
        >>> from aero.analysis import plot_pareto
        >>> drawn = plot_pareto([25.3, 6.3], [[30.0, 31.0], [35.0]], ["baseline", "softmax-only"])
        >>> [text.get_text() for text in drawn.texts]
        ['better', 'softmax-only', 'baseline']
    """
    x = np.asarray(costs, dtype=np.float64)
    groups = ["" for _ in names] if series is None else list(series)
    if not x.shape == (len(losses),) == (len(names),) == (len(groups),) or len(names) == 0:
        raise ValueError(
            "plot_pareto: costs, losses, names and series must have one entry per network, got "
            f"{list(x.shape)}, {len(losses)}, {len(names)} and {len(groups)}"
        )
    if not (x > 0).all():
        raise ValueError("plot_pareto: costs must be positive")
    axes = own_or_new_axes(axes)
    if x.max() > _LOGARITHMIC_FROM * x.min():
        axes.set_xscale("log")
        # Within two decades powers of ten are too few numbers, and all their multiples too many.
        narrow = x.max() < 100.0 * x.min()
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if narrow else (1.0,)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
    mean, below, above = spreads(losses)
    places = np.column_stack([x, mean])
    distinct = list(dict.fromkeys([*(series_order or ()), *groups]))
    fronts = [] if front_per_series else [(pareto_front(places.tolist()), "0.45")]
    for name, color in zip(distinct, network_colors(len(distinct)), strict=True):
        chosen = np.array([i for i, group in enumerate(groups) if group == name], dtype=np.intp)
        if front_per_series:
            fronts.append((chosen[pareto_front(places[chosen].tolist())].tolist(), color))
        spread = np.stack([below[chosen], above[chosen]])
        axes.errorbar(
            x[chosen], mean[chosen], spread if spread.any() else None, fmt="o", color=color,
            markersize=5, elinewidth=1, capsize=2, label=name or None,
        )  # fmt: skip
    # Steps, not slopes: between two networks of the front only the worse of both is reached.
    for front, color in fronts:
        axes.step(x[front], mean[front], where="post", color=color, linestyle="--", linewidth=1)
    shown = [i for front, _ in fronts for i in front] if named is None else list(named)
    others = [i for i in np.flatnonzero(np.isfinite(mean)).tolist() if i not in shown]
    ranges = np.stack([places - [0, 1] * below[:, None], places + [0, 1] * above[:, None]], axis=1)
    better = axes.annotate(
        "better", (0.005, 0.01), (0.055, 0.06), xycoords="axes fraction", color="0.35",
        weight="bold", arrowprops={"arrowstyle": "-|>", "color": "0.35", "shrinkA": 1},
    )  # fmt: skip
    name_points(
        axes, places[shown], [names[index] for index in shown], others=places[others],
        strokes=[
            *ranges[np.isfinite(mean)], *(s for front, _ in fronts for s in _steps(places[front]))
        ],
        texts=[better],
    )  # fmt: skip
    axes.margins(y=0.14)  # names below the lowest point
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title)
    axes.grid(alpha=0.25)
    return axes


def _steps(front: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The strokes [2, 2] of the line through the front [N, 2]."""
    strokes = []
    for here, there in pairwise(front):
        corner = np.array([there[0], here[1]])
        strokes += [np.stack([here, corner]), np.stack([corner, there])]
    return strokes


def spreads(losses: Sequence[ArrayLike]) -> tuple[NDArray[np.float64], ...]:
    """Mean over seeds, and how far the least and the greatest lie from it: [N] each."""
    seeds = [np.atleast_1d(np.asarray(values, dtype=np.float64)) for values in losses]
    mean = np.array([values.mean() if values.size else np.nan for values in seeds])
    low = np.array([values.min(initial=np.inf) for values in seeds])
    high = np.array([values.max(initial=-np.inf) for values in seeds])
    broken = ~np.isfinite(mean)
    return mean, np.where(broken, 0.0, mean - low), np.where(broken, 0.0, high - mean)
