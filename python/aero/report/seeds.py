"""One network against another over seeds: an interval for the difference, and its verdict.

This is the only place that judges seeds. No result chose the test:

- Seeds are paired. The same seed feeds the same text in the same order, so networks are compared
  seed by seed, d_s = higher_s - lower_s, over the n seeds that both have. Perplexities and bits
  enter as logarithms.
- Few seeds say little about their own spread, and a family's spread may not be theirs. So the
  variance s^2 of these n differences is shrunk towards that of their family: a moderated t (Smyth,
  10.2202/1544-6115.1027). With v^2 the mean variance of all other pairs of networks from the same
  two families (`family_of`) and, where the two share a setting, of one setting, it is
  (g v^2 + (n - 1) s^2) / (g + n - 1), with g + n - 1 degrees of freedom. The pool holds networks
  that a claim uses and no others. g is n - 1, so that both weigh the same, and 1.5 with
  two seeds; less where less is known of the family. Simulation alone chose it: false sets stay at
  5 % where one network in eight has four times its family's deviation.
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

Assumed: normal errors, and seeds that act alike, or independently, on the networks of a pool. Of
sets of seven comparisons without any true difference 2 % have a false decision at 2, 3 and 5 seeds.
Where one network in eight has twice its family's deviation it is 3 to 4 %, with four times 5 %, and
with eight times 9, 7 and 6 % (tests/python/report/test_seeds.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from aero.analysis.statistics import student_quantile

Verdict = Literal["holds", "does not hold", "level", "undecided", "not tested"]

# Of all intervals of one set of comparisons that one fails to hold the true difference.
_FALSE_SETS = 0.05
# The least g. With 1 a pair of two seeds would have t of two degrees of freedom, which finds 4 % of
# the differences of four deviations, and with 1.5 it finds 12 %.
_LEAST_FAMILY_FREEDOM = 1.5


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

    @property
    def tail(self) -> float:
        """The share of a distribution beyond each end of an interval."""
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
        gaps = _gaps(lower, higher, (side.values.keys() for side in sides)) + offset
        if not len(gaps):
            return Difference("not tested")
        if not np.isfinite(gaps).all():
            return Difference(judge_signs(gaps.tolist(), self._comparisons), seeds=len(gaps))
        effect, seeds = float(gaps.mean()), len(gaps)
        if seeds < 2:
            return Difference("undecided", effect, seeds=seeds)
        family, known = self._spread_of_others(lower, higher)
        weight = min(max(seeds - 1, _LEAST_FAMILY_FREEDOM), known)
        freedom = weight + seeds - 1
        variance = (weight * family + (seeds - 1) * _variance(gaps)) / freedom
        if variance == 0.0:
            return Difference("undecided", effect, seeds=seeds)
        reach = student_quantile(freedom, self.tail) * math.sqrt(variance / seeds)
        low, high = effect - reach, effect + reach
        verdict: Verdict = "undecided"
        if max(-low, high) < margin:
            verdict = "level"
        elif low > 0.0 or high < 0.0:
            verdict = "holds" if low > 0.0 else "does not hold"
        return Difference(verdict, effect, low, high, seeds, freedom)

    def _spread_of_others(self, lower: Series | None, higher: Series | None) -> tuple[float, int]:
        """Variance of differences of the same two families and its freedom; 0, 0 if unknown."""
        squares, freedom = 0.0, 0
        for pair in self._other_pairs(lower, higher):
            one, other = (pair[0], None) if len(pair) == 1 else pair
            gaps = _gaps(one, other, (side.values.keys() for side in pair))
            gaps = gaps[np.isfinite(gaps)]
            if len(gaps) > 1:
                squares += (len(gaps) - 1) * _variance(gaps)
                freedom += len(gaps) - 1
        return (squares / freedom, freedom) if freedom else (0.0, 0)

    def _other_pairs(
        self, lower: Series | None, higher: Series | None
    ) -> Iterable[tuple[Series, ...]]:
        """Each once."""
        sides = [side for side in (lower, higher) if side is not None]
        members = [[s for s in self._series if s.family == side.family] for side in sides]
        together = len({side.setting for side in sides}) == 1
        found = {frozenset(side.network for side in pair): pair for pair in product(*members)}
        judged = frozenset(side.network for side in sides)
        return [
            pair
            for names, pair in found.items()
            if len(names) == len(sides)
            and names != judged
            and (len({side.setting for side in pair}) == 1) is together
        ]


def _gaps(
    lower: Series | None, higher: Series | None, seeds: Iterable[Iterable[int]]
) -> NDArray[np.float64]:
    """Higher minus lower, seed by seed, over the seeds that all of several sets have."""
    shared = sorted(set.intersection(*map(set, seeds)))
    with np.errstate(invalid="ignore"):
        above, below = (
            np.array([0.0 if side is None else side.values[seed] for seed in shared])
            for side in (higher, lower)
        )
        gaps: NDArray[np.float64] = above - below
    return gaps


def _variance(gaps: NDArray[np.float64]) -> float:
    """Exactly 0 of equal ones."""
    return float((gaps - gaps[0]).var(ddof=1))
