"""Committed results, as the generated parts of the manual read them."""

from __future__ import annotations

import functools
import json
import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@functools.cache
def newest(stem: str, suffix: str = ".json") -> Path:
    """The newest file of this name, whatever its hardware and month."""
    return max(RESULTS.glob(f"{stem}_[a-z]*_20*{suffix}"))


@functools.cache
def content(stem: str) -> Any:
    """Its content."""
    return json.loads(newest(stem).read_text(encoding="utf-8"))


def target(stem: str, name: str) -> Mapping[str, Any]:
    """A table, a figure or a study of ours in results of `python -m benchmarks.paper`."""
    (found,) = (each for each in content(stem)["targets"] if each["target"] == name)
    return dict(found)


@dataclass(frozen=True)
class Compared:
    """One comparison of a claim: how far the network that should be worse lies above the other.

    Attributes:
        verdict: what the declared test says.
        effect: in % of perplexity, with the ends of its simultaneous interval.
        means: the perplexities of the network that should be better, and of the other: geometric
            means over the seeds that both have, as the test compares logarithms seed by seed.
    """

    verdict: str
    effect: float
    low: float
    high: float
    means: tuple[float, float]


def compared(stem: str, name: str, claim: str, part: int = 0) -> Compared:
    """A comparison of the claim of a target that begins so, or "where: claim" does."""
    found = target(stem, name)
    (judged,) = (
        each
        for each in found["claims"]
        if f"{each['where']}: {each['claim']}".startswith(claim) or each["claim"].startswith(claim)
    )
    difference, sides = judged["differences"][part], judged["reasons"][part].split(": ")[0]
    left, right = (side.rpartition(" (")[0].split(" x ")[-1] for side in sides.split(" < "))
    by_seed = {
        row["name"]: dict(zip(of["seeds"], of["values"], strict=True))
        for row in found["rows"]
        if (of := row["statistics"]["perplexity"])
    }
    seeds = by_seed[left].keys() & by_seed[right].keys()
    means = [
        math.exp(statistics.fmean(math.log(by_seed[name][seed]) for seed in seeds))
        for name in (left, right)
    ]
    ends = [100 * math.expm1(difference[end]) for end in ("effect", "low", "high")]
    return Compared(difference["verdict"], *ends, (means[0], means[1]))
