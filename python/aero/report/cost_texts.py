"""Costs of a pass as text for the terminal and as CSV: reports, comparisons, and their time.

A cost report has a row per part and a row per kind of layer; with a network also seconds.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from aero.mpc import ComputeProfile, CostReport, NetworkProfile
from aero.mpc.cost import Cost
from aero.mpc.cost_report import CostComparison
from aero.mpc.latency import Duration, Latency
from aero.mpc.priced_network import Lowerings, sizes_in_words, trusted
from aero.mpc.schedule import Schedule
from aero.tables import in_units, table_csv, table_lines

if TYPE_CHECKING:
    from aero.mpc.compared_parts import ComparisonRow

Network = str | NetworkProfile | None
Compute = str | ComputeProfile | None
Rows = Sequence[dict[str, str]]


# --- one forward pass -----------------------------------------------------------------------------


def _report_text(report: CostReport, network: Network = None, compute: Compute = None) -> str:
    return "\n".join(report_lines(report, timed_on(report, network, compute)))


def _report_csv(report: CostReport, network: Network = None, compute: Compute = None) -> str:
    timed = timed_on(report, network, compute)
    rows: list[dict[str, object]] = [
        {
            "name": operation.name,
            "layer": operation.layer,
            "kind": operation.kind,
            "shape": operation.shape,
            **operation.cost.to_dict(),
        }
        for operation in report.operations
    ]
    if timed is not None:
        for row, duration in zip(rows, timed.operations, strict=True):
            row |= duration.to_dict()
    return table_csv(rows)


def timed_on(report: CostReport, network: Network, compute: Compute) -> Latency | None:
    """The time on a network; None without one."""
    return None if network is None else report.latency(network, compute)


def part_rows(report: CostReport, timed: Latency | None) -> Rows:
    """Every part of the cost report, and the total."""
    durations = {} if timed is None else {**timed.by_kind, "total": timed.total}
    costs = {**report.by_kind, "total": report.total}
    return [
        {"part": name, **_cells(report, cost, durations.get(name))} for name, cost in costs.items()
    ]


def layer_rows(report: CostReport, timed: Latency | None) -> Rows:
    """The parts outside the layers, and each layer; neighbours of equal cost in one row."""
    outside = None if timed is None else timed.outside_layers
    rows = [{"where": "outside the layers", **_cells(report, report.outside_layers, outside)}]
    for name, first, cost in layer_groups(report):
        duration = None if timed is None else timed.by_layer[first]
        rows.append({"where": name, **_cells(report, cost, duration)})
    return rows


def layer_groups(report: CostReport) -> list[tuple[str, int, Cost]]:
    """Neighbouring layers that cost the same: name, the first of them, the cost of each."""
    groups = []
    for cost, members in itertools.groupby(enumerate(report.by_layer), key=lambda pair: pair[1]):
        indices = [index for index, _ in members]
        several = f"layers {indices[0]}-{indices[-1]}, each"
        groups.append((several if len(indices) > 1 else f"layer {indices[0]}", indices[0], cost))
    return groups


def report_lines(report: CostReport, timed: Latency | None) -> list[str]:
    """Both tables for the terminal, and the parts that nothing published or measured confirms."""
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
        *base_lines(report),
        "",
        *table_lines(layer_rows(report, timed)),
        "",
        *summary_lines(report, timed),
        *said_of(report, timed),
    ]


def base_lines(report: CostReport, name: str = "") -> list[str]:
    """How much of the total the formulas of the stack's base make, where it is over a fifth."""
    if report.base_bytes <= report.comm_bytes / 5:
        return []
    sent = f"{in_units(report.base_bytes)} of {in_units(report.comm_bytes)} GB"
    return [f"{name}{sent} are {report.description.base}'s"]


def said_of(report: CostReport, timed: Latency | None) -> list[str]:
    """All that is to be said of a report, and of its time, wherever one of its prices is shown."""
    trust = trusted(report.trust, report.total)
    return word_lines(report.notes, unchecked(report, timed), trust, report.lowerings)


def word_lines(
    notes: Sequence[str], doubts: Sequence[str], trust: str, lowerings: Lowerings
) -> list[str]:
    """What is to be said of prices, behind their tables."""
    return [
        *([f"trust: {trust}"] if trust else []),
        *([f"priced as written: {written(lowerings)}"] if lowerings else []),
        *(f"note: {text}" for text in notes),
        *(["not confirmed op by op:"] if doubts else []),
        *(f"  {text}" for text in doubts),
    ]


def written(lowerings: Lowerings) -> str:
    """The lines of a program that prices are of, part by part."""
    return "; ".join(f"{part}: {', '.join(lines)}" for part, lines in lowerings.items())


def title_lines(report: CostReport) -> list[str]:
    """The network, its sizes and its stack, with the fields that differ from the named one."""
    sizes = sizes_in_words(report.sizes)
    if report.spec is not None:
        sizes.append(f"final norm {report.spec.final_norm}")
    return [
        f"One private forward pass of {report.label}",
        f"{', '.join(sizes)}{'; ' * bool(sizes)}stack {report.stack_text}",
    ]


