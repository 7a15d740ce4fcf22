"""Costs of networks: the paper's Tables 4-7 and Figures 1 and 15 next to ours, and every price.

A figure goes step by step: the saving of each network, and networks of equal time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.mpc import simulate
from aero.mpc.simulation import cheetah_stack_names, optimized_stack_names
from aero.paper import PUBLIC, PaperComparison, compare_with_paper, paper_tables, price_row
from aero.tables import table_lines
from benchmarks.paper.equal_time import TimedNetwork, compare_at_equal_time

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
        """True if ours is the printed number to its last digit."""
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
        """Returns JSON-ready values."""
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
    assert report.spec is not None  # of a label
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
        minutes: on the paper's two machines and their network, set-up included; the rates of
            both are fitted to the paper's minutes.
        link_minutes: of sending and waiting alone on the link that the paper states, 100 Mbit/s
            and 80 ms; nothing is fitted.
    """

    gigabytes: float
    setup_gigabytes: float
    minutes: float
    link_minutes: float


def ways_to_price() -> list[str]:
    """Returns the three stacks as published, then the optimized stacks."""
    return [*cheetah_stack_names(), *optimized_stack_names()]


def private_costs(spec: ArchitectureSpec) -> dict[str, PrivateCost]:
    """Prices a network, its temperatures and factors of shaped attention public; trains nothing.

    Returns:
        `ways_to_price()` -> cost of one pass over T tokens. Those for generation compute the last
        token's logits only.
    """
    found = {}
    for way in ways_to_price():
        report = mpc.simulate(spec, stack=way, **PUBLIC)
        found[way] = PrivateCost(
            gigabytes=report.comm_bytes / 1e9,
            setup_gigabytes=report.by_kind["setup"].comm_bytes / 1e9,
            minutes=report.latency().minutes,
            link_minutes=report.latency("wan-100mbps", "none").minutes,
        )
    return found


_BAR = 24


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


_AERO_STEPS = ("SM+LN+G", "SM+LN+R", "SM+R", "SM+ScFFN", "SM+ScFuFFN")
_SOTA_STEPS = ("SOTA:SM+ScFFN", "SOTA:SM+ScFuFFN")


def saving_figures(stack: str) -> dict[str, tuple[SavingStep, ...]]:
    """Title -> the steps of Figures 1 and 15, ours priced on `stack`."""
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
        gigabytes=simulate(spec, stack=stack, **PUBLIC).comm_bytes / 1e9,
        minutes=simulate(spec, stack=stack, setup=False, **PUBLIC).latency().minutes,
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


def figure_lines(figures: Mapping[str, Sequence[SavingStep]]) -> Iterator[str]:
    """Each figure for the terminal: a row with a bar per step, then the networks at equal time."""
    for title, steps in figures.items():
        yield ""
        yield f"{title}; GB and minutes are ours"
        longest = max(step.gigabytes for step in steps)
        yield from table_lines(
            [
                row | {"": _bar(step.gigabytes / longest)}
                for row, step in zip(step_rows(steps), steps, strict=True)
            ]
        )
        compared = equal_time_rows(steps)
        if compared:
            yield ""
            yield from table_lines(compared)


def step_rows(steps: Sequence[SavingStep]) -> list[dict[str, str]]:
    """A row per step: ours and the paper's, and how many times less than the first step."""
    first = steps[0]
    return [
        {
            "network": step.label,
            "perplexity": _number(step.perplexity),
            "GB": _number(step.gigabytes),
            "times less": f"{first.gigabytes / step.gigabytes:.2f}",
            "paper, GB": _number(step.paper_gigabytes),
            "minutes": _number(step.minutes),
            "times faster": f"{first.minutes / step.minutes:.2f}",
            "paper, minutes": _number(step.paper_minutes),
        }
        for step in steps
    ]


def equal_time_rows(steps: Sequence[SavingStep]) -> list[dict[str, str]]:
    """The networks of He and Hofmann (SOTA) and AERO's best that takes as long within 10 %."""
    return [
        pair.cells()
        for pair in compare_at_equal_time(timed_steps(steps))
        if pair.network.label.startswith("SOTA:") and pair.best is not None
    ]


def timed_steps(steps: Iterable[SavingStep]) -> list[TimedNetwork]:
    """The steps of a figure of the paper that have a printed perplexity; minutes are ours."""
    return [
        TimedNetwork(step.label, 60 * step.minutes, step.perplexity)
        for step in steps
        if step.perplexity is not None
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _bar(share: float) -> str:
    return ("█" * max(1, round(_BAR * share))).ljust(_BAR)
