"""Names next to the points of a panel, placed where they lie on nothing."""

import math
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
# How far names may move from beside, above or below their point.
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
    """Writes names beside points, off each other and off everything else.

    What is free is known only once the panel has its size, so every drawing looks anew: the nearest
    place inside the panel where a name covers nothing, else the one where it covers least.

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
        least = math.inf
        for dx, dy, away in _places(extent.width / dot, extent.height / dot):
            box = Bbox.from_bounds(x + dx * dot, y + dy * dot, extent.width, extent.height)
            covered = _covered(box, panel, taken)
            if covered < least - _ROUNDING:
                least = covered
                self.set_position((dx, dy))
                self.arrow_patch.set_visible(away > _FAR)
            if least < _ROUNDING:
                break
        super().draw(renderer)

    def _taken(self, renderer: RendererBase, dot: float) -> list[Bbox]:
        """What names must not cover, in pixels."""
        assert self.axes is not None
        to_pixels = self.axes.transData.transform
        taken = [
            Bbox([pixel - _MARKER * dot, pixel + _MARKER * dot])
            for pixel in to_pixels(self._markers)
        ]
        for start, end in self._strokes:
            corners = to_pixels([start, end])
            taken.append(Bbox([corners.min(axis=0) - dot, corners.max(axis=0) + dot]))
        return taken + [Text.get_window_extent(name, renderer) for name in self._earlier]


def _places(width: float, height: float) -> list[tuple[float, float, float]]:
    """Lower left corners relative to the point, nearest first, and how far the name then is."""
    across = [x for shift in _SHIFTS for x in (_GAP + shift, -_GAP - width - shift)]
    across += [-width * part for part in (0.25, 0.5, 0.75)]
    up = [y for shift in _SHIFTS for y in (_GAP + shift, -_GAP - height - shift)]
    corners = [(dx, dy) for dx in across for dy in [*up, -height / 2]]
    return sorted(
        ((dx, dy, math.hypot(_away(dx, width), _away(dy, height))) for dx, dy in corners),
        key=lambda place: place[2],
    )


def _away(start: float, length: float) -> float:
    """From 0 to the nearest point of [start, start + length]."""
    return max(start, -start - length, 0.0)


def _area(box: Bbox | None) -> float:
    return 0.0 if box is None else float(box.width * box.height)


def _covered(box: Bbox, panel: Bbox, taken: Sequence[Bbox]) -> float:
    """Square pixels of a name outside the panel or on something else."""
    outside = _area(box) - _area(Bbox.intersection(box, panel))
    return outside + sum(_area(Bbox.intersection(box, other)) for other in taken)
