"""Quality against private cost: one point per network and budget, and those that nothing beats.

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
from aero.pareto import pareto_front
from aero.report.runs import RunRecord
from aero.report.seeds import Pool, Series, family_of
from aero.reproduction.cost_rows import PrivateCost, private_costs, ways_to_price


@dataclass(frozen=True)
class FrontPoint:
    """A trained network.

    Attributes:
        name: its row.
        spec: the network.
        tokens: seen in training.
        perplexities: seed -> perplexity, all finite.
        costs: as `private_costs` gives them.
    """

    name: str
    spec: ArchitectureSpec
    tokens: int
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
        tokens: the budget.
        way: how it is priced.
        quantity: `gigabytes` or `minutes`.
        names: on the front, cheapest first.
        near: next to it and not decidedly worse, cheapest first; of two seeds or more.
    """

    tokens: int
    way: str
    quantity: str
    names: tuple[str, ...]
    near: tuple[str, ...]


def front_points(records: Mapping[str, Sequence[RunRecord]]) -> list[FrontPoint]:
    """Returns a point per network and budget, cheapest budget first.

    Args:
        records: row -> its runs that ended; rows with a diverged run are left out.
    """
    best: dict[tuple[str, int], FrontPoint] = {}
    for name, runs in records.items():
        if not runs or any(run.evaluation is None for run in runs):
            continue
        perplexities = {
            int(run.info["seed"]): float((run.evaluation or {})["perplexity"]) for run in runs
        }
        spec, tokens = runs[0].spec, runs[0].tokens
        point = FrontPoint(name, spec, tokens, perplexities, private_costs(spec))
        key = (json.dumps(spec.to_dict(), sort_keys=True), tokens)
        if key not in best or point.mean < best[key].mean:
            best[key] = point
    return sorted(best.values(), key=lambda point: point.tokens)


def front_of(
    points: Sequence[FrontPoint], tokens: int, way: str, quantity: str = "gigabytes"
) -> Front:
    """Returns the front of one budget priced in one way.

    Args:
        points: of any budgets.
        tokens: the budget.
        way: one of `ways_to_price()`.
        quantity: `gigabytes` or `minutes`.
    """
    chosen = sorted(
        (point for point in points if point.tokens == tokens),
        key=lambda point: point.cost(way, quantity),
    )
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
    return Front(tokens, way, quantity, names, tuple(near))


def describe_fronts(records: Mapping[str, Sequence[RunRecord]]) -> dict[str, Any]:
    """Returns points and fronts as JSON-ready values.

    Args:
        records: row -> its runs that ended.

    Returns:
        `points`: `name`, `tokens`, `perplexities`, `costs` (way -> gigabytes, setup_gigabytes,
        minutes); `fronts`: `tokens`, `way`, `quantity`, `names`, `near`, of budgets with two
        points or more.
    """
    points = front_points(records)
    budgets = [point.tokens for point in points]
    return {
        "points": [
            {
                "name": point.name,
                "tokens": point.tokens,
                "perplexities": list(point.perplexities.values()),
                "costs": {way: asdict(cost) for way, cost in point.costs.items()},
            }
            for point in points
        ],
        "fronts": [
            asdict(front_of(points, tokens, way, quantity))
            for tokens in sorted(set(budgets))
            if budgets.count(tokens) > 1
            for quantity in ("gigabytes", "minutes")
            for way in ways_to_price()
        ],
    }
