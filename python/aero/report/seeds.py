"""One network against another over seeds: an interval for the difference, and its verdict.

This is the only place that judges seeds. The test was declared before it met any result:

- Seeds are paired. The same seed feeds the same text in the same order, so networks are compared
  seed by seed, d_s = higher_s - lower_s, over the n seeds that both have. Perplexities and bits
  enter as logarithms.
- Few seeds say little about their own spread. The variance of d is the mean over all pairs of
  networks from the same two families (`family_of`) and, where the two share a setting, of one
  setting. It is never less than the variance of these n differences themselves, so that a pair less
  steady than its family gets a wider interval. The pool holds networks that a claim uses and no
  others.
- Pairs that share a network are dependent. The residuals of all pairs are C y, with y the values,
  so their sum of squares y' K y (K = C' C) has trace(K)^2 / trace(K^2) degrees of freedom
  (Satterthwaite). That is n - 1 for one pair and (R - 1)(n - 1) for R networks of one family.
- The interval is mean(d) -+ t sqrt(variance / n), Student's t with 2.5 % / m in each tail, where m
  counts the comparisons that are judged together. So the intervals are simultaneous: with 95 %
  all m hold the true differences, where what is assumed below is so. Holm's order would decide a
  little more, and no interval would then show why.
- Above 0 the comparison holds, below 0 it does not. Within -+`margin`, the smallest difference of
  interest, it is level on whichever side of 0 it lies. Anything else is undecided.
- A single seed is undecided: only a second one can show that a network is not as steady as its
  family. So are seeds that all give one number, whose spread is unknown and not zero.
- A diverged run has infinite perplexity and no normal error. Then only signs count: all n must
  agree, and n fair coins must do so with 2.5 % / m at most.

Assumed: normal errors, equal variance within a family, and seeds that act alike, or independently,
on the networks of a pool. Of sets of seven comparisons without any true difference 3 % have a
false decision at 2, 3 and 5 seeds, and 5 to 7 % where one network in eight has twice its family's
deviation (tests/python/report/test_seeds.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Literal

import numpy as np

from aero.analysis.intervals import student_quantile

Verdict = Literal["holds", "does not hold", "level", "undecided", "not tested"]

# Of all intervals of one set of comparisons that one fails to hold the true difference.
_FALSE_SETS = 0.05


@dataclass(frozen=True, eq=False)
class Series:
    """One number of one network over seeds.

    Attributes:
        network: its identity; a network counts once in a pool.
        values: seed -> value; logarithms where errors are relative.
        family: networks whose values vary alike over seeds.
        setting: the conditions of a run (size, text, length); seeds of equal settings are paired.
    """

    network: str
    values: dict[int, float]
    family: str = ""
    setting: str = ""

    @property
    def reference(self) -> float:
        """The first finite value, which is subtracted before squares are summed."""
        return next(value for value in self.values.values() if math.isfinite(value))


@dataclass(frozen=True)
class Difference:
    """The evidence of seeds for "lower < higher".

    Attributes:
        verdict: the decision of the interval.
        effect: mean of higher minus lower; NaN where nothing can be compared.
        low: lower end of the simultaneous 95 % interval; -inf where no spread is known.
        high: upper end.
        seeds: that both sides have.
        freedom: degrees of freedom of the spread; 0 where none is known.
        low_over_documents: lower end of the interval of the same mean over validation documents,
            which judges nothing; NaN where their losses are unknown.
        high_over_documents: upper end.
    """

    verdict: Verdict
    effect: float = math.nan
    low: float = -math.inf
    high: float = math.inf
    seeds: int = 0
    freedom: float = 0.0
    low_over_documents: float = math.nan
    high_over_documents: float = math.nan


def family_of(norm: str, shaped_attention: bool) -> str:
    """Returns `shaped`, `layer`, `foldable`, `dynamic` or `none`: which networks vary alike."""
    return "shaped" if shaped_attention else norm.partition("_")[0]


def judge_signs(signs: Sequence[float], comparisons: int) -> Verdict:
    """Returns the verdict of runs by their signs alone.

    Args:
        signs: one number per seed, positive where it supports the claim.
        comparisons: m, how many are judged together.
    """
    if not signs or 0.5 ** len(signs) > _FALSE_SETS / 2 / comparisons:
        return "undecided"
    if all(sign > 0 for sign in signs):
        return "holds"
    return "does not hold" if all(sign < 0 for sign in signs) else "undecided"


class Pool:
    """All networks that a set of comparisons uses, in one number.

    Args:
        series: each network once or more; of repeated ones that with the most seeds counts.
        comparisons: m, how many are judged together.
    """

    def __init__(self, series: Iterable[Series], *, comparisons: int) -> None:
        by_seeds = sorted(series, key=lambda entry: len(entry.values))
        self._series = list({entry.network: entry for entry in by_seeds}.values())
        self._comparisons = comparisons
        self._spread = cache(self._measure_spread)

    @property
    def tail(self) -> float:
        """Of a distribution, beyond each end of an interval."""
        return _FALSE_SETS / 2 / self._comparisons

    def judge(
        self,
        lower: Series | None,
        higher: Series | None,
        *,
        offset: float = 0.0,
        margin: float = 0.0,
    ) -> Difference:
        """Judges "lower < higher + offset".

        Args:
            lower: None is the number 0.
            higher: likewise; not both.
            offset: a number, or the logarithm of a factor.
            margin: the smallest difference of interest; 0 finds nothing level.
        """
        sides = [side for side in (lower, higher) if side is not None]
        shared = sorted(set.intersection(*(set(side.values) for side in sides)))
        if not shared:
            return Difference("not tested")
        with np.errstate(invalid="ignore"):
            gaps = np.array([_value(higher, s) for s in shared]) + offset
            gaps = gaps - np.array([_value(lower, s) for s in shared])
        if not np.isfinite(gaps).all():
            return Difference(judge_signs(gaps.tolist(), self._comparisons), seeds=len(shared))
        effect, seeds = float(gaps.mean()), len(shared)
        together = lower is None or higher is None or lower.setting == higher.setting
        variance, freedom = self._spread(
            None if lower is None else lower.family,
            None if higher is None else higher.family,
            together,
        )
        if seeds < 2 or variance == 0.0:
            return Difference("undecided", effect, seeds=seeds)
        variance = max(variance, float(gaps.var(ddof=1)))
        reach = student_quantile(freedom, self.tail)
        reach *= math.sqrt(variance / seeds)
        low, high = effect - reach, effect + reach
        verdict: Verdict = "undecided"
        if max(-low, high) < margin:
            verdict = "level"
        elif low > 0.0 or high < 0.0:
            verdict = "holds" if low > 0.0 else "does not hold"
        return Difference(verdict, effect, low, high, seeds, freedom)

    def _measure_spread(
        self, lower: str | None, higher: str | None, together: bool
    ) -> tuple[float, float]:
        """Variance of a difference of two families and its degrees of freedom; 0, 0 if unknown."""
        cells: dict[tuple[str, int], int] = {}
        values: list[float] = []
        entries: list[tuple[int, int, float]] = []  # of C: row, cell, coefficient
        rows = 0
        for pair in self._pairs(lower, higher, together):
            seeds = [
                seed
                for seed in pair[0].values
                if all(math.isfinite(side.values.get(seed, math.nan)) for side in pair)
            ]
            for side, sign in zip(pair, (1.0, -1.0), strict=False):
                for j, seed in enumerate(seeds):
                    cell = cells.setdefault((side.network, seed), len(values))
                    if cell == len(values):
                        values.append(side.values[seed] - side.reference)
                    for i in range(len(seeds)):
                        entries.append((rows + i, cell, sign * ((i == j) - 1.0 / len(seeds))))
            rows += len(seeds)
        residuals = np.zeros((rows, len(values)))
        if entries:
            at_row, at_cell, coefficients = zip(*entries, strict=True)
            residuals[list(at_row), list(at_cell)] = coefficients
        form = residuals.T @ residuals
        trace = float(np.trace(form))
        if trace < 0.5:  # no two seeds anywhere
            return 0.0, 0.0
        per_difference = 1.0 if lower is None or higher is None else 2.0
        squares = float(np.sum((residuals @ np.array(values)) ** 2))
        return per_difference * squares / trace, trace**2 / float((form**2).sum())

    def _pairs(
        self, lower: str | None, higher: str | None, together: bool
    ) -> Iterable[tuple[Series, ...]]:
        named = [family for family in (lower, higher) if family is not None]
        members = [[s for s in self._series if s.family == family] for family in named]
        if len(named) == 1:
            return [(member,) for member in members[0]]
        return [
            (one, other)
            for one, other in product(*members)
            if one is not other and (one.setting == other.setting) is together
        ]


def _value(side: Series | None, seed: int) -> float:
    return 0.0 if side is None else side.values[seed]
