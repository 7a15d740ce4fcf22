"""A target's claims about its rows: comparisons of their statistics.

A condition is a statistic and a chain of two or more sides with `<` or `>` between them; a side is
a row, a number, a factor and a row (`1.02 x SM+G`), or another statistic (`0.1 x minutes of SM+G`).
Factors are for perplexities and costs, other statistics for costs, conditions on `diverged` read
`diverged: SM > 0.5` (every run does) or `< 0.5` (none does). Of a group of rows that the target
names, `every GROUP` compares with each of them, `best GROUP` with the costs of the one that has the
lowest mean perplexity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aero.internals.errors import TrainingError
from aero.mpc.other_words import nearest
from benchmarks.paper.run_statistics import STATISTICS

# Name of a group -> its rows.
Groups = Mapping[str, tuple[str, ...]]

_FACTOR = re.compile(r"([0-9.]+) x (.+)$")
_OTHER_STATISTIC = re.compile(r"(\w+) of (.+)$")


@dataclass(frozen=True)
class Side:
    """One side of a comparison: `factor` times a row's statistic, or a number.

    Attributes:
        row: name of the row; None for a number.
        factor: of the row's statistic, or the number itself.
        statistic: another one than the comparison's; None is the comparison's.
        best_of: rows of which the one with the lowest mean perplexity is meant; empty means `row`.
    """

    row: str | None
    factor: float = 1.0
    statistic: str | None = None
    best_of: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.row is None:
            return f"{self.factor:g}"
        named = self.row if self.statistic is None else f"{self.statistic} of {self.row}"
        return named if self.factor == 1.0 else f"{self.factor:g} x {named}"


@dataclass(frozen=True)
class Comparison:
    """`lower` < `higher` in a statistic."""

    statistic: str
    lower: Side
    higher: Side

    @property
    def statistics(self) -> tuple[str, str]:
        """Those of the lower and of the higher side."""
        lower, higher = self.lower.statistic, self.higher.statistic
        return lower or self.statistic, higher or self.statistic


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper as comparisons that must all hold.

    Attributes:
        text: the sentence.
        where: its place in the paper.
        comparisons: all must hold.
    """

    text: str
    where: str
    comparisons: tuple[Comparison, ...]


def read_claim(
    target: str, entry: Mapping[str, Any], rows: list[str], groups: Groups | None = None
) -> Claim:
    """Returns the claim that a description says, checked.

    Args:
        target: its name, for errors.
        entry: `claim`, `where` and `holds_if`, one condition or a list.
        rows: names of the target's rows.
        groups: of rows, by the name that `every` and `best` call them.

    Raises:
        TrainingError: an unknown key, a condition that cannot be read, or no such row.
    """
    refuse_unknown(target, entry, {"claim", "where", "holds_if"})
    conditions = entry["holds_if"]
    texts = [conditions] if isinstance(conditions, str) else conditions
    found = [
        part
        for text in texts
        for each in _of_every_row(text, groups or {})
        for part in _comparisons(target, each, rows, groups or {})
    ]
    return Claim(entry["claim"], entry["where"], tuple(found))


def _of_every_row(text: str, groups: Groups) -> list[str]:
    """A condition on `every GROUP` as one per row of the group."""
    for name, rows in groups.items():
        if f"every {name}" in text:
            return [text.replace(f"every {name}", row) for row in rows]
    return [text]


def _comparisons(target: str, text: str, rows: list[str], groups: Groups) -> list[Comparison]:
    statistic, colon, chain = text.partition(": ")
    parts = re.split(r" ([<>]) ", chain)
    if not colon or len(parts) < 3:
        raise TrainingError(
            f"reproduce: {target}: a condition must read 'statistic: row < row', got {text!r}"
        )
    sides = [_side(target, part, rows, groups) for part in parts[::2]]
    found = []
    for left, sign, right in zip(sides, parts[1::2], sides[1:], strict=False):
        lower, higher = (left, right) if sign == "<" else (right, left)
        found.append(Comparison(statistic, lower, higher))
        _refuse_what_cannot_be_judged(target, text, found[-1])
    return found


def _refuse_what_cannot_be_judged(target: str, text: str, comparison: Comparison) -> None:
    unknown = [name for name in comparison.statistics if name not in STATISTICS]
    if unknown:
        raise TrainingError(f"reproduce: {target} has no statistic {unknown[0]!r}, in {text!r}")
    kinds = [STATISTICS[name] for name in comparison.statistics]
    sides = (comparison.lower, comparison.higher)
    numbers = [side.factor for side in sides if side.row is None]
    has_factor = any(side.row is not None and side.factor != 1.0 for side in sides)
    exact = all(kind.form == "exact" for kind in kinds)
    wrong = {
        "compares two numbers": len(numbers) == 2,
        "mixes statistics that are no costs": kinds[0] is not kinds[1] and not exact,
        "has a factor of what is no perplexity or cost": has_factor
        and not (exact or kinds[0].is_ratio),
        "must compare perplexities with what is above 0": kinds[0].is_ratio
        and min(side.factor for side in sides) <= 0.0,
        "compares the best of a group in what is no cost": not exact
        and any(side.best_of for side in sides),
        "must compare with 0.5": kinds[0].form == "yes" and numbers != [0.5],
    }
    for what, applies in wrong.items():
        if applies:
            raise TrainingError(f"reproduce: {target}: the condition {text!r} {what}")


def _side(target: str, text: str, rows: list[str], groups: Groups) -> Side:
    if text in rows:
        return Side(text)
    try:
        return Side(None, float(text))
    except ValueError:
        pass
    factor = 1.0
    if scaled := _FACTOR.match(text):
        factor, text = float(scaled.group(1)), scaled.group(2)
    statistic = None
    if text not in rows and (other := _OTHER_STATISTIC.match(text)):
        statistic, text = other.groups()
    if (group := text.removeprefix("best ")) != text and group in groups:
        return Side(text, factor, statistic, groups[group])
    return Side(known_row(target, text, rows), factor, statistic)


def known_row(target: str, name: str, rows: list[str]) -> str:
    """Returns `name`, or raises `TrainingError` if it is none of `rows`."""
    if name not in rows:
        raise TrainingError(f"reproduce: {target} has no row {name!r}; it has {', '.join(rows)}")
    return name


def refuse_unknown(target: str, entry: Mapping[str, Any], known: set[str]) -> None:
    """Raises `TrainingError` with the nearest key if `entry` has one that is not known."""
    unknown = sorted(set(entry) - known)
    if unknown:
        hint = nearest(unknown[0], sorted(known))
        raise TrainingError(f"reproduce: {target} has an unknown key {unknown[0]!r}{hint}")
