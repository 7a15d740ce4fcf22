"""Costs as pages: `to_html` of every result of `aero.mpc` that has pictures."""

from __future__ import annotations

import html
from collections.abc import Sequence
from functools import singledispatch
from typing import Any

from aero.mpc import CostReport
from aero.mpc.cost_report import CostComparison
from aero.mpc.generation import GenerationReport
from aero.mpc.latency import Latency
from aero.mpc.network_sweep import SweepResult
from aero.mpc.priced_network import Lowerings, trusted
from aero.report import page
from aero.report.cost_figures import layer_details, layers, stacked_bars, sweep_picture
from aero.report.cost_texts import (
    Compute,
    Network,
    base_lines,
    comparison_rows,
    latency_text,
    layer_rows,
    part_rows,
    summary_lines,
    timed_on,
    title_lines,
    unchecked,
    written,
)
from aero.report.plan_texts import shown_cells
from aero.tables import in_units

# A table beyond this is for the CSV file.
_MOST_ROWS = 500
_TITLES = {"comm_gb": "GB of both parties", "rounds": "rounds", "perplexity": "perplexity"}
_MOST_TOKENS = 200


def to_html(found: Any, network: Network = None, compute: Compute = None) -> str:
    """Returns a result of `aero.mpc` as a page of its own that loads nothing.

    A `CostReport` or two in a `CostComparison`: bars, layers, tables. A `GenerationReport`: bars of
    prompts and later tokens, a row per token. A `SweepResult`: a picture per quantity, the fronts,
    all rows; perplexity stands against bytes and every network's seconds
    where run folders gave it, else seconds, or rounds, against bytes.

    Args:
        found: One of these.
        network: Adds the time on it; as of `CostReport.latency`. A sweep has its own.
        compute: The machines behind that time; default as of `CostReport.latency`.

    Raises:
        TypeError: For anything else.
        ValueError: For a sweep without rows.

    Example:
        >>> from aero import mpc, report
        >>> report.to_html(mpc.simulate_generation("SM", model="tiny", new_tokens=3)).count("<tr")
        4
    """
    details = [_fields(found)] if isinstance(found, CostReport) else []
    return page.page(_heading(found), _body(found, network, compute), *details)


def to_fragment(found: Any) -> str:
    """The same for a notebook, as a piece of a page."""
    if isinstance(found, SweepResult) and not found.rows:
        return "<p>no combination</p>"
    return page.fragment(_body(found, None, None))


def _heading(found: Any) -> str:
    match found:
        case CostReport():
            return f"{found.label} on {found.stack_text}"
        case CostComparison():
            return " and ".join(dict.fromkeys((found.first.label, found.second.label)))
        case GenerationReport():
            return f"Generation with {found.label}"
        case _:
            return "Sweep"


@singledispatch
def _body(found: Any, network: Network, compute: Compute) -> str:
    """What a page has of a result below its heading."""
    raise TypeError(f"to_html: found must be a result of aero.mpc, got {type(found).__name__}")


def _words(
    notes: Sequence[str], doubts: Sequence[str], trust: str, lowerings: Lowerings
) -> list[str]:
    """What is to be said of prices."""
    said = [
        *([f"Trust: {trust}"] if trust else []),
        *([f"Priced as written: {written(lowerings)}"] if lowerings else []),
        *notes,
    ]
    lists = {"Notes": said, "Not confirmed op by op": doubts}
    return [
        part
        for heading, texts in lists.items()
        if texts
        for part in (page.heading(heading), page.bullets(texts))
    ]


def gigabytes(report: CostReport) -> dict[str, float]:
    """Part -> GB of both parties."""
    return {kind: cost.comm_bytes / 1e9 for kind, cost in report.by_kind.items()}


def seconds(timed: Latency) -> dict[str, float]:
    """Part -> seconds."""
    return {kind: duration.seconds for kind, duration in timed.by_kind.items()}


@_body.register
def _comparison(compared: CostComparison, network: Network, compute: Compute) -> str:
    """Bars on one scale, the legend of the colours, the table."""
    times = compared.times(network, compute)
    names = compared.names()
    bars = [gigabytes(compared.first), gigabytes(compared.second)]
    parts = [
        stacked_bars(dict(zip(_apart(names), bars, strict=True)), "GB"),
        page.legend(*bars),
    ]
    if times is not None:
        timed = [seconds(time) for time in times]
        parts.insert(1, stacked_bars(dict(zip(_apart(names), timed, strict=True)), "s"))
        parts.append(
            page.paragraphs(
                f"{name}: {latency_text(time)}" for name, time in zip(names, times, strict=True)
            )
        )
    return "".join(
        [
            *parts,
            page.table(comparison_rows(compared, network, compute)),
            page.paragraphs(
                base_lines(compared.first, "first: ") + base_lines(compared.second, "second: ")
            ),
            *_words(
                compared.notes(),
                compared.unchecked(network, compute),
                trusted(compared.trust, compared.first.total, compared.second.total),
                compared.lowerings,
            ),
        ]
    )


