"""The paper's figures step by step: the saving of each network, and networks of equal time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.mpc import simulate
from aero.mpc.equal_time import TimedNetwork, compare_at_equal_time
from aero.paper import paper_tables
from aero.tables import table_lines

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
        TimedNetwork(step.label, "", 60 * step.minutes, step.perplexity)
        for step in steps
        if step.perplexity is not None
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _bar(share: float) -> str:
    return ("█" * max(1, round(_BAR * share))).ljust(_BAR)
