"""The parts of pages: plain HTML, no scripts, nothing loaded."""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Mapping, Sequence

from aero.internals.palette import GREY, PART_COLORS

_STYLE = """
.aero-cost{max-width:1000px;font:14px/1.45 system-ui,sans-serif}
.aero-cost svg{display:block;margin:.3em 0 .6em;fill:currentColor}
.aero-cost h2{font-size:1.15em;margin:1.4em 0 .3em}
.aero-cost p{margin:.4em 0}
.aero-cost .legend span{white-space:nowrap;margin-right:1.1em}
.aero-cost .legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.aero-cost table{display:block;overflow-x:auto;border-collapse:collapse}
.aero-cost table{margin:.6em 0;font-variant-numeric:tabular-nums}
.aero-cost td,.aero-cost th{padding:2px 12px;text-align:right}
.aero-cost td:first-child,.aero-cost th:first-child{text-align:left;padding-left:0}
.aero-cost th{border-bottom:1px solid #999;font-weight:600;vertical-align:bottom}
.aero-cost tr.total td{border-top:1px solid #999;font-weight:600}
"""


def fragment(*parts: str) -> str:
    """Pieces of HTML with the style they need, for a page or a notebook."""
    return f'<style>{_STYLE}</style><div class="aero-cost">{"".join(parts)}</div>'


def page(title: str, *parts: str) -> str:
    """A whole HTML document."""
    shown = html.escape(title)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{shown}</title>'
        '<meta name="viewport" content="width=device-width"><style>'
        ":root{color-scheme:light dark}body{margin:2em auto;"
        "max-width:1000px;padding:0 1em;font-family:system-ui,sans-serif}h1{font-size:1.6em}"
        f"</style></head><body><h1>{shown}</h1>{fragment(*parts)}</body></html>\n"
    )


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of named cells; a last row whose first cell is "total" is set apart."""
    columns = list(dict.fromkeys(itertools.chain.from_iterable(rows)))

    def line(cells: Iterable[str], tag: str, attribute: str = "") -> str:
        inside = "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in cells)
        return f"<tr{attribute}>{inside}</tr>"

    body = "".join(
        line(
            (row.get(name, "") for name in columns),
            "td",
            ' class="total"' if row.get(columns[0]) == "total" else "",
        )
        for row in rows
    )
    return f"<table>{line(columns, 'th')}{body}</table>"


def paragraphs(lines: Iterable[str]) -> str:
    """One paragraph per line."""
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines)


def bullets(lines: Iterable[str]) -> str:
    """A list."""
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def heading(text: str) -> str:
    """A heading within a page."""
    return f"<h2>{html.escape(text)}</h2>"


def legend(*bars: Mapping[str, float]) -> str:
    """The colour of every part, and its share where there is one bar."""
    shares = {}
    if len(bars) == 1:
        total = sum(bars[0].values()) or 1.0
        shares = {part: f" {100 * amount / total:.1f} %" for part, amount in bars[0].items()}
    entries = (
        f'<span><i style="background:{PART_COLORS.get(part, GREY)}"></i>{html.escape(part)}'
        f"{shares.get(part, '')}</span> "
        for part in dict.fromkeys(itertools.chain.from_iterable(bars))
    )
    return f'<p class="legend">{"".join(entries)}</p>'