def _apart(names: tuple[str, str]) -> tuple[str, str]:
    return f"first, {names[0]}", f"second, {names[1]}"


@_body.register
def _report(report: CostReport, network: Network, compute: Compute) -> str:
    timed = timed_on(report, network, compute)
    bars = {"bytes of both parties": gigabytes(report)}
    parts = [
        page.paragraphs(title_lines(report)),
        stacked_bars(bars, "GB"),
        page.legend(gigabytes(report)),
    ]
    if timed is not None:
        times = {f"time on {timed.network.name}, one operation after the other": seconds(timed)}
        parts += [stacked_bars(times, "s"), page.legend(seconds(timed))]
    return "".join(
        [
            *parts,
            page.table(part_rows(report, timed)),
            page.paragraphs(base_lines(report)),
            page.paragraphs(summary_lines(report, timed)),
            *_words(
                report.notes,
                unchecked(report, timed),
                trusted(report.trust, report.total),
                report.lowerings,
            ),
            page.heading("Layers: widths are bytes"),
            layers(report),
            layer_details(report),
            page.table(layer_rows(report, timed)),
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
    return f"<details><summary>Stack</summary>{quoted}{page.table(rows)}</details>"


@_body.register
def _sweep(found: SweepResult, network: Network, compute: Compute) -> str:
    if not found.rows:
        raise ValueError("sweep: the page needs at least one combination, got none")
    networks = list(found.rows[0].seconds)
    measured = any(row.perplexity is not None for row in found.rows)
    if measured:
        pictures = [(x, "perplexity") for x in ("comm_gb", *networks)]
    else:
        pictures = [("comm_gb", y) for y in networks or ["rounds"]]
    parts = [_picture(found, x, y) for x, y in pictures]
    parts.append(page.heading("All combinations"))
    parts.append(page.table([shown_cells(row) for row in found.flat_rows()[:_MOST_ROWS]]))
    if len(found) > _MOST_ROWS:
        parts.append(page.paragraphs([f"and {len(found) - _MOST_ROWS:,} more"]))
    return "".join([*parts, *_words(found.notes, found.unchecked, found.trust, found.lowerings)])


def _picture(found: SweepResult, x: str, y: str) -> str:
    heading = f"{_title(y)} against {_title(x)}: {len(found.pareto(x, y))} on the front"
    return page.heading(heading) + sweep_picture(found, x, y, _title(x), _title(y))


def _title(objective: str) -> str:
    return _TITLES.get(objective, f"seconds on {objective}")


@_body.register
def _generation(found: GenerationReport, network: Network, compute: Compute) -> str:
    prompts = {kind: cost.comm_bytes / 1e9 for kind, cost in found.prefill.by_kind.items()}
    later = {
        kind: cost.comm_bytes / 1e9 - prompts.get(kind, 0.0) for kind, cost in found.by_kind.items()
    }
    bars = {"prompts, first token of each": prompts}
    if found.new_tokens > 1:
        bars[f"the other {found.new_tokens - 1:,} tokens of each"] = later
    about = (
        f"{found.new_tokens:,} new tokens for each of {found.batch:,} prompts of "
        f"{found.context_length:,} tokens, stack {found.prefill.stack_text}, "
        f"{found.sampling}: {in_units(found.comm_bytes)} GB, {found.rounds:,} rounds"
    )
    parts = [
        page.paragraphs([about]),
        stacked_bars(bars, "GB"),
        page.legend(prompts, later),
    ]
    seconds = None if network is None else found.seconds_per_token(network, compute)
    if seconds is not None:
        timed = found.prefill.latency(network or "", compute)
        machines = f"network {timed.network.name}, compute {timed.compute.name}"
        minutes = f"{sum(seconds) / 60:,.2f} minutes on {machines}, one operation after the other"
        parts.append(page.paragraphs([minutes]))
    rows = []
    for token, cost in enumerate(found.per_token[:_MOST_TOKENS]):
        row = {
            "token": str(token + 1),
            "keys": f"{found.context_length + token:,}",
            "MB": in_units(cost.comm_bytes, "MB", 2),
            "rounds": f"{cost.rounds:,}",
        }
        rows.append(row if seconds is None else row | {"seconds": f"{seconds[token]:,.1f}"})
    parts.append(page.table(rows))
    if found.new_tokens > _MOST_TOKENS:
        parts.append(page.paragraphs([f"and {found.new_tokens - _MOST_TOKENS:,} more"]))
    trust = trusted(found.prefill.trust, found.total)
    doubts = unchecked(found.prefill, timed_on(found.prefill, network, compute))
    return "".join([*parts, *_words(found.notes, doubts, trust, found.prefill.lowerings)])
