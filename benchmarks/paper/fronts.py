"""Quality against private cost: one point per network and budget, and those that nothing beats.

A budget is equal tokens, or training FLOPs that are equal within 3 %; a teacher's count too.
A network that was trained with several settings (learning rates) counts with its best one, by the
mean over seeds. The front is that of the means; a network next to it is `near` where its seeds, by
`aero.report.seeds`, do not decide that it is worse than the network of the front that costs no
more, so that another draw might put it there. Single seeds say nothing of that.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aero.architecture import ArchitectureSpec
from aero.internals.pareto import pareto_front
from aero.report.runs import RunRecord
from aero.report.seeds import Pool, Series, family_of
from benchmarks.paper.cost_rows import PrivateCost, private_costs, ways_to_price
from benchmarks.paper.run_statistics import measure

# Training FLOPs of one budget differ by less: a step more or less, and widths in whole heads.
_ALIKE = 1.03


@dataclass(frozen=True)
class FrontPoint:
    """A trained network.

    Attributes:
        name: its row.
        spec: the network.
        tokens: seen in training, by a teacher too.
        flops: of the training, likewise.
        perplexities: seed -> perplexity, all finite.
        costs: as `private_costs` gives them.
    """

    name: str
    spec: ArchitectureSpec
    tokens: int
    flops: float
    perplexities: Mapping[int, float]
    costs: Mapping[str, PrivateCost]

    def cost(self, way: str, quantity: str) -> float:
        """Gigabytes or minutes of one private pass."""
        return float(getattr(self.costs[way], quantity))

    @property
    def mean(self) -> float:
        """Mean perplexity."""
        return statistics.fmean(self.perplexities.values())

    @property
    def series(self) -> Series:
        """Logarithms of the perplexities."""
        logarithms = {seed: math.log(value) for seed, value in self.perplexities.items()}
        family = family_of(self.spec.norm, self.spec.shaped_attention)
        return Series(f"{self.name} {self.tokens}", logarithms, family)


@dataclass(frozen=True)
class Front:
    """The networks that no other of the same budget beats in perplexity and cost at once.

    Attributes:
        tokens: the budget; None where it is `flops`.
        flops: the most that a network of the budget takes; None where it is `tokens`.
        way: how it is priced.
        quantity: `gigabytes` or `minutes`.
        names: on the front, cheapest first.
        near: next to it and not decidedly worse, cheapest first; of two seeds or more.
    """

    tokens: int | None
    flops: float | None
    way: str
    quantity: str
    names: tuple[str, ...]
    near: tuple[str, ...]


def front_points(records: Mapping[str, Sequence[RunRecord]]) -> list[FrontPoint]:
    """Returns a point per network and budget, cheapest budget first.

    Args:
        records: row -> its runs that ended; rows with a diverged run, or with a teacher of unknown
            training, are left out.
    """
    best: dict[tuple[str, int], FrontPoint] = {}
    for name, runs in records.items():
        perplexities = {
            run.info.seed: run.evaluation.perplexity
            for run in runs
            if run.evaluation is not None and run.evaluation.perplexity is not None
        }
        if not runs or len(perplexities) < len(runs):
            continue
        spec = runs[0].spec
        tokens, flops = (measure(budget, runs[0]) for budget in ("tokens", "training_flops"))
        if tokens is None or flops is None:
            continue
        costs = private_costs(spec)
        point = FrontPoint(name, spec, int(tokens), flops, perplexities, costs)
        key = (json.dumps(spec.to_dict(), sort_keys=True), point.tokens)
        if key not in best or point.mean < best[key].mean:
            best[key] = point
    return sorted(best.values(), key=lambda point: point.tokens)


def front_of(
    points: Sequence[FrontPoint], tokens: int, way: str, quantity: str = "gigabytes"
) -> Front:
    """Returns the front of one budget of tokens, in `gigabytes` or `minutes` priced in one way."""
    chosen = [point for point in points if point.tokens == tokens]
    return _front(chosen, tokens, None, way, quantity)


def _front(
    points: Sequence[FrontPoint], tokens: int | None, flops: float | None, way: str, quantity: str
) -> Front:
    chosen = sorted(points, key=lambda point: point.cost(way, quantity))
    costs = [point.cost(way, quantity) for point in chosen]
    means = [point.mean for point in chosen]
    on_front = pareto_front([*zip(costs, means, strict=True)])
    beside = [index for index in range(len(chosen)) if index not in on_front]
    pool = Pool((point.series for point in chosen), comparisons=max(1, len(beside)))
    near = []
    for index in beside:
        best = max((i for i in on_front if costs[i] <= costs[index]), key=lambda i: costs[i])
        found = pool.judge(chosen[best].series, chosen[index].series)
        if found.verdict != "holds" and found.seeds > 1:
            near.append(chosen[index].name)
    names = tuple(chosen[i].name for i in on_front)
    return Front(tokens, flops, way, quantity, names, tuple(near))


def equal_flops(points: Sequence[FrontPoint]) -> list[list[FrontPoint]]:
    """Returns the points of alike training FLOPs, least first, where their tokens differ."""
    groups: list[list[FrontPoint]] = []
    for point in sorted(points, key=lambda point: point.flops):
        if groups and point.flops <= _ALIKE * groups[-1][0].flops:
            groups[-1].append(point)
        else:
            groups.append([point])
    return [group for group in groups if len({point.tokens for point in group}) > 1]


def describe_fronts(records: Mapping[str, Sequence[RunRecord]]) -> dict[str, Any]:
    """Returns points and fronts as JSON-ready values.

    Returns:
        `points`: `name`, `tokens`, `perplexities`, `costs` (way -> gigabytes, setup_gigabytes,
        minutes); `fronts`: `tokens` or `flops`, `way`, `quantity`, `names`, `near`, of budgets with
        two points or more.
    """
    points = front_points(records)
    tokens = [point.tokens for point in points]
    budgets: list[tuple[list[FrontPoint], int | None, float | None]] = [
        ([point for point in points if point.tokens == count], count, None)
        for count in sorted(set(tokens))
        if tokens.count(count) > 1
    ]
    budgets += [(group, None, group[-1].flops) for group in equal_flops(points)]
    return {
        "points": [
            {
                "name": point.name,
                "tokens": point.tokens,
                "flops": point.flops,
                "perplexities": list(point.perplexities.values()),
                "costs": {way: asdict(cost) for way, cost in point.costs.items()},
            }
            for point in points
        ],
        "fronts": [
            asdict(_front(group, count, flops, way, quantity))
            for group, count, flops in budgets
            for quantity in ("gigabytes", "minutes")
            for way in ways_to_price()
        ],
    }
