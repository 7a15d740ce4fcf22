"""A figure as a part of a report, and the grid of panels that most figures are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from aero.report.svg import svg_of

__all__ = ["Picture", "figure_grid", "shared_legend"]

# Inches; a page shows a picture at its own width.
_WIDTH = 9.5


@dataclass(frozen=True)
class Picture:
    """One figure of the report.

    Attributes:
        name: file name without ending, and the place in the report it belongs to.
        svg: the picture.
        caption: its content, with units and normalisation.
    """

    name: str
    svg: str
    caption: str

    @staticmethod
    def of(
        name: str, figure: Figure, caption: str, titles: Mapping[str, Sequence[str]] | None = None
    ) -> Picture:
        """Draws a figure, with titles as `svg_of` takes them."""
        return Picture(name, svg_of(figure, caption.split(": ")[0], titles), caption)


def figure_grid(
    count: int, height: float, columns: int, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` Axes in rows of `columns`; `height` inches per row."""
    # A panel alone keeps about the width it has among others.
    width = _WIDTH if count > 1 or columns == 1 else 1.25 * _WIDTH / columns
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    size = (width, height * rows)
    figure = Figure(figsize=size, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def shared_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Puts the legend of one panel below all of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False
    )