def summary_lines(report: CostReport, timed: Latency | None) -> list[str]:
    """The bytes that each party sends, and their time by network."""
    sent = (
        f"client sends {in_units(report.client_bytes)} GB, "
        f"server {in_units(report.server_bytes)} GB"
    )
    return [sent] if timed is None else [sent, latency_text(timed)]


def unchecked(report: CostReport, timed: Latency | None) -> tuple[str, ...]:
    """The bytes and minutes that no publication or measurement confirms."""
    return report.unchecked if timed is None else (*report.unchecked, *timed.unchecked)


def _cells(report: CostReport, cost: Cost, duration: Duration | None) -> dict[str, str]:
    share = 100 * cost.comm_bytes / (report.comm_bytes or 1.0)
    cells = {
        "GB": in_units(cost.comm_bytes),
        "%": f"{share:.1f}",
        "rounds": f"{cost.rounds:,}",
        "ct-pt products": f"{cost.ct_pt_products:,}",
        "elementwise cts": f"{cost.elementwise_ciphertexts:,.0f}",
        "OTs (1e6)": f"{cost.ots / 1e6:,.1f}",
    }
    return cells if duration is None else cells | {"seconds": f"{duration.seconds:,.1f}"}


# --- two side by side -----------------------------------------------------------------------------


def _comparison_text(
    compared: CostComparison, network: Network = None, compute: Compute = None
) -> str:
    first, second = compared.names()
    lines = [f"first:  {first}", f"second: {second}", ""]
    lines += table_lines(comparison_rows(compared, network, compute))
    lines += base_lines(compared.first, "first: ") + base_lines(compared.second, "second: ")
    times = compared.times(network, compute) or ()
    lines += [
        f"{name}: {latency_text(time)}"
        for name, time in zip(("first", "second"), times, strict=False)
    ]
    words = word_lines(
        compared.notes(),
        compared.unchecked(network, compute),
        trusted(compared.trust, compared.first.total, compared.second.total),
        compared.lowerings,
    )
    return "\n".join([*lines, "", *words])


def _comparison_csv(
    compared: CostComparison, network: Network = None, compute: Compute = None
) -> str:
    return table_csv(compared.rows(network, compute))


def comparison_rows(compared: CostComparison, network: Network, compute: Compute) -> Rows:
    """A row per part of either, and the total."""
    return [_comparison_cells(row) for row in compared.rows(network, compute)]


def _comparison_cells(row: ComparisonRow) -> dict[str, str]:
    difference = (row["second_bytes"] - row["first_bytes"]) / 1e9
    cells = {
        "part": row["part"],
        "first, GB": in_units(row["first_bytes"]),
        "second, GB": in_units(row["second_bytes"]),
        "difference": f"{difference:+,.3f}" if difference else "0",
        "first / second": "" if row["ratio"] is None else f"{row['ratio']:.2f}",
        "first, rounds": f"{row['first_rounds']:,}",
        "second, rounds": f"{row['second_rounds']:,}",
    }
    if "first_seconds" in row:
        cells["first, s"] = f"{row['first_seconds']:,.1f}"
        cells["second, s"] = f"{row['second_seconds']:,.1f}"
    return cells


# --- time -----------------------------------------------------------------------------------------


def latency_text(found: Latency, network: None = None, compute: Any = None) -> str:
    """One line: the minutes, where, and what takes them."""
    total = found.total
    shares = ", ".join(
        f"{name} {100 * part / max(1, total.total_ns):.0f} %"
        for name, part in (
            ("computing", total.compute_ns),
            ("sending", total.transfer_ns),
            ("rounds", total.rounds_ns),
        )
    )
    return (
        f"{found.minutes:.2f} minutes on network {found.network.name}, compute "
        f"{found.compute.name}, one operation after the other: {shares}"
    )


def _schedule_text(found: Schedule, network: None = None, compute: Any = None) -> str:
    bounds = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in found.bounds().items())
    busy = ", ".join(f"{name} {100 * share:.0f} %" for name, share in found.utilization.items())
    without = sorted(found.what_if_each("kind").items(), key=lambda item: item[1])
    return "\n".join(
        [
            f"{found.minutes:.2f} minutes {'with' if found.overlap else 'without'} overlap",
            f"critical path, {len(found.critical_path)} operations: {bounds}",
            f"busy: {busy}",
            "minutes without: "
            + ", ".join(f"{kind} {seconds / 60:.2f}" for kind, seconds in without),
        ]
    )


# Of each kind of result; `text_and_csv` chooses.
TEXTS: dict[type, Callable[..., str]] = {
    CostReport: _report_text,
    CostComparison: _comparison_text,
    Latency: latency_text,
    Schedule: _schedule_text,
}
CSVS: dict[type, Callable[..., str]] = {CostReport: _report_csv, CostComparison: _comparison_csv}
