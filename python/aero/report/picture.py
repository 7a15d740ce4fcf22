"""A figure of matplotlib as SVG in a report, and the grid of panels that most figures are."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from aero.analysis import FIGURE_STYLE
from aero.internals.errors import extra

with extra("report"):
    from matplotlib import rc_context
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# A picture of full width fills a wide page.
_PIXELS_PER_INCH = 128
_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"


def svg_of(figure: Figure, name: str, titles: Mapping[str, Sequence[str]] | None = None) -> str:
    """Returns a figure as an SVG element that fills the width of its page and loads nothing.

    Args:
        figure: Of matplotlib.
        name: Describes the picture for readers who cannot see it.
        titles: `gid` of an artist -> a title per shape of it, in the order of its points.

    Raises:
        ValueError: An artist draws more or fewer shapes than it has titles.
    """
    file = io.StringIO()
    with rc_context(FIGURE_STYLE):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    ElementTree.register_namespace("", _SVG.strip("{}"))
    root = ElementTree.fromstring(file.getvalue())
    for metadata in root.findall(f"{_SVG}metadata"):
        root.remove(metadata)
    for group in root.iter(f"{_SVG}g"):
        texts = (titles or {}).get(group.attrib.pop("id", ""))
        if texts is not None:
            shapes = list(group.iter(f"{_SVG}use")) or list(group.iter(f"{_SVG}path"))
            for shape, text in zip(shapes, texts, strict=True):
                ElementTree.SubElement(shape, f"{_SVG}title").text = text
    for element in root.iter():
        if _LINK in element.attrib:  # within the picture; SVG 2 needs no second namespace for it
            element.attrib["href"] = element.attrib.pop(_LINK)
    # As wide as its place, but letters never much larger than those of the page.
    widest = f"max-width: {round(_PIXELS_PER_INCH * figure.get_figwidth())}px"
    root.attrib |= {"width": "100%", "style": widest, "role": "img", "aria-label": name}
    del root.attrib["height"]
    return ElementTree.tostring(root, encoding="unicode")


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
