"""The parts of two prices side by side, a row each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from aero.mpc.cost import Cost
from aero.mpc.latency import Duration

NOTHING = Duration(0, 0, 0)


class _Seconds(TypedDict, total=False):
    first_seconds: float
    second_seconds: float


class ComparisonRow(_Seconds):
    """A part of two prices, or their total; absent parts count 0, seconds are of timed prices."""

    part: str
    first_bytes: float
    second_bytes: float
    ratio: float | None
    first_rounds: int
    second_rounds: int


def compared_part(
    part: str,
    first: Cost | None,
    second: Cost | None,
    times: Sequence[Mapping[str, Duration]] | None,
) -> ComparisonRow:
    """Returns the row of a part that occurs in either price; `times` has both, if timed."""
    bytes_first = first.comm_bytes if first else 0.0
    bytes_second = second.comm_bytes if second else 0.0
    row: ComparisonRow = {
        "part": part,
        "first_bytes": bytes_first,
        "second_bytes": bytes_second,
        "ratio": bytes_first / bytes_second if bytes_second else None,
        "first_rounds": first.rounds if first else 0,
        "second_rounds": second.rounds if second else 0,
    }
    if times:
        row["first_seconds"], row["second_seconds"] = (
            timed.get(part, NOTHING).seconds for timed in times
        )
    return row
