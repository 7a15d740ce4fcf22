"""The ranges of the numbers that people give."""

from __future__ import annotations

from dataclasses import dataclass

from aero.internals.errors import TrainingError
from aero.reading import shown


@dataclass(frozen=True)
class Bounds:
    """A range of numbers with two ends; NaN and infinity lie in none.

    Attributes:
        least: its smallest number.
        most: its largest.
        above: whether `least` itself lies outside.
        below: whether `most` itself lies outside.
    """

    least: float
    most: float
    above: bool = False
    below: bool = False

    def complaint(self, value: float) -> str | None:
        """Returns the fault of a number in words; None if it lies inside."""
        # Every comparison with NaN fails.
        if not (value > self.least if self.above else value >= self.least):
            return f"must be {'>' if self.above else '>='} {_shown(self.least)}, got {shown(value)}"
        if not (value < self.most if self.below else value <= self.most):
            return f"must be {'<' if self.below else '<='} {_shown(self.most)}, got {shown(value)}"
        return None

    def check(self, name: str, value: float) -> None:
        """Raises `TrainingError`, which begins with a name, for a number that lies outside."""
        complaint = self.complaint(value)
        if complaint is not None:
            raise TrainingError(f"{name} {complaint}")


def _shown(bound: float) -> str:
    short = f"{bound:g}"
    return short if float(short) == bound else f"{bound:,}"
