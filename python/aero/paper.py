"""The tables of the paper's version 2 as data, and its communication next to ours."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from aero.mpc import CostReport, operation_cost, simulate
from aero.reading import parse_json


def paper_tables() -> list[dict[str, Any]]:
    """The rows of the paper's tables (arXiv 2410.13060, version 2), in their order.

    Returns:
        One dict per row: `table`, `network` (the paper's group), `label`, `model`, `dataset`,
        `context_length`, `num_layers`, `vocab_size`, `final_norm` (as the operators are listed),
        `perplexity` (None if `diverged`); Tables 4-7 also `nonlinear_operations`, `flops_ffn`,
        `flops_attention`, `comm_gb` (both parties), `latency_minutes`.
    """
    content = resources.files("aero").joinpath("data/paper_tables.json").read_bytes()
    rows: list[dict[str, Any]] = parse_json(content, "paper_tables.json", [dict])
    return rows


@dataclass(frozen=True)
class PaperComparison:
    """One communication cell of the paper next to ours.

    Attributes:
        table: Number of the paper's table.
        label: The network.
        model: Its sizes, as a preset.
        context_length: T.
        vocab_size: V.
        paper_gb: As printed, both parties, GB = 1e9 bytes.
        listed_gb: Ours with exactly the operators that the paper lists.
        one_more_layernorm_gb: Ours with one LayerNorm more, which the paper's bytes show.
    """

    table: int
    label: str
    model: str
    context_length: int
    vocab_size: int
    paper_gb: float
    listed_gb: float
    one_more_layernorm_gb: float

    @property
    def listed_ratio(self) -> float:
        """Ours over the paper's, operators as listed."""
        return self.listed_gb / self.paper_gb

    @property
    def one_more_layernorm_ratio(self) -> float:
        """Ours over the paper's, one LayerNorm more."""
        return self.one_more_layernorm_gb / self.paper_gb


def compare_with_paper(
    tables: Iterable[int] = (4, 5), *, stack: str = "spu-2024"
) -> list[PaperComparison]:
    """The paper's communication cells next to ours.

    Rows that differ only in training (`EReg`) repeat the plain network's cell and are left out.

    Args:
        tables: Of 4, 5, 6 and 7.
        stack: A name of `stack_names()`; the paper's bytes are those of `spu-2024`.

    Raises:
        ValueError: For another table or stack.
    """
    wanted = set(tables)
    if not wanted <= {4, 5, 6, 7}:
        raise ValueError(f"compare_with_paper: tables must be among 4, 5, 6, 7, got {wanted}")
    return [
        _compare(row, stack)
        for row in paper_tables()
        if row["table"] in wanted and not row["label"].startswith("EReg")
    ]


# The paper's bytes fit public temperatures and factors of shaped attention alone.
PUBLIC: dict[str, Any] = {"secret_temperature": False, "secret_shape_factors": False}


def price_row(row: dict[str, Any], stack: str, *, setup: bool = True) -> CostReport:
    """Returns the cost report of one row of the paper's tables, with public temperatures."""
    return simulate(
        row["label"],
        model=row["model"],
        context_length=row["context_length"],
        vocab_size=row["vocab_size"],
        final_norm=row["final_norm"],
        stack=stack,
        setup=setup,
        **PUBLIC,
    )


def _compare(row: dict[str, Any], stack: str) -> PaperComparison:
    report = price_row(row, stack)
    return PaperComparison(
        table=row["table"],
        label=row["label"],
        model=row["model"],
        context_length=row["context_length"],
        vocab_size=row["vocab_size"],
        paper_gb=row["comm_gb"],
        listed_gb=report.comm_bytes / 1e9,
        one_more_layernorm_gb=with_one_more_layernorm(report) / 1e9,
    )


def with_one_more_layernorm(report: CostReport) -> float:
    """Bytes of both parties with one LayerNorm more than the network has."""
    size = report.sizes["context_length"], report.sizes["width"]
    layernorm = operation_cost("layernorm", *size, stack=report.description)
    return report.comm_bytes + layernorm.comm_bytes
