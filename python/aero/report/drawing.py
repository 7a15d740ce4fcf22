"""Bills as pictures: stacked bars, and what is inside each layer.

Plain SVG and HTML: no scripts, nothing loaded, titles show on hovering.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from aero.mpc import Cost, CostReport, Operation
from aero.palette import PART_COLORS
from aero.report.cost_texts import layer_groups

_GREY = "#e0e0e0"
_WIDTH = 960.0
_ROW = 22.0
# Of a letter at this font size, somewhat more than the mean.
_LETTER = 6.6

_STYLE = """
.aero-cost{max-width:1000px;font:14px/1.45 system-ui,sans-serif}
.aero-cost svg{display:block;margin:.3em 0 .6em}
.aero-cost h2{font-size:1.15em;margin:1.4em 0 .3em}
.aero-cost p{margin:.4em 0}
.aero-cost .legend span{white-space:nowrap;margin-right:1.1em}
.aero-cost .legend i{display:inline-block;width:.8em;height:.8em;margin-right:.3em}
.aero-cost table{border-collapse:collapse;margin:.6em 0;font-variant-numeric:tabular-nums}
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
        '<meta name="viewport" content="width=device-width"><style>body{margin:2em auto;'
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


def stacked_bars(bars: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """A bar per name, all on one scale: a piece per part, as wide as its amount.

    Args:
        bars: Name -> part -> amount; an empty name leaves no room for names.
        unit: Follows the amounts, such as "GB".
    """
    longest = max((sum(parts.values()) for parts in bars.values()), default=0.0) or 1.0
    decimals = 3 if unit == "GB" else 1
    shapes: list[str] = []
    row = 0.0
    for name, parts in bars.items():
        total = sum(parts.values())
        if name:
            label = f"{name}: {total:,.{decimals}f} {unit}"
            shapes.append(_text(0.0, row + 15, label, "currentColor"))
            row += _ROW
        start = 0.0
        for part, amount in parts.items():
            tip = f"{part}: {amount:,.{decimals}f} {unit}, {100 * amount / (total or 1.0):.1f} %"
            left, width = _WIDTH * start / longest, _WIDTH * amount / longest
            shapes.append(_piece(row, left, width, PART_COLORS.get(part, _GREY), [part], tip))
            start += amount
        row += 1.3 * _ROW
    return _svg(shapes, row - 0.3 * _ROW)


def legend(*bars: Mapping[str, float]) -> str:
    """The colour of every part, and its share where there is one bar."""
    shares = {}
    if len(bars) == 1:
        total = sum(bars[0].values()) or 1.0
        shares = {part: f" {100 * amount / total:.1f} %" for part, amount in bars[0].items()}
    entries = (
        f'<span><i style="background:{PART_COLORS.get(part, _GREY)}"></i>{html.escape(part)}'
        f"{shares.get(part, '')}</span> "
        for part in dict.fromkeys(itertools.chain.from_iterable(bars))
    )
    return f'<p class="legend">{"".join(entries)}</p>'


def layers(report: CostReport) -> str:
    """The whole pass, its layers, their parts and operations; widths are bytes."""
    groups: list[tuple[str, str, Cost, int | None]] = [
        ("outside the layers", "outside", report.outside_layers, None)
    ]
    groups += [
        (f"layer {layer}", str(layer), cost, layer) for layer, cost in enumerate(report.by_layer)
    ]
    scale = _WIDTH / (report.comm_bytes or 1.0)
    shapes = [_piece(0.0, 0.0, _WIDTH, _GREY, ["total"], _tip("total", report.total, report.total))]
    start = 0.0
    for name, short, cost, layer in groups:
        width = scale * cost.comm_bytes
        tip = _tip(name, cost, report.total)
        shapes.append(_piece(_ROW, start, width, _GREY, [name, short], tip))
        shapes += _inside(_operations(report, layer), 2 * _ROW, start, scale, report.total)
        start += width
    return _svg(shapes, 4 * _ROW)


def layer_details(report: CostReport) -> str:
    """Each kind of layer at full width: layers that are alike are drawn once."""
    drawn = []
    for name, cost, layer in [
        ("outside the layers", report.outside_layers, None),
        *((name, cost, first) for name, first, cost in layer_groups(report)),
    ]:
        if cost.comm_bytes:
            share = 100 * cost.comm_bytes / report.comm_bytes
            title = f"{name}: {cost.comm_bytes / 1e9:,.3f} GB, {share:.1f} %"
            shapes = [_text(0.0, 15.0, title, "currentColor")]
            operations = _operations(report, layer)
            scale = _WIDTH / cost.comm_bytes
            drawn.append(_svg([*shapes, *_inside(operations, _ROW, 0.0, scale, cost)], 3 * _ROW))
    return "".join(drawn)


def _operations(report: CostReport, layer: int | None) -> list[Operation]:
    return [operation for operation in report.operations if operation.layer == layer]


def _inside(
    operations: Sequence[Operation], top: float, left: float, scale: float, total: Cost
) -> Iterator[str]:
    """A row of parts above a row of operations, from the left edge on."""
    start = left
    for kind, members in itertools.groupby(operations, key=lambda operation: operation.kind):
        costs = [operation.cost.comm_bytes for operation in members]
        width = scale * sum(costs)
        share = 100 * sum(costs) / (total.comm_bytes or 1.0)
        tip = f"{kind}: {sum(costs) / 1e6:,.1f} MB, {share:.1f} %"
        yield _piece(top, start, width, PART_COLORS.get(kind, _GREY), [kind], tip)
        start += width
    start = left
    for operation in operations:
        width = scale * operation.cost.comm_bytes
        full = f"{operation.name} {operation.shape}".strip()
        colour = PART_COLORS.get(operation.kind, _GREY)
        tip = _tip(full, operation.cost, total)
        yield _piece(top + _ROW, start, width, colour, [full, operation.name], tip)
        start += width


def _tip(name: str, cost: Cost, total: Cost) -> str:
    share = 100 * cost.comm_bytes / (total.comm_bytes or 1.0)
    return f"{name}: {cost.comm_bytes / 1e6:,.1f} MB, {share:.1f} %, {cost.flights:,} flights"


def _piece(
    top: float, left: float, width: float, colour: str, names: Sequence[str], tip: str
) -> str:
    """A rectangle with the first of the names that fits; without one its title shows on hover."""
    fitting = next((name for name in names if _LETTER * len(name) + 8 < width), "")
    inside = _text(left + 4, top + 14.5, fitting, _ink(colour)) if fitting else ""
    return (
        f'<g><title>{html.escape(tip)}</title><rect x="{left:.2f}" y="{top:.1f}" '
        f'width="{width:.2f}" height="{_ROW - 1.5:.1f}" fill="{colour}" stroke="white" '
        f'stroke-width="0.4"/>{inside}</g>'
    )


def _text(x: float, y: float, text: str, colour: str) -> str:
    return (
        f'<text x="{x:.2f}" y="{y:.1f}" font-size="12" font-family="system-ui,sans-serif" '
        f'fill="{colour}">{html.escape(text)}</text>'
    )


def _ink(colour: str) -> str:
    """White on dark colours, black on light ones."""
    red, green, blue = (int(colour[index : index + 2], 16) for index in (1, 3, 5))
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "white"


def _svg(shapes: Iterable[str], height: float) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.1f}" '
        f'width="100%" role="img">{"".join(shapes)}</svg>'
    )
