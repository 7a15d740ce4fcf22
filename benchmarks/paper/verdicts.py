"""The verdict on a claim: its comparisons by `aero.report.seeds`, a target's all together.

The m comparisons of a target that vary over seeds share its 5 %: their intervals are simultaneous.
The spread comes from the networks that claims use, of this target and of those next to it. What is
no question of seeds is decided without one: costs, which are the same for every seed, by their
sign, and `diverged`, which says what every run does, by a single run to the contrary.

A comparison can be `level` only between two networks, or with 0: another bound or a factor
(`1.02 x SM+G`) is what the claim itself takes for a difference of interest.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from aero.analysis.statistics import mean_over_documents
from aero.architecture import ArchitectureSpec
from aero.report.seeds import (
    Difference,
    Pool,
    Series,
    Verdict,
    family_of,
    judge_signs,
)
from benchmarks.paper.claims import Claim, Comparison, Side
from benchmarks.paper.run_statistics import STATISTICS, Statistic
from benchmarks.paper.targets import Target

#: Verdict -> its words in a table.
VERDICTS: Mapping[str, str] = {
    "holds": "holds",
    "holds in part": "holds in part",
    "does not hold": "does not hold",
    "level": "level",
    "undecided": "not decided",
    "not tested": "not tested at this scale",
}

# The `rows` of an outcome.
Rows = Sequence[Mapping[str, Any]]

# A claim is as bad as its worst comparison; one that fails decides.
_WORST_FIRST: tuple[Verdict, ...] = ("does not hold", "not tested", "undecided", "level", "holds")


class Judged(NamedTuple):
    """A claim of a target, and what became of it.

    Attributes:
        claim: as it was declared.
        verdict: of its worst comparison.
        differences: the evidence of seeds, one per comparison; perplexities' are logarithms.
        reasons: the same as cells of a table: means, difference, intervals.
    """

    claim: Claim
    verdict: Verdict
    differences: tuple[Difference, ...]
    reasons: tuple[str, ...]


def judge_claims(
    target: Target, rows: Rows, beside: Iterable[tuple[Target, Rows]] = ()
) -> list[Judged]:
    """Returns the verdicts on all claims of a target.

    A claim does not hold if one comparison fails; else it is not tested if one has no runs,
    undecided or level if one is, and holds if all hold.

    Args:
        target: its claims are judged.
        rows: the `rows` of its outcome.
        beside: other targets with theirs, whose networks add to the spread over seeds.
    """
    everything = [(target, rows), *beside]
    varying = {c for c in _comparisons(target) if STATISTICS[c.statistic].form != "exact"}
    pools = {
        statistic: Pool(_used(statistic, everything), comparisons=len(varying))
        for statistic in {comparison.statistic for comparison in varying}
    }
    named = {row["name"]: row for row in rows}
    judged = []
    for claim in target.claims:
        found = [_judge(c, target, named, pools, len(varying)) for c in claim.comparisons]
        differences, reasons = zip(*found, strict=True)
        verdicts = {difference.verdict for difference in differences}
        worst = next(verdict for verdict in _WORST_FIRST if verdict in verdicts)
        judged.append(Judged(claim, worst, differences, reasons))
    return judged


def _comparisons(target: Target) -> list[Comparison]:
    return [comparison for claim in target.claims for comparison in claim.comparisons]


def _used(statistic: str, targets: Iterable[tuple[Target, Rows]]) -> list[Series]:
    """The networks that a claim compares in a statistic."""
    found = []
    for target, rows in targets:
        names = {
            side.row
            for comparison in _comparisons(target)
            if comparison.statistic == statistic
            for side in (comparison.lower, comparison.higher)
        }
        # A row whose rates are still being tried has no cells.
        used = [row for row in rows if row["name"] in names and row["cells"]]
        found += [_series(target, row, statistic) for row in used]
    return found


def _series(target: Target, row: Mapping[str, Any], statistic: str) -> Series:
    (declared,) = (entry for entry in target.rows if entry.name == row["name"])
    is_ratio = STATISTICS[statistic].is_ratio
    values = _values(row, statistic)
    spec = ArchitectureSpec.from_label(declared.label, model=declared.model)
    return Series(
        row["cells"][0]["key"].rpartition("-seed")[0],
        {seed: _logarithm(value) for seed, value in values.items()} if is_ratio else values,
        family_of(spec.norm, spec.shaped_attention),
        declared.setting,
    )


def _values(row: Mapping[str, Any], statistic: str) -> dict[int, float]:
    """Seed -> value; infinite for the perplexity of a diverged run."""
    found = row["statistics"].get(statistic)
    values = {} if found is None else dict(zip(found["seeds"], found["values"], strict=False))
    if STATISTICS[statistic].is_ratio:
        broken = [cell["seed"] for cell in row["cells"] if cell["status"] == "diverged"]
        values.update(dict.fromkeys(broken, math.inf))
    return values


def _judge(
    comparison: Comparison,
    target: Target,
    rows: Mapping[str, Mapping[str, Any]],
    pools: Mapping[str, Pool],
    comparisons: int,
) -> tuple[Difference, str]:
    sides = tuple(_resolved(side, rows) for side in (comparison.lower, comparison.higher))
    values = [
        _values(rows[side.row], statistic) if side.row is not None and side.row in rows else {}
        for side, statistic in zip(sides, comparison.statistics, strict=True)
    ]
    means = [
        side.factor if side.row is None else side.factor * _mean(found.values())
        for side, found in zip(sides, values, strict=True)
    ]
    statistic = STATISTICS[comparison.statistic]
    if any(math.isnan(mean) for mean in means):
        difference = Difference("not tested")
    elif statistic.form == "exact":
        gap = means[1] - means[0]
        difference = Difference("holds" if gap > 0 else "does not hold", gap, gap, gap)
    elif statistic.form == "yes":
        difference = _every_run(comparison, values, comparisons)
    else:
        series = [
            _series(target, rows[side.row], comparison.statistic) if side.row else None
            for side in sides
        ]
        difference = pools[comparison.statistic].judge(
            *series,
            offset=_offset(comparison, statistic),
            margin=statistic.margin if _may_be_level(comparison) else 0.0,
        )
        if comparison.statistic == "perplexity" and math.isfinite(difference.effect):
            lower, higher = (rows[side.row] if side.row else {} for side in sides)
            tail, offset = pools["perplexity"].tail, _offset(comparison, statistic)
            difference = _over_documents(difference, lower, higher, tail, offset)
    return difference, _reason(sides, means, statistic, difference)


def _over_documents(
    difference: Difference,
    lower: Mapping[str, Any],
    higher: Mapping[str, Any],
    tail: float,
    offset: float,
) -> Difference:
    """The difference with its interval over documents, where both rows have the same ones."""
    below, above = lower.get("documents"), higher.get("documents")
    if below is None or above is None or below["tokens"] != above["tokens"]:
        return difference
    if len({tuple(sorted(_values(row, "perplexity"))) for row in (lower, higher)}) > 1:
        return difference
    gaps = [high - low for low, high in zip(below["nll"], above["nll"], strict=True)]
    found = mean_over_documents(gaps, below["tokens"], tail=tail)
    if found is None:
        return difference
    _, low, high = found
    return dataclasses.replace(
        difference, low_over_documents=low + offset, high_over_documents=high + offset
    )


def _resolved(side: Side, rows: Mapping[str, Mapping[str, Any]]) -> Side:
    """The best of a group by its name; as it is where one of the group has no perplexity."""
    means = {
        name: _mean(_values(rows[name], "perplexity").values()) if name in rows else math.nan
        for name in side.best_of
    }
    if not means or any(math.isnan(mean) for mean in means.values()):
        return side
    return dataclasses.replace(side, row=min(means, key=lambda name: means[name]), best_of=())


def _every_run(
    comparison: Comparison, values: Sequence[Mapping[int, float]], comparisons: int
) -> Difference:
    """One side is the number 0.5: all runs of the other side do or do not."""
    (found,) = filter(None, values)
    sign = 1.0 if comparison.lower.row is None else -1.0
    signs = [sign * (value - 0.5) for value in found.values()]
    verdict = judge_signs(signs, comparisons)
    return Difference("does not hold" if min(signs) < 0 else verdict, seeds=len(signs))


def _offset(comparison: Comparison, statistic: Statistic) -> float:
    """The term added to higher - lower: bounds, and factors of ratios, whose values are logs."""
    total = 0.0
    for sign, side in ((-1.0, comparison.lower), (1.0, comparison.higher)):
        if statistic.is_ratio:
            total += sign * math.log(side.factor)
        elif side.row is None:
            total += sign * side.factor
    return total


def _may_be_level(comparison: Comparison) -> bool:
    return all(
        side.factor == (0.0 if side.row is None else 1.0)
        for side in (comparison.lower, comparison.higher)
    )


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else math.nan


def _logarithm(value: float) -> float:
    return math.log(value) if math.isfinite(value) else value


def _reason(
    sides: Sequence[Side], means: Sequence[float], statistic: Statistic, found: Difference
) -> str:
    """The means, and how far the higher side is above the lower one."""
    lower, higher = (_shown(side, mean) for side, mean in zip(sides, means, strict=True))
    text = f"{higher} > {lower}" if sides[0].row is None else f"{lower} < {higher}"
    if not math.isfinite(found.effect) or statistic.form == "exact":
        return text
    ends = [_effect(statistic, end) for end in (found.low, found.high)]
    unit = " %" if statistic.is_ratio else " points" if statistic.form == "percent" else ""
    interval = f"{ends[0]} to {ends[1]}" if math.isfinite(found.low) else ""
    if not math.isnan(found.low_over_documents):
        ends = [
            _effect(statistic, end) for end in (found.low_over_documents, found.high_over_documents)
        ]
        interval += f"; over documents {ends[0]} to {ends[1]}"
    shown = f" ({interval.removeprefix('; ')})" if interval else ""
    return f"{text}: {_effect(statistic, found.effect)}{unit}{shown}"


def _shown(side: Side, mean: float) -> str:
    if side.row is None:
        return str(side)
    return f"{side} ({'no run' if math.isnan(mean) else f'{mean:.4g}'})"


def _effect(statistic: Statistic, value: float) -> str:
    if statistic.is_ratio:
        return f"{100 * math.expm1(value):+.1f}"
    return f"{100 * value:+.1f}" if statistic.form == "percent" else f"{value:+.3f}"
