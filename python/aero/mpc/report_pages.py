"""A bill, or two side by side, as HTML."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import TYPE_CHECKING

from aero.mpc import drawing
from aero.mpc.report_tables import (
    layer_rows,
    part_rows,
    stack_text,
    summary_lines,
    title_lines,
    unchecked,
)

if TYPE_CHECKING:
    from aero.mpc.comparison import CostComparison
    from aero.mpc.cost_report import CostReport
    from aero.mpc.latency import Latency


def report_page(report: CostReport, timed: Latency | None) -> str:
    """A whole document: pictures, tables, the stack's fields, what is not confirmed."""
    return drawing.page(
        f"{report.spec.label} on {stack_text(report)}",
        _report(report, timed),
        *_doubts(unchecked(report, timed)),
        _fields(report),
    )


def _doubts(texts: Sequence[str]) -> list[str]:
    if not texts:
        return []
    return [drawing.heading("Not confirmed op by op"), drawing.bullets(texts)]


def report_fragment(report: CostReport, timed: Latency | None) -> str:
    """The same for a notebook, without the notes."""
    return drawing.fragment(_report(report, timed))


def gigabytes(report: CostReport) -> dict[str, float]:
    """Part -> GB of both parties."""
    return {kind: cost.comm_bytes / 1e9 for kind, cost in report.by_kind.items()}


def seconds(timed: Latency) -> dict[str, float]:
    """Part -> seconds."""
    return {kind: duration.seconds for kind, duration in timed.by_kind.items()}


def comparison_body(
    comparison: CostComparison, times: tuple[Latency, Latency] | None, rows: list[dict[str, str]]
) -> str:
    """Bars on one scale, what the colours mean, the table."""
    names = comparison.names()
    bars = [gigabytes(comparison.first), gigabytes(comparison.second)]
    parts = [
        drawing.stacked_bars(dict(zip(_apart(names), bars, strict=True)), "GB"),
        drawing.legend(*bars),
    ]
    if times is not None:
        timed = [seconds(time) for time in times]
        parts.insert(1, drawing.stacked_bars(dict(zip(_apart(names), timed, strict=True)), "s"))
        parts.append(
            drawing.paragraphs(
                f"{name}: {time.to_text()}" for name, time in zip(names, times, strict=True)
            )
        )
    return "".join([*parts, drawing.table(rows)])


def _apart(names: tuple[str, str]) -> tuple[str, str]:
    return f"first, {names[0]}", f"second, {names[1]}"


def _report(report: CostReport, timed: Latency | None) -> str:
    bars = {"bytes of both parties": gigabytes(report)}
    parts = [
        drawing.paragraphs(title_lines(report)),
        drawing.stacked_bars(bars, "GB"),
        drawing.legend(gigabytes(report)),
    ]
    if timed is not None:
        times = {f"time on {timed.network.name}, one operation after the other": seconds(timed)}
        parts += [drawing.stacked_bars(times, "s"), drawing.legend(seconds(timed))]
    return "".join(
        [
            *parts,
            drawing.table(part_rows(report, timed)),
            drawing.paragraphs(summary_lines(report, timed)),
            drawing.heading("Layers: widths are bytes"),
            drawing.layers(report),
            drawing.layer_details(report),
            drawing.table(layer_rows(report, timed)),
        ]
    )


def _fields(report: CostReport) -> str:
    """All fields of the stack, folded away; changed ones say so."""
    changed = report.changed_fields()
    rows = [
        {"field": name, "value": str(value), "": "changed" if name in changed else ""}
        for name, value in report.stack_fields.items()
    ]
    source = report.description.source
    quoted = f"<p>Prices quoted, not measured: {html.escape(source)}</p>" if source else ""
    return f"<details><summary>Stack</summary>{quoted}{drawing.table(rows)}</details>"
