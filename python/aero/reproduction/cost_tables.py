"""The paper's Tables 4-7 and Figures 1 and 15 next to ours: bytes, minutes, FLOPs, savings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from aero.report.finding import Finding, finding_lines
from aero.reproduction.cost_findings import find_all
from aero.reproduction.cost_rows import TABLES, ReproducedRow, cost_rows
from aero.reproduction.savings import SavingStep, figure_lines, saving_figures
from aero.tables import table_lines

ABOUT_TABLES = (
    "'listed': exactly the operators that the table lists; '+LN': one LayerNorm more, which the "
    "paper's bytes hold in every row. Ratios: ours / paper."
)


@dataclass(frozen=True)
class CostTables:
    """Everything that the paper says about the cost of private inference, recomputed.

    Attributes:
        stack: The protocol stack of our numbers.
        rows: The rows of Tables 4-7 whose networks differ in inference.
        figures: Title -> the steps of Figure 1 (GPT-2, T = 128) and Figure 15 (Pythia-70M,
            T = 256).
        findings: Computed from the rows.
    """

    stack: str
    rows: tuple[ReproducedRow, ...]
    figures: dict[str, tuple[SavingStep, ...]]
    findings: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        return {
            "stack": self.stack,
            "rows": [row.to_dict() for row in self.rows],
            "figures": {
                title: [vars(step) for step in steps] for title, steps in self.figures.items()
            },
            "findings": [finding.to_dict() for finding in self.findings],
        }

    def to_text(self) -> str:
        """The tables cell by cell, the figures step by step, and the findings."""
        return "\n".join([*self._tables(), *figure_lines(self.figures), *self._findings()])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<CostTables of {len(self.rows)} rows on {self.stack}>"

    def _tables(self) -> Iterator[str]:
        yield f"Paper (arXiv 2410.13060v2) and ours on {self.stack}: GB of both parties, minutes on"
        yield f"paper-testbed, FLOPs. {ABOUT_TABLES}"
        for table in TABLES:
            rows = [row for row in self.rows if row.gigabytes.table == table]
            cell = rows[0].gigabytes
            yield ""
            yield f"Table {table}: {cell.model}, T = {cell.context_length}, V = {cell.vocab_size}"
            for cells in (bytes_and_minutes, flops_cells):
                yield from table_lines([cells(row) for row in rows])

    def _findings(self) -> Iterator[str]:
        yield ""
        yield "Findings"
        yield from finding_lines(finding.to_dict() for finding in self.findings)


def reproduce_costs(*, stack: str = "spu-2024") -> CostTables:
    """Returns the paper's Tables 4-7 and Figures 1 and 15 next to ours.

    Args:
        stack: A name of `aero.mpc.stack_names()`; the paper's bytes are those of `spu-2024`.

    Raises:
        ValueError: For an unknown stack.

    Example:
        >>> from aero.reproduction import reproduce_costs
        >>> found = reproduce_costs()
        >>> sum(abs(r.gigabytes.one_more_layernorm_ratio - 1) < 0.0015 for r in found.rows)
        25
    """
    rows = cost_rows(stack)
    return CostTables(stack, rows, saving_figures(stack), find_all(rows, stack))


def bytes_and_minutes(row: ReproducedRow) -> dict[str, str]:
    """A row of one table of the paper: GB and minutes."""
    cell = row.gigabytes
    sending, rounds = row.network_only_minutes
    return {
        "network": cell.label,
        "paper, GB": f"{cell.paper_gb:.2f}",
        "listed": f"{cell.listed_gb:.2f}",
        "+LN": f"{cell.one_more_layernorm_gb:.2f}",
        "ratio": f"{cell.one_more_layernorm_ratio:.4f}",
        "paper, minutes": f"{row.paper_minutes:.2f}",
        "ours": f"{row.minutes:.2f}",
        "ratio of minutes": f"{row.minutes_ratio:.3f}",
        "stated network, sending": f"{sending:.2f}",
        "and rounds": f"{sending + rounds:.2f}",
    }


def flops_cells(row: ReproducedRow) -> dict[str, str]:
    """The same row: FLOPs."""
    found = {"network": row.gigabytes.label}
    for name, flops in (("FFN", row.flops_ffn), ("attention", row.flops_attention)):
        found |= {
            f"paper, {name} FLOPs": flops.printed,
            f"ours, {name}": f"{flops.ours / 1e9:.2f}B",
            f"ratio, {name}": f"{flops.ratio:.3f}",
        }
    return found
