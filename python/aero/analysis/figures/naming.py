"""Names next to the points of a panel, placed so that they cover nothing."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.text import Annotation, Text
from matplotlib.transforms import Bbox
from numpy.typing import ArrayLike, NDArray

__all__ = ["name_points"]

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
    """From 0 to the nearest point of [start, start + length]."""
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
