"""A bill as tables: a row per part, a row per kind of layer; with a network also seconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from aero.mpc.drawing import layer_groups
from aero.mpc.tables import table_lines

if TYPE_CHECKING:
    from aero.mpc.cost_report import Cost, CostReport
    from aero.mpc.latency import Duration, Latency

Rows = Sequence[dict[str, str]]


def part_rows(report: CostReport, timed: Latency | None) -> Rows:
    """Every part of the bill, and the total."""
    durations = {} if timed is None else {**timed.by_kind, "total": timed.total}
    costs = {**report.by_kind, "total": report.total}
    return [
        {"part": name, **_cells(report, cost, durations.get(name))} for name, cost in costs.items()
    ]


def layer_rows(report: CostReport, timed: Latency | None) -> Rows:
    """What lies outside the layers, and each layer; neighbours that cost the same in one row."""
    outside = None if timed is None else timed.outside_layers
    rows = [{"where": "outside the layers", **_cells(report, report.outside_layers, outside)}]
    for name, first, cost in layer_groups(report):
        duration = None if timed is None else timed.by_layer[first]
        rows.append({"where": name, **_cells(report, cost, duration)})
    return rows


def report_lines(report: CostReport, timed: Latency | None) -> list[str]:
    """Both tables for the terminal, and what no publication or measurement confirms."""
    doubts = unchecked(report, timed)
    parts = table_lines(part_rows(report, timed))
    rule = "-" * max(map(len, parts))
    return [
        *title_lines(report),
        "",
        parts[0],
        rule,
        *parts[1:-1],
        rule,
        parts[-1],
        "",
        *table_lines(layer_rows(report, timed)),
        "",
        *summary_lines(report, timed),
        *(["not confirmed op by op:"] if doubts else []),
        *(f"  {text}" for text in doubts),
    ]


def title_lines(report: CostReport) -> list[str]:
    """The network, its sizes and its stack, with the fields that differ from the named one."""
    spec = report.spec
    return [
        f"One private forward pass of {spec.label}",
        f"L {spec.num_layers}, H {spec.num_heads}, d {spec.width}, T {spec.context_length}, "
        f"V {spec.vocab_size}, final norm {spec.final_norm}; stack {stack_text(report)}",
    ]


def stack_text(report: CostReport) -> str:
    """Name of the stack, and the fields that were changed."""
    changed = ", ".join(f"{name}={value}" for name, value in report.changed_fields().items())
    return report.stack + (f" with {changed}" if changed else "")


def summary_lines(report: CostReport, timed: Latency | None) -> list[str]:
    """Who sends what, and how long it takes on which network."""
    sent = (
        f"client sends {report.client_bytes / 1e9:,.3f} GB, "
        f"server {report.server_bytes / 1e9:,.3f} GB"
    )
    return [sent] if timed is None else [sent, timed.to_text()]


def unchecked(report: CostReport, timed: Latency | None) -> tuple[str, ...]:
    """What no publication or measurement confirms, of the bytes and of the minutes."""
    return report.unchecked if timed is None else (*report.unchecked, *timed.unchecked)


def _cells(report: CostReport, cost: Cost, duration: Duration | None) -> dict[str, str]:
    share = 100 * cost.comm_bytes / (report.comm_bytes or 1.0)
    cells = {
        "GB": f"{cost.comm_bytes / 1e9:,.3f}",
        "%": f"{share:.1f}",
        "flights": f"{cost.flights:,}",
        "ct-pt products": f"{cost.ct_pt_products:,}",
        "elementwise cts": f"{cost.elementwise_ciphertexts:,.0f}",
        "OTs (1e6)": f"{cost.ots / 1e6:,.1f}",
    }
    return cells if duration is None else cells | {"seconds": f"{duration.seconds:,.1f}"}
