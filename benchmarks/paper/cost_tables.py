"""The paper's Tables 4-7 and Figures 1, 15, 20 and 21 next to ours, as text and files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from aero.analysis import plot_stepwise_savings
from aero.internals.atomic_files import write_bytes_atomically, write_json_atomically
from aero.report import page
from aero.report.picture import svg_of
from aero.tables import table_lines
from benchmarks.paper.cost_comparisons import Comparison, compare_costs, comparison_rows
from benchmarks.paper.cost_rows import (
    TABLES,
    ReproducedRow,
    SavingStep,
    cost_rows,
    equal_time_rows,
    figure_lines,
    saving_figures,
    step_rows,
)
from benchmarks.paper.flop_shares import (
    Claim,
    Shares,
    claim_rows,
    ffn_shares,
    judge_flop_shares,
    share_rows,
)

ABOUT_TABLES = (
    "'listed': exactly the operators that the table lists; '+LN': one LayerNorm more, which the "
    "paper's bytes hold in every row. Temperatures are public. Ratios: ours / paper."
)


@dataclass(frozen=True)
class CostTables:
    """Everything that the paper says about the cost of private inference, recomputed.

    Attributes:
        stack: The protocol stack of our numbers.
        rows: The rows of Tables 4-7 whose networks differ in inference.
        figures: Title -> the steps of Figure 1 (GPT-2, T = 128) and Figure 15 (Pythia-70M,
            T = 256).
        flop_shares: Title of Figures 20 and 21 -> size -> T -> share of the FFNs in the FLOPs.
        comparisons: The paper's numbers beside ours.
        claims: The paper's sentences on its Figures 20 and 21, judged size by size.
    """

    stack: str
    rows: tuple[ReproducedRow, ...]
    figures: dict[str, tuple[SavingStep, ...]]
    flop_shares: Shares
    comparisons: tuple[Comparison, ...]
    claims: tuple[Claim, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON-ready values."""
        return {
            "stack": self.stack,
            "rows": [row.to_dict() for row in self.rows],
            "figures": {
                title: [vars(step) for step in steps] for title, steps in self.figures.items()
            },
            "flop_shares": {
                title: {
                    size: {str(length): share for length, share in by_length.items()}
                    for size, by_length in sizes.items()
                }
                for title, sizes in self.flop_shares.items()
            },
            "comparisons": [
                {**vars(one), "difference": one.difference} for one in self.comparisons
            ],
            "claims": [asdict(claim) for claim in self.claims],
        }

    def to_text(self) -> str:
        """The tables cell by cell, the figures step by step, and all comparisons."""
        return "\n".join(
            [*self._tables(), *figure_lines(self.figures), *self._shares(), *self._compared()]
        )

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

    def _shares(self) -> Iterator[str]:
        for title, shares in self.flop_shares.items():
            yield ""
            yield f"{title}; share of the FFNs in the FLOPs of one pass"
            yield from table_lines(share_rows(shares))

    def _compared(self) -> Iterator[str]:
        for title, rows in self.summaries().items():
            yield ""
            yield title
            yield from table_lines(rows)

    def summaries(self) -> dict[str, list[dict[str, str]]]:
        """The tables over all tables of the paper, by their titles."""
        return {
            "The paper beside ours": comparison_rows(self.comparisons),
            "The paper's sentences on FLOPs": claim_rows(self.claims),
        }


def reproduce_costs(*, stack: str = "spu-2024") -> CostTables:
    """Returns the paper's Tables 4-7 and Figures 1, 15, 20 and 21 next to ours.

    Args:
        stack: A name of `aero.mpc.stack_names()`; the paper's bytes are those of `spu-2024`.

    Raises:
        ValueError: For an unknown stack.

    Example:
        >>> from benchmarks.paper.cost_tables import reproduce_costs
        >>> found = reproduce_costs()
        >>> sum(abs(r.gigabytes.one_more_layernorm_ratio - 1) < 0.0015 for r in found.rows)
        25
    """
    rows, shares = cost_rows(stack), ffn_shares()
    compared, claims = compare_costs(rows, stack), tuple(judge_flop_shares(shares))
    return CostTables(stack, rows, saving_figures(stack), shares, compared, claims)


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


def write_cost_tables(found: CostTables, output_dir: str | Path) -> list[Path]:
    """Writes `costs.html`, `.txt` and `.json`, and one SVG per figure.

    Raises:
        OSError: The folder cannot be written.
    """
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    pictures = {title: savings_picture(title, steps) for title, steps in found.figures.items()}
    written = [folder / f"costs.{ending}" for ending in ("html", "txt", "json")]
    write_bytes_atomically(written[0], cost_tables_page(found, pictures).encode())
    write_bytes_atomically(written[1], f"{found.to_text()}\n".encode())
    write_json_atomically(written[2], found.to_dict())
    for title, picture in pictures.items():
        name = title.partition(":")[0].lower().replace(" ", "-")
        written.append(folder / f"{name}.svg")
        write_bytes_atomically(written[-1], picture.encode())
    return written


def cost_tables_page(found: CostTables, pictures: Mapping[str, str]) -> str:
    """Returns everything as one page that loads nothing: comparisons, figures, tables."""
    parts = []
    for title, compared_rows in found.summaries().items():
        parts += [page.heading(title), page.table(compared_rows)]
    for title, steps in found.figures.items():
        parts += [
            page.heading(title),
            pictures[title],
            page.table(step_rows(steps)),
        ]
        compared = equal_time_rows(steps)
        if compared:
            about = "He and Hofmann's networks next to the best that takes as long, within 10 %:"
            parts += [page.paragraphs([about]), page.table(compared)]
    for title, shares in found.flop_shares.items():
        about = "Share of the FFNs in the FLOPs of one pass:"
        parts += [page.heading(title), page.paragraphs([about]), page.table(share_rows(shares))]
    for table in TABLES:
        rows = [row for row in found.rows if row.gigabytes.table == table]
        cell = rows[0].gigabytes
        sizes = f"{cell.model}, T = {cell.context_length}, V = {cell.vocab_size}"
        parts += [
            page.heading(f"Table {table}: {sizes}"),
            page.table([bytes_and_minutes(row) for row in rows]),
            page.table([flops_cells(row) for row in rows]),
        ]
    title = f"The paper (arXiv 2410.13060v2) and ours on {found.stack}"
    return page.page(title, page.paragraphs([ABOUT_TABLES]), *parts)


def savings_picture(title: str, steps: tuple[SavingStep, ...]) -> str:
    """Returns an SVG with two panels: GB and minutes of every step, ours and the paper's."""
    figure = Figure(figsize=(11.5, 0.42 * len(steps) + 1.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    names = [
        step.label if step.perplexity is None else f"{step.label} (ppl {step.perplexity:.2f})"
        for step in steps
    ]
    plot_stepwise_savings(
        names,
        [step.gigabytes for step in steps],
        published=[_or_nan(step.paper_gigabytes) for step in steps],
        unit="GB, both parties",
        title=title,
        axes=left,
    )
    plot_stepwise_savings(
        names,
        [step.minutes for step in steps],
        published=[_or_nan(step.paper_minutes) for step in steps],
        unit="minutes on the paper's test bed",
        axes=right,
    )
    right.set_yticklabels([])
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return svg_of(figure, title)


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
