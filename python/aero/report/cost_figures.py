"""Costs as pictures: stacked bars, the parts of each layer, and quality against cost.

Everything is a piece of a row, as wide as its amount; titles show on hovering. Matplotlib draws
them into the page as SVG: a page with a plotly figure carries its script of several megabytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from aero.analysis import FIGURE_STYLE, plot_pareto
from aero.analysis.figures.drawing import ink_on
from aero.internals.errors import extra
from aero.internals.palette import GREY, PART_COLORS
from aero.mpc import CostReport
from aero.mpc.cost import Cost, Operation
from aero.mpc.network_sweep import SweepResult, SweepRow
from aero.report.cost_texts import layer_groups
from aero.report.picture import svg_of
from aero.report.plan_texts import shown_cells
from aero.tables import in_units

with extra("report"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

# Inches; a page shows the picture at its own width.
_WIDTH, _ROW = 9.6, 0.235
# Of a letter of 9 points, in inches, somewhat more than the mean.
_LETTER = 0.072
# More names than these would lie on each other.
_MOST_NAMES = 40


@dataclass(frozen=True)
class Piece:
    """A rectangle of a picture.

    Attributes:
        row: From the top, in heights of a row.
        left: Where it begins, in the unit of the picture.
        width: Its amount.
        kind: The kind of part; None for no part.
        names: The first that fits is written inside.
        title: Shown on hovering.
    """

    row: float
    left: float
    width: float
    kind: str | None
    names: tuple[str, ...]
    title: str


def draw_pieces(pieces: Sequence[Piece], name: str, headings: Mapping[float, str] = {}) -> str:
    """Returns pieces as SVG on one scale, the longest row over the whole width.

    Args:
        pieces: At least one.
        name: The content of the picture.
        headings: Row -> text in it.
    """
    rows = 1 + max(piece.row for piece in pieces)
    longest = max(piece.left + piece.width for piece in pieces) or 1.0
    figure = Figure(figsize=(_WIDTH, _ROW * rows))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0.0, longest)
    axes.set_ylim(rows, 0.0)
    titles = {}
    for index, piece in enumerate(pieces):
        color = GREY if piece.kind is None else PART_COLORS.get(piece.kind, GREY)
        drawn = axes.add_patch(
            Rectangle(
                (piece.left, piece.row + 0.04), piece.width, 0.92, facecolor=color,
                edgecolor="white", linewidth=0.4, gid=f"piece {index}",
            )
        )  # fmt: skip
        titles[str(drawn.get_gid())] = [piece.title]
        inches = _WIDTH * piece.width / longest
        fitting = next((name for name in piece.names if _LETTER * len(name) + 0.08 < inches), "")
        if fitting:
            where = piece.left + 0.04 * longest / _WIDTH
            axes.text(where, piece.row + 0.5, fitting, va="center", color=ink_on(color), size=9)
    for row, text in (headings or {}).items():
        axes.text(0.0, row + 0.5, text, va="center", size=9)
    return svg_of(figure, name, titles)


def stacked_bars(bars: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """A bar per name, all on one scale: a piece per part, as wide as its amount.

    Args:
        bars: Name -> part -> amount.
        unit: Follows the amounts, such as "GB".
    """
    decimals = 3 if unit == "GB" else 1
    headings = {
        2.3 * index: f"{name}: {sum(parts.values()):,.{decimals}f} {unit}"
        for index, (name, parts) in enumerate(bars.items())
    }
    return draw_pieces(list(bar_pieces(bars, unit)), "; ".join(headings.values()), headings)


def bar_pieces(bars: Mapping[str, Mapping[str, float]], unit: str) -> Iterator[Piece]:
    """The pieces of `stacked_bars`."""
    decimals = 3 if unit == "GB" else 1
    for index, parts in enumerate(bars.values()):
        total, start = sum(parts.values()) or 1.0, 0.0
        for part, amount in parts.items():
            title = f"{part}: {amount:,.{decimals}f} {unit}, {100 * amount / total:.1f} %"
            yield Piece(2.3 * index + 1, start, amount, part, (part,), title)
            start += amount


def layers(report: CostReport) -> str:
    """The whole pass, its layers, their parts and operations; widths are bytes."""
    return draw_pieces(layer_pieces(report), f"layers of {report.label}, widths are bytes")


def layer_pieces(report: CostReport) -> list[Piece]:
    """The pieces of `layers`: a row each."""
    groups: list[tuple[str, str, Cost, int | None]] = [
        ("outside the layers", "outside", report.outside_layers, None)
    ]
    groups += [
        (f"layer {layer}", str(layer), cost, layer) for layer, cost in enumerate(report.by_layer)
    ]
    title = _title("total", report.total, report.total)
    pieces = [Piece(0, 0.0, report.comm_bytes, None, ("total",), title)]
    start = 0.0
    for name, short, cost, layer in groups:
        title = _title(name, cost, report.total)
        pieces.append(Piece(1, start, cost.comm_bytes, None, (name, short), title))
        pieces += _inside(_operations(report, layer), 2, start, report.total)
        start += cost.comm_bytes
    return pieces


def layer_details(report: CostReport) -> str:
    """Each kind of layer at full width: layers that are alike are drawn once."""
    drawn = []
    for name, cost, layer in [
        ("outside the layers", report.outside_layers, None),
        *((name, cost, first) for name, first, cost in layer_groups(report)),
    ]:
        if cost.comm_bytes:
            share = 100 * cost.comm_bytes / report.comm_bytes
            heading = f"{name}: {in_units(cost.comm_bytes)} GB, {share:.1f} %"
            pieces = list(_inside(_operations(report, layer), 1, 0.0, cost))
            drawn.append(draw_pieces(pieces, heading, {0.0: heading}))
    return "".join(drawn)


def _operations(report: CostReport, layer: int | None) -> list[Operation]:
    return [operation for operation in report.operations if operation.layer == layer]


def _inside(
    operations: Sequence[Operation], top: float, left: float, total: Cost
) -> Iterator[Piece]:
    """A row of parts above a row of operations, from the left edge on."""
    start = left
    for kind, members in itertools.groupby(operations, key=lambda operation: operation.kind):
        size = sum(operation.cost.comm_bytes for operation in members)
        share = 100 * size / (total.comm_bytes or 1.0)
        title = f"{kind}: {in_units(size, 'MB', 1)} MB, {share:.1f} %"
        yield Piece(top, start, size, kind, (kind,), title)
        start += size
    start = left
    for operation in operations:
        full = f"{operation.name} {operation.shape}".strip()
        title, size = _title(full, operation.cost, total), operation.cost.comm_bytes
        yield Piece(top + 1, start, size, operation.kind, (full, operation.name), title)
        start += size


def _title(name: str, cost: Cost, total: Cost) -> str:
    share = 100 * cost.comm_bytes / (total.comm_bytes or 1.0)
    return f"{name}: {in_units(cost.comm_bytes, 'MB', 1)} MB, {share:.1f} %, {cost.rounds:,} rounds"


def sweep_picture(found: SweepResult, x: str, y: str, xlabel: str, ylabel: str) -> str:
    """One quantity of a sweep against another, a colour per network, with the front.

    Quantities are objectives of `SweepResult.pareto`; rows without both are left out.
    """
    points = [
        (row, across, up)
        for row in found.rows
        if (across := row.objective(x)) is not None and (up := row.objective(y)) is not None
    ]
    with rc_context(FIGURE_STYLE):
        figure = Figure(figsize=(_WIDTH, 4.4), layout="constrained")
        axes = plot_pareto(
            [across for _, across, _ in points],
            [[up] for _, _, up in points],
            [row.label for row, _, _ in points],
            series=[row.label for row, _, _ in points],
            named=None if len(points) <= _MOST_NAMES else [],
            xlabel=xlabel,
            ylabel=ylabel,
            axes=figure.subplots(),
        )
    titles = {}
    by_label: dict[str, list[str]] = {}
    for row, _, _ in points:
        by_label.setdefault(row.label, []).append(_about(row))
    for index, (texts, drawn) in enumerate(zip(by_label.values(), axes.containers, strict=True)):
        drawn.get_children()[0].set_gid(f"series {index}")
        titles[f"series {index}"] = texts
    if len(by_label) > 1:
        figure.legend(loc="outside lower center", ncols=4, frameon=False)
    return svg_of(figure, f"{ylabel} against {xlabel}", titles)


def _about(row: SweepRow) -> str:
    cells = shown_cells(row.to_dict()).items()
    return ", ".join(f"{name} {text}" for name, text in cells if text)
