"""A bill as pictures in one HTML fragment: a stacked bar per part, and what is inside each layer.

Plain SVG: no scripts, nothing loaded, titles show on hovering.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aero.mpc.cost_report import Cost, CostReport

# One colour per part; neighbours in the bar differ in lightness too.
_COLOURS = {
    "qkv/proj": "#4e79a7",
    "QK": "#a0cbe8",
    "softmax": "#e15759",
    "PV": "#ff9d9a",
    "ffn": "#59a14f",
    "act": "#8cd17d",
    "layernorm": "#b6992d",
    "embed": "#f1ce63",
    "lm head": "#499894",
    "argmax": "#86bcb6",
    "setup": "#79706e",
    "reveal": "#bab0ac",
}
_WIDTH = 960.0
_ROW = 22.0


def drawn(report: CostReport) -> str:
    """The stacked bar, its legend, and the layers."""
    return f"<div>{stacked_bar(report)}{legend(report)}{layers(report)}</div>"


def page(report: CostReport, table: str) -> str:
    """A whole HTML document: the pictures and the table."""
    title = html.escape(f"{report.spec.label} on {report.stack}")
    notes = "".join(f"<li>{html.escape(text)}</li>" for text in report.unchecked)
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        "<style>body{font:15px sans-serif;margin:2em auto;max-width:1000px}td,th{padding:2px 10px;"
        "text-align:right}td:first-child,th:first-child{text-align:left}</style></head>"
        f"<body><h1>{title}</h1>{drawn(report)}{table}"
        f"<p>Not confirmed op by op:</p><ul>{notes}</ul></body></html>\n"
    )


def stacked_bar(report: CostReport) -> str:
    """All bytes as one bar, a piece per part."""
    pieces = ((kind, kind, cost) for kind, cost in report.by_kind.items())
    return _svg([*_row(0, 0.0, report.comm_bytes, pieces, report.comm_bytes)], rows=1.6)


def legend(report: CostReport) -> str:
    """Colours with names and shares."""
    total = report.comm_bytes
    entries = (
        f'<span style="white-space:nowrap;margin-right:1em"><span style="display:inline-block;'
        f'width:0.8em;height:0.8em;background:{_COLOURS[kind]}"></span> {html.escape(kind)} '
        f"{100 * cost.comm_bytes / total:.1f} %</span>"
        for kind, cost in report.by_kind.items()
    )
    return f"<p>{''.join(entries)}</p>"


def layers(report: CostReport) -> str:
    """Total, layers and their operations; widths are bytes, as in a flame graph."""
    total = report.comm_bytes
    groups: list[tuple[str, Cost, list[int]]] = []
    outside = [i for i, op in enumerate(report.operations) if op.layer is None]
    groups.append(("outside the layers", report.outside_layers, outside))
    for layer, cost in enumerate(report.by_layer):
        inside = [i for i, op in enumerate(report.operations) if op.layer == layer]
        groups.append((f"layer {layer}", cost, inside))
    shapes = [*_row(0, 0.0, total, [("total", "", report.total)], total)]
    start = 0.0
    for name, cost, inside in groups:
        shapes += _row(1, start, total, [(name, "", cost)], total)
        operations = (
            (f"{op.name} {op.shape}".strip(), op.kind, op.cost)
            for op in (report.operations[i] for i in inside)
        )
        shapes += _row(2, start, total, operations, total)
        start += cost.comm_bytes
    return _svg(shapes, rows=3.2)


def _row(
    row: int, start: float, total: float, pieces: Iterable[tuple[str, str, Cost]], scale: float
) -> Iterator[str]:
    """Rectangles side by side from the byte `start` on: name, part (or "" for grey), cost."""
    for name, kind, cost in pieces:
        left = _WIDTH * start / scale
        width = _WIDTH * cost.comm_bytes / scale
        start += cost.comm_bytes
        share = 100 * cost.comm_bytes / total
        colour = _COLOURS.get(kind, "#e0e0e0")
        tip = f"{name}: {cost.comm_bytes / 1e6:,.1f} MB, {share:.1f} %, {cost.flights:,} flights"
        # About seven units per letter at this size; shorter pieces show their title on hovering.
        text = name if len(name) * 7 < width - 6 else ""
        yield (
            f'<g><title>{html.escape(tip)}</title><rect x="{left:.2f}" y="{row * _ROW:.0f}" '
            f'width="{width:.2f}" height="{_ROW - 2:.0f}" fill="{colour}" stroke="white" '
            f'stroke-width="0.5"/><text x="{left + 4:.2f}" y="{row * _ROW + 14:.0f}" '
            f'font-size="12" font-family="sans-serif">{html.escape(text)}</text></g>'
        )


def _svg(shapes: list[str], rows: float) -> str:
    height = rows * _ROW
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH:.0f} {height:.0f}" '
        f'width="100%" role="img">{"".join(shapes)}</svg>'
    )
