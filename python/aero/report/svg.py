"""Figures of matplotlib as SVG inside a page, with titles that show on hovering."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from xml.etree import ElementTree

from matplotlib import rc_context
from matplotlib.figure import Figure

from aero.analysis import FIGURE_STYLE

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
    root.attrib |= {"width": "100%", "role": "img", "aria-label": name}
    del root.attrib["height"]
    return ElementTree.tostring(root, encoding="unicode")
