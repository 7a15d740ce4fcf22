"""Whether a claim came out, judged against the spread over seeds.

A comparison says that one side is lower than another. Each side has a value per seed, n of them.
The spread s is one number per statistic: the standard deviation over seeds, pooled over
all rows with two seeds or more (of logarithms for perplexities and bits, whose errors are
relative). The difference of the means decides where it exceeds twice its standard error,

    |difference| > 2 s sqrt(1/n_lower + 1/n_higher),

a number as a side having none; what is smaller is undecided. Some networks vary much more over
seeds than others, and would hide what quiet ones show; so a perplexity of sides with two seeds or
more is also decided by their own spread, with Student's bound in place of 2. Rows with one seed
profit from the spread that others show; where no row has two seeds the sign alone decides, and the
verdict says so.
A diverged run has infinite perplexity: one side with NaN on any seed loses against one without.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from aero.reproduction.claims import Claim, Comparison, Side

__all__ = ["Judgement", "Verdict", "judge", "pooled_spread"]

Verdict = Literal["holds", "does not hold", "undecided", "not tested"]

# Standard errors that a difference must exceed: about one wrong decision in twenty.
_STANDARD_ERRORS = 2.0
# The same for a spread of few degrees of freedom: Student's t, two-sided, 95 %, from one on.
_STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)


@dataclass(frozen=True)
class Judgement:
    """The verdict on a claim.

    Attributes:
        claim: the claim.
        verdict: `holds`, `does not hold`, `undecided` or `not tested`.
        reasons: the numbers of each comparison, in words.
        seeds: the fewest seeds of any side of a comparison that could be made; 0 if none could.
        spread_known: whether a spread over seeds took part in every decision.
    """

    claim: Claim
    verdict: Verdict
    reasons: tuple[str, ...]
    seeds: int
    spread_known: bool


def judge(
    claim: Claim,
    values: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    ratios: Iterable[str] = ("perplexity", "bits_per_byte"),
) -> Judgement:
    """Returns the verdict on a claim.

    Args:
        claim: what is said.
        values: statistic -> row -> a value per seed; infinite for diverged perplexities.
        ratios: statistics whose spread is relative.

    Returns:
        `not tested` if a side has no value (and nothing else fails), `does not hold` if one
        comparison fails, `undecided` if none fails and one is within the spread, else `holds`.

    Example:
        >>> from aero.reproduction.targets import load_target
        >>> claim = load_target("table2").claims[1]
        >>> judge(claim, {"perplexity": {"SM+R": [40.0, 40.2], "SM+G": [44.0, 44.3]}}).verdict
        'holds'
        >>> judge(claim, {"perplexity": {"SM+R": [44.1], "SM+G": [44.0, 44.3]}}).verdict
        'undecided'
    """
    judged = [_compare(comparison, values, set(ratios)) for comparison in claim.comparisons]
    verdicts = [verdict for verdict, _, _, _ in judged]
    verdict: Verdict = "holds"
    for candidate in ("does not hold", "not tested", "undecided"):
        if candidate in verdicts:
            verdict = candidate
            break
    return Judgement(
        claim,
        verdict,
        tuple(reason for _, reason, _, _ in judged),
        min((seeds for _, _, seeds, _ in judged if seeds), default=0),
        all(known for _, _, _, known in judged),
    )


def pooled_spread(rows: Iterable[Sequence[float]]) -> float | None:
    """Returns the standard deviation over seeds, pooled over rows; None if no row has two values.

    Example:
        >>> pooled_spread([[1.0, 3.0], [5.0, 5.0], [9.0]])
        1.0
    """
    several = [
        [value for value in row if math.isfinite(value)] for row in rows if _finite_count(row) > 1
    ]
    if not several:
        return None
    squares = sum(statistics.variance(row) * (len(row) - 1) for row in several)
    return math.sqrt(squares / sum(len(row) - 1 for row in several))


def _finite_count(row: Sequence[float]) -> int:
    return sum(map(math.isfinite, row))


def _compare(
    comparison: Comparison,
    values: Mapping[str, Mapping[str, Sequence[float]]],
    ratios: set[str],
) -> tuple[Verdict, str, int, bool]:
    """Verdict, reason, seeds and whether a spread took part."""
    rows = values.get(comparison.statistic, {})
    lower, higher = (
        _values(side, values.get(statistic, {}))
        for side, statistic in zip(
            (comparison.lower, comparison.higher), comparison.statistics, strict=True
        )
    )
    seeds = min(
        len(values)
        for values, side in ((lower, comparison.lower), (higher, comparison.higher))
        if side.row is not None
    )
    reason = (
        f"{comparison.lower} {_shown(lower)} < {comparison.higher} {_shown(higher)}"
        if comparison.higher.row is not None and comparison.lower.row is not None
        else f"{comparison.lower} {_shown(lower)} < {comparison.higher}"
        if comparison.higher.row is None
        else f"{comparison.higher} {_shown(higher)} > {comparison.lower}"
    )
    if not lower or not higher:
        return "not tested", reason, 0, True
    broken = [not all(map(math.isfinite, values)) for values in (lower, higher)]
    if any(broken):
        verdict: Verdict = "undecided" if all(broken) else "holds"
        return ("does not hold" if broken == [True, False] else verdict), reason, seeds, True
    relative = comparison.statistic in ratios and min(*lower, *higher) > 0
    moved = _logarithm if relative else _identity
    spread = pooled_spread([[moved(v) for v in row] for row in rows.values()])
    gap = statistics.fmean(map(moved, higher)) - statistics.fmean(map(moved, lower))
    weight = sum(
        1 / len(values)
        for values, side in ((lower, comparison.lower), (higher, comparison.higher))
        if side.row is not None
    )
    margin = _STANDARD_ERRORS * (spread or 0.0) * math.sqrt(weight)
    sampled = [
        [moved(value) for value in values]
        for values, side in ((lower, comparison.lower), (higher, comparison.higher))
        if side.row is not None
    ]
    # Shares take few values and are often equal by chance: their own spread says little.
    if relative and all(len(values) > 1 for values in sampled):
        margin = min(margin, _own_bound(sampled) * math.sqrt(weight))
    if gap > margin:
        return "holds", reason, seeds, spread is not None
    return ("does not hold" if gap < -margin else "undecided"), reason, seeds, spread is not None


def _own_bound(sampled: Sequence[Sequence[float]]) -> float:
    """Student's bound times the spread of these values alone."""
    freedom = sum(len(values) - 1 for values in sampled)
    own = pooled_spread(sampled)
    assert own is not None
    return _STUDENT[min(freedom, len(_STUDENT)) - 1] * own


def _values(side: Side, rows: Mapping[str, Sequence[float]]) -> list[float]:
    if side.row is None:
        return [side.factor]
    return [side.factor * value for value in rows.get(side.row, ())]


def _shown(values: Sequence[float]) -> str:
    if not values:
        return "(no run)"
    return f"({statistics.fmean(values):.4g})"


def _identity(value: float) -> float:
    return value


def _logarithm(value: float) -> float:
    return math.log(value) if math.isfinite(value) else value
