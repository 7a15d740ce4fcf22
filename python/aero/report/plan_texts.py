"""Plans as text and CSV: generation token by token, sweeps, and tables of optimizations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from aero.mpc.cost import Cost
from aero.mpc.generation import GenerationReport
from aero.mpc.network_sweep import SweepResult
from aero.mpc.optimization_tables import OptimizationRow, OptimizationTable, OptimizedStack
from aero.mpc.priced_network import trusted
from aero.report.cost_texts import (
    Compute,
    Network,
    timed_on,
    unchecked,
    word_lines,
)
from aero.tables import in_units, table_csv, table_lines


def _generation_text(
    found: GenerationReport, network: Network = None, compute: Compute = None
) -> str:
    rows = []
    shown = sorted({0, 1, found.new_tokens // 2, found.new_tokens - 1} & {*range(found.new_tokens)})
    for token in shown:
        name = "prompts, first token" if token == 0 else f"token {token + 1}"
        rows.append(_token_row(name, f"{found.context_length + token:,}", found.per_token[token]))
    later = found.new_tokens - 1
    if later > 0:
        rest = found.comm_bytes - found.per_token[0].comm_bytes
        rows.append({"pass": "mean of the later ones", "MB": in_units(rest / later, "MB", 2)})
    rows.append(_token_row("total", "", found.total))
    parts = [
        {
            "part": kind,
            "MB": in_units(cost.comm_bytes, "MB", 2),
            "%": f"{100 * cost.comm_bytes / found.comm_bytes:.1f}",
        }
        for kind, cost in found.by_kind.items()
    ]
    return "\n".join(
        [
            f"{found.new_tokens} new tokens for each of {found.batch} prompts of "
            f"{found.context_length} tokens: {found.label} on {found.stack}, {found.sampling}",
            "",
            *table_lines(rows, ["pass", "keys", "MB", "rounds"]),
            "",
            *table_lines(parts),
            *_generation_time(found, network, compute),
            "",
            *word_lines(
                found.notes,
                unchecked(found.prefill, timed_on(found.prefill, network, compute)),
                trusted(found.prefill.trust, found.total),
                found.prefill.lowerings,
            ),
        ]
    )


def _generation_time(found: GenerationReport, network: Network, compute: Compute) -> list[str]:
    if network is None:
        return []
    seconds = found.seconds_per_token(network, compute)
    later = seconds[1:]
    mean = f", then {sum(later) / len(later):,.1f} s per token" if later else ""
    name = network if isinstance(network, str) else network.name
    return [
        "",
        f"{sum(seconds) / 60:,.2f} minutes on network {name}, one operation after the other: "
        f"prompts {seconds[0]:,.1f} s{mean}",
    ]


def _generation_csv(
    found: GenerationReport, network: Network = None, compute: Compute = None
) -> str:
    seconds = None if network is None else found.seconds_per_token(network, compute)
    rows: list[dict[str, float]] = []
    for token, cost in enumerate(found.per_token):
        row = {"token": token + 1, "keys": found.context_length + token, **cost.to_dict()}
        rows.append(row if seconds is None else row | {"seconds": seconds[token]})
    return table_csv(rows)


def _token_row(name: str, keys: str, cost: Cost) -> dict[str, str]:
    shown = {"MB": in_units(cost.comm_bytes, "MB", 2), "rounds": f"{cost.rounds:,}"}
    return {"pass": name, "keys": keys, **shown}


def _sweep_text(found: SweepResult, network: None = None, compute: Any = None) -> str:
    lines = table_lines([shown_cells(row) for row in found.flat_rows()])
    if found.skipped:
        lines.append(f"{len(found.skipped)} combinations do not exist; the first:")
        lines.append(f"  {found.skipped[0][0]}: {found.skipped[0][1]}")
    words = word_lines(found.notes, found.unchecked, found.trust, found.lowerings)
    return "\n".join([*lines, "", *words])


def _sweep_csv(found: SweepResult, network: None = None, compute: Any = None) -> str:
    return table_csv(found.flat_rows())


def shown_cells(row: Mapping[str, Any]) -> dict[str, str]:
    """The values of a row, decimals with four digits and nothing for None."""
    return {
        name: f"{value:,.4g}" if isinstance(value, float) else "" if value is None else str(value)
        for name, value in row.items()
    }


def _optimizations_text(table: OptimizationTable, network: None = None, compute: Any = None) -> str:
    words = word_lines(table.notes, table.unchecked, table.trust, table.lowerings)
    parts = (
        _saving_lines(table),
        _optimization_lines(table),
        _optimized_lines(table),
        ["", *words],
    )
    return "\n".join(itertools.chain.from_iterable(parts))


def _optimizations_csv(table: OptimizationTable, network: None = None, compute: Any = None) -> str:
    return table_csv(
        [
            {
                "table": name,
                "optimization": row.optimization.name if row.optimization else None,
                "context_length": length,
                "vocab_size": vocab,
                "comm_bytes": row.comm_bytes[index],
                "rounds": row.rounds[index],
                "saving": table.savings(row)[index],
            }
            for name, rows in (("cumulative", table.cumulative), ("alone", table.alone))
            for row in rows
            for index, (length, vocab) in enumerate(table.sizes)
        ]
    )


def _saving_lines(table: OptimizationTable) -> Iterator[str]:
    columns = [f"T={length}" + (f" V={vocab}" if vocab else "") for length, vocab in table.sizes]
    yield f"{table.label} on {table.stack}: GB; rounds, one optimization on top of the other"
    yield from _lines_of(
        columns,
        (
            (row.optimization.name if row.optimization else table.stack, _optimization_cells(row))
            for row in table.cumulative
        ),
    )
    yield ""
    yield "each alone: per cent of the bytes; rounds"
    yield from _lines_of(columns, _alone_cells(table))


def _alone_cells(table: OptimizationTable) -> Iterator[tuple[str, list[str]]]:
    base = table.cumulative[0].rounds
    for row in table.alone:
        cells = [
            "-"
            if saving is None or rounds is None or before is None
            # Adding 0.0 makes -0.0 positive.
            else f"{round(100 * saving, 1) + 0.0:+.1f}; {rounds - before:+,}"
            for saving, rounds, before in zip(table.savings(row), row.rounds, base, strict=True)
        ]
        yield row.optimization.name if row.optimization else "", cells


def _optimization_lines(table: OptimizationTable) -> Iterator[str]:
    yield ""
    for optimization in table.optimizations():
        yield f"{optimization.name}: {optimization.title}"
        yield f"    assumes: {optimization.assumption}"
        yield f"    changes the function: {optimization.changes}"
        yield f"    implemented: {optimization.implemented}"


def _optimized_lines(table: OptimizationTable) -> Iterator[str]:
    columns = [f"T={length}" + (f" V={vocab}" if vocab else "") for length, vocab in table.sizes]
    yield ""
    yield from _lines_of(
        columns,
        ((one.name, _optimization_cells(one)) for one in table.optimized_stacks),
        "optimized stacks (--stack)",
    )
    for one in table.optimized_stacks:
        changed = ", ".join(
            name if value is True else f"{name}={value}" for name, value in one.fields.items()
        )
        yield f"{one.name}: spu-2024 with {changed}"


def _lines_of(
    columns: Sequence[str], rows: Iterable[tuple[str, Sequence[str]]], first: str = ""
) -> list[str]:
    names = [first, *columns]
    cells = [dict(zip(names, (name, *cells), strict=True)) for name, cells in rows]
    return table_lines(cells, names)


def _optimization_cells(row: OptimizationRow | OptimizedStack) -> list[str]:
    return [
        "-" if comm is None else f"{in_units(comm, decimals=2)}; {rounds:,}"
        for comm, rounds in zip(row.comm_bytes, row.rounds, strict=True)
    ]


# Of each kind of result; `text_and_csv` chooses.
TEXTS: dict[type, Callable[..., str]] = {
    GenerationReport: _generation_text,
    SweepResult: _sweep_text,
    OptimizationTable: _optimizations_text,
}
CSVS: dict[type, Callable[..., str]] = {
    GenerationReport: _generation_csv,
    SweepResult: _sweep_csv,
    OptimizationTable: _optimizations_csv,
}
