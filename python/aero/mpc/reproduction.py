"""The paper's Tables 4-7 and Figures 1 and 15 beside ours: bytes, minutes, FLOPs, savings."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.mpc.paper import PaperComparison, compare_with_paper, paper_tables
from aero.mpc.paper_findings import Finding, find_all
from aero.mpc.savings import figure_lines
from aero.mpc.simulation import simulate

TABLES = (4, 5, 6, 7)


@dataclass(frozen=True)
class Flops:
    """One FLOPs cell: the paper's text, such as "14.5B", and our count."""

    printed: str
    ours: int

    @property
    def ratio(self) -> float:
        """Ours over the paper's."""
        return self.ours / (float(self.printed.removesuffix("B")) * 1e9)

    @property
    def agrees(self) -> bool:
        """Whether ours is the printed number to its last digit."""
        return f"{self.ours / 1e9:.1f}B" == self.printed


@dataclass(frozen=True)
class ReproducedRow:
    """One row of the paper's Tables 4-7 beside ours.

    Attributes:
        gigabytes: Communication of both parties; its `one_more_layernorm_ratio` is the one to
            judge by, since every row of the paper holds one LayerNorm more than it lists.
        paper_minutes: As printed.
        minutes: Ours on the paper's test bed (`paper-testbed`), operators as listed, without the
            set-up of the session.
        network_only_minutes: Sending and flights on the network that the paper states, 100 Mbps
            and 80 ms, everything else free; half of the bytes each way.
        flops_ffn: Of the feed-forward networks.
        flops_attention: Of the attention.
    """

    gigabytes: PaperComparison
    paper_minutes: float
    minutes: float
    network_only_minutes: tuple[float, float]
    flops_ffn: Flops
    flops_attention: Flops

    @property
    def minutes_ratio(self) -> float:
        """Ours over the paper's."""
        return self.minutes / self.paper_minutes

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready values."""
        cell = self.gigabytes
        sending, flights = self.network_only_minutes
        return {
            "table": cell.table,
            "label": cell.label,
            "model": cell.model,
            "context_length": cell.context_length,
            "vocab_size": cell.vocab_size,
            "gigabytes": {
                "paper": cell.paper_gb,
                "listed": cell.listed_gb,
                "one_more_layernorm": cell.one_more_layernorm_gb,
                "ratio": cell.one_more_layernorm_ratio,
            },
            "minutes": {
                "paper": self.paper_minutes,
                "ours": self.minutes,
                "ratio": self.minutes_ratio,
                "stated_network_sending": sending,
                "stated_network_flights": flights,
            },
            "flops": {
                part: {"paper": flops.printed, "ours": flops.ours, "ratio": flops.ratio}
                for part, flops in (("ffn", self.flops_ffn), ("attention", self.flops_attention))
            },
        }


@dataclass(frozen=True)
class SavingStep:
    """One bar of Figures 1 and 15.

    Attributes:
        label: The network.
        gigabytes: Ours, as listed.
        minutes: Ours on `paper-testbed`, without the set-up of the session.
        paper_gigabytes: The paper's, None where it prints no number.
        paper_minutes: Likewise.
        perplexity: The paper's, None where it prints none or diverged.
    """

    label: str
    gigabytes: float
    minutes: float
    paper_gigabytes: float | None
    paper_minutes: float | None
    perplexity: float | None


@dataclass(frozen=True)
class Reproduction:
    """Everything that the paper says about the cost of private inference, recomputed.

    Attributes:
        stack: The protocol stack of our numbers.
        rows: The rows of Tables 4-7 whose networks differ in inference.
        figures: Title -> the steps of Figure 1 (GPT-2, T = 128) and Figure 15 (Pythia-70M,
            T = 256).
        findings: What follows, computed from the rows.
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
            "findings": [vars(finding) for finding in self.findings],
        }

    def to_text(self) -> str:
        """The tables cell by cell, the figures step by step, and the findings."""
        return "\n".join([*self._tables(), *figure_lines(self.figures), *self._findings()])

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<Reproduction of {len(self.rows)} rows on {self.stack}>"

    def _tables(self) -> Iterator[str]:
        yield f"Paper (arXiv 2410.13060) and ours on {self.stack}: GB of both parties, minutes on"
        yield "paper-testbed, FLOPs. 'listed': exactly the operators that the table lists; '+LN':"
        yield "one LayerNorm more, which the paper's bytes hold in every row. Ratios: ours / paper."
        for table in TABLES:
            rows = [row for row in self.rows if row.gigabytes.table == table]
            cell = rows[0].gigabytes
            yield ""
            yield f"Table {table}: {cell.model}, T = {cell.context_length}, V = {cell.vocab_size}"
            yield from _aligned([_HEADER, *map(_cells, rows)])

    def _findings(self) -> Iterator[str]:
        yield ""
        yield "Findings"
        for finding in self.findings:
            yield f"- {finding.text}"


