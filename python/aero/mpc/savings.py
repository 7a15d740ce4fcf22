"""The paper's figures step by step: what each network saves, and what equal time buys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from aero.mpc.equal_time import compare_at_equal_time, timed_steps
from aero.mpc.tables import table_lines

if TYPE_CHECKING:
    from aero.mpc.reproduction import SavingStep

_BAR = 24


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
    """The networks of He and Hofmann (SOTA) beside AERO's best that takes as long within 10 %."""
    return [
        pair.cells()
        for pair in compare_at_equal_time(timed_steps(steps))
        if pair.network.label.startswith("SOTA:") and pair.best is not None
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _bar(share: float) -> str:
    return ("█" * max(1, round(_BAR * share))).ljust(_BAR)
