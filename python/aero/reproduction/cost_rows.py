"""Costs of networks: the rows of the paper's Tables 4-7 next to ours, and every way to price."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.paper import PaperComparison, compare_with_paper, paper_tables, price_row

__all__ = ["PrivateCost", "private_costs", "ways_to_price"]

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
    """One row of the paper's Tables 4-7 next to ours.

    Attributes:
        gigabytes: Communication of both parties; its `one_more_layernorm_ratio` is the one to
            judge by, since every row of the paper holds one LayerNorm more than it lists.
        paper_minutes: As printed.
        minutes: Ours on the paper's test bed (`paper-testbed`), operators as listed, without the
            set-up of the session.
        network_only_minutes: Sending and rounds on the network that the paper states, 100 Mbps
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
        sending, rounds = self.network_only_minutes
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
                "stated_network_rounds": rounds,
            },
            "flops": {
                part: {"paper": flops.printed, "ours": flops.ours, "ratio": flops.ratio}
                for part, flops in (("ffn", self.flops_ffn), ("attention", self.flops_attention))
            },
        }


def cost_rows(stack: str) -> tuple[ReproducedRow, ...]:
    """The rows whose networks differ in inference, ours priced on `stack`."""
    published = {
        (row["table"], row["label"]): row for row in paper_tables() if row["table"] in TABLES
    }
    return tuple(
        _reproduced(cell, published[cell.table, cell.label], stack)
        for cell in compare_with_paper(TABLES, stack=stack)
    )


def _reproduced(cell: PaperComparison, row: dict[str, Any], stack: str) -> ReproducedRow:
    report = price_row(row, stack, setup=False)
    flops = report.spec.flops("paper")
    rounds = report.latency("wan-100mbps", "none").total.rounds_ns
    return ReproducedRow(
        gigabytes=cell,
        paper_minutes=row["latency_minutes"],
        minutes=report.latency().minutes,
        # The paper's own bytes: no model is needed to see that they do not fit through.
        network_only_minutes=(cell.paper_gb * 1e9 / 2 * 8 / 100e6 / 60, rounds / 60e9),
        flops_ffn=Flops(row["flops_ffn"], flops.ffn),
        flops_attention=Flops(row["flops_attention"], flops.attention),
    )


@dataclass(frozen=True)
class PrivateCost:
    """One network priced in one way.

    Attributes:
        gigabytes: sent by both parties, 1e9 bytes, set-up included.
        setup_gigabytes: the part for the set-up of a session, paid once for many passes.
        minutes: on the paper's two machines and their network, set-up included.
    """

    gigabytes: float
    setup_gigabytes: float
    minutes: float


def ways_to_price() -> list[str]:
    """Returns the three stacks as published, then the optimized stacks.

    Example:
        >>> from aero.reproduction.cost_rows import ways_to_price
        >>> ways_to_price()[0], ways_to_price()[-1]
        ('spu-2024', 'aero-approximate')
    """
    return [*mpc.stack_names(), *mpc.optimized_stack_names()]


def private_costs(spec: ArchitectureSpec) -> dict[str, PrivateCost]:
    """Prices a network; nothing is trained.

    Args:
        spec: the network at its own sizes.

    Returns:
        `ways_to_price()` -> cost of one pass over T tokens. Those for generation compute the last
        token's logits only.

    Example:
        >>> from aero import ArchitectureSpec
        >>> from aero.reproduction.cost_rows import private_costs
        >>> baseline = private_costs(ArchitectureSpec.from_label("SM+LN+G", model="mini"))
        >>> round(baseline["spu-2024"].gigabytes, 2)
        2.64
    """
    found = {}
    for way in ways_to_price():
        report = mpc.simulate(spec, stack=way)
        found[way] = PrivateCost(
            gigabytes=report.comm_bytes / 1e9,
            setup_gigabytes=report.by_kind["setup"].comm_bytes / 1e9,
            minutes=report.latency().minutes,
        )
    return found