def reproduce(*, stack: str = "spu-2024") -> Reproduction:
    """The paper's Tables 4-7 and Figures 1 and 15 beside ours.

    Args:
        stack: A name of `stack_names()`; the paper's bytes are those of `spu-2024`.

    Raises:
        ValueError: For an unknown stack.

    Example:
        >>> from aero import mpc
        >>> found = mpc.reproduce()
        >>> sum(abs(r.gigabytes.one_more_layernorm_ratio - 1) < 0.0015 for r in found.rows)
        25
    """
    published = {
        (row["table"], row["label"]): row for row in paper_tables() if row["table"] in TABLES
    }
    rows = tuple(
        _reproduced(cell, published[cell.table, cell.label], stack)
        for cell in compare_with_paper(TABLES, stack=stack)
    )
    return Reproduction(stack, rows, _figures(stack), find_all(rows, stack))


def _reproduced(cell: PaperComparison, row: dict[str, Any], stack: str) -> ReproducedRow:
    report = simulate(
        row["label"],
        model=row["model"],
        context_length=row["context_length"],
        vocab_size=row["vocab_size"],
        final_norm=row["final_norm"],
        stack=stack,
        setup=False,
    )
    flops = report.spec.flops("paper")
    flights = report.latency("wan-100mbps", "none").total.flights_ns
    return ReproducedRow(
        gigabytes=cell,
        paper_minutes=row["latency_minutes"],
        minutes=report.latency().minutes,
        # The paper's own bytes: no model is needed to see that they do not fit through.
        network_only_minutes=(cell.paper_gb * 1e9 / 2 * 8 / 100e6 / 60, flights / 60e9),
        flops_ffn=Flops(row["flops_ffn"], flops.ffn),
        flops_attention=Flops(row["flops_attention"], flops.attention),
    )


# --- figures --------------------------------------------------------------------------------------

_AERO_STEPS = ("SM+LN+G", "SM+LN+R", "SM+R", "SM+ScFFN", "SM+ScFuFFN")
_SOTA_STEPS = ("SOTA:SM+ScFFN", "SOTA:SM+ScFuFFN")


def _figures(stack: str) -> dict[str, tuple[SavingStep, ...]]:
    gpt2 = (*_AERO_STEPS, "SM+ScFuFFN_i6", *_SOTA_STEPS, "SOTA:SM+ScFuFFN_i1")
    # The numbers of Figure 15 are only in its picture, so ours stand alone.
    pythia = (*_AERO_STEPS, *_SOTA_STEPS)
    return {
        "Figure 1: GPT-2, T = 128": tuple(_step(label, "gpt2", 128, stack) for label in gpt2),
        "Figure 15: Pythia-70M, T = 256": tuple(
            _step(label, "pythia-70m", 256, stack) for label in pythia
        ),
    }


def _step(label: str, model: str, context_length: int, stack: str) -> SavingStep:
    sizes: dict[str, Any] = {"model": model, "context_length": context_length}
    sizes["final_norm"] = "layer" if label.startswith("SOTA") else "none"
    spec = ArchitectureSpec.from_label(label, **sizes)
    gigabytes, minutes, perplexity = _printed(label, model, context_length)
    return SavingStep(
        label=label,
        gigabytes=simulate(spec, stack=stack).comm_bytes / 1e9,
        minutes=simulate(spec, stack=stack, setup=False).latency().minutes,
        paper_gigabytes=gigabytes,
        paper_minutes=minutes,
        perplexity=perplexity,
    )


def _printed(
    label: str, model: str, context_length: int
) -> tuple[float | None, float | None, float | None]:
    rows = [
        row
        for row in paper_tables()
        if (row["label"], row["model"], row["context_length"]) == (label, model, context_length)
    ]
    # Rows with costs first: other tables print perplexities of other training runs.
    rows.sort(key=lambda row: "comm_gb" not in row)
    costs = next((row for row in rows if "comm_gb" in row), {})
    perplexity = next((row["perplexity"] for row in rows if row["perplexity"] is not None), None)
    if (label, model) == ("SM+R", "gpt2"):
        # Section 1: without LayerNorm 3.41 and 1.42 times less than the baseline of Table 4.
        baseline = next(row for row in paper_tables() if row["table"] == 4)
        return (
            round(baseline["comm_gb"] / 3.41, 2),
            round(baseline["latency_minutes"] / 1.42, 2),
            perplexity,
        )
    return costs.get("comm_gb"), costs.get("latency_minutes"), perplexity


# --- text -----------------------------------------------------------------------------------------

_HEADER = [
    "network", "GB", "listed", "+LN", "ratio", "min", "ours", "ratio", "FFN FLOPs", "ours", "ratio",
    "attention", "ours", "ratio",
]  # fmt: skip


def _cells(row: ReproducedRow) -> list[str]:
    cell = row.gigabytes
    flops = [
        text
        for part in (row.flops_ffn, row.flops_attention)
        for text in (part.printed, f"{part.ours / 1e9:.2f}B", f"{part.ratio:.3f}")
    ]
    return [
        cell.label,
        f"{cell.paper_gb:.2f}",
        f"{cell.listed_gb:.2f}",
        f"{cell.one_more_layernorm_gb:.2f}",
        f"{cell.one_more_layernorm_ratio:.4f}",
        f"{row.paper_minutes:.2f}",
        f"{row.minutes:.2f}",
        f"{row.minutes_ratio:.3f}",
        *flops,
    ]


def _aligned(lines: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    for first, *rest in lines:
        numbers = [text.rjust(width) for text, width in zip(rest, widths[1:], strict=True)]
        yield "  ".join([first.ljust(widths[0]), *numbers])
