"""Networks that differ in one thing, compared over seeds: a difference, its interval, a verdict.

The test of `aero.report.seeds` judges all comparisons of a report together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aero.architecture import ArchitectureSpec, part_names
from aero.internals.records import changed
from aero.report.report_file import ComparisonEntry, NetworkEntry, Quantity
from aero.report.seeds import Difference, Pool, Series, Verdict, family_of

# Within so much the two are level: 2 % of perplexity, 5 points of heads.
_MARGINS: Mapping[Quantity, float] = {"perplexity": math.log(1.02), "overloaded heads": 0.05}
# `aero.report.seeds` judges "the first is lower".
_VERDICTS: Mapping[Verdict, str] = {"holds": "lower", "does not hold": "higher"}


def compare_networks(networks: Sequence[NetworkEntry]) -> list[ComparisonEntry]:
    """Returns every comparison of a report."""
    pairs = list(_pairs(networks))
    pools = {
        quantity: Pool(
            [_series(quantity, entry) for _, *pair in pairs for entry in pair],
            comparisons=len(pairs),
        )
        for quantity in _MARGINS
    }
    compared = []
    for quantity, entry, against in pairs:
        series = _series(quantity, entry), _series(quantity, against)
        found = pools[quantity].judge(*series, margin=_MARGINS[quantity])
        if found.verdict != "not tested" or quantity == "perplexity":
            compared.append(_told(quantity, entry, against, found))
    return compared


def baseline_of(networks: Sequence[NetworkEntry]) -> NetworkEntry | None:
    """Returns the GPT-2-style network with LayerNorm and GELU, the first of several."""
    return next(
        (
            entry
            for entry in networks
            if entry.spec["norm"] == "layer" and entry.spec["ffn"] == "gelu"
        ),
        None,
    )


def _told(
    quantity: Quantity, entry: NetworkEntry, against: NetworkEntry, found: Difference
) -> ComparisonEntry:
    """The first against the second: a fraction of perplexity, or of heads."""
    # The evidence is of "second - first", perplexities' as logarithms.
    ends = [-value for value in (found.effect, found.high, found.low)]
    if quantity == "perplexity":
        ends = [math.expm1(end) if math.isfinite(end) else end for end in ends]
    difference, low, high = (end if math.isfinite(end) else None for end in ends)
    return ComparisonEntry(
        network=entry.name,
        against=against.name,
        quantity=quantity,
        difference=difference,
        low=low,
        high=high,
        seeds=found.seeds,
        verdict=_VERDICTS.get(found.verdict, found.verdict),
    )


def _pairs(
    networks: Sequence[NetworkEntry],
) -> Iterator[tuple[Quantity, NetworkEntry, NetworkEntry]]:
    """The pairs: with or without penalty, foldable norm or numbered part, another way or none."""
    for entry in networks:
        spec = entry.spec
        if spec["entropy_regularized"]:
            plain = _twin(networks, entry, entropy_regularized=False, temperature="none")
            if plain is not None:
                yield "perplexity", entry, plain
                yield "overloaded heads", entry, plain
        others = [
            _twin(networks, entry, norm="none", final_norm="none")
            if str(spec["norm"]).startswith("foldable")
            else None,
            *(_without(networks, entry, name) for name in part_names()),
            _twin(networks, changed(entry, way="")) if entry.way else None,
        ]
        for other in filter(None, others):
            yield "perplexity", entry, other


def _without(
    networks: Sequence[NetworkEntry], entry: NetworkEntry, part: str
) -> NetworkEntry | None:
    """The same network without a part; None where it has none."""
    if entry.spec[part] == "none":
        return None
    absent = ArchitectureSpec.from_label("SM").to_dict().items()
    fields = {name: value for name, value in absent if name.startswith(part)}
    return _twin(networks, entry, **fields)


def _twin(
    networks: Sequence[NetworkEntry], entry: NetworkEntry, **changes: Any
) -> NetworkEntry | None:
    """The network that differs from `entry` in nothing but these fields of its spec."""
    wanted = {**entry.spec, **changes}
    same_way = (other for other in networks if other.way == entry.way)
    return next((other for other in same_way if other.spec == wanted), None)


def _series(quantity: Quantity, entry: NetworkEntry) -> Series:
    spec = entry.spec
    values = _logarithms(entry) if quantity == "perplexity" else _overload(entry)
    return Series(entry.name, values, family_of(str(spec["norm"]), bool(spec["shaped_attention"])))


def _logarithms(entry: NetworkEntry) -> dict[int, float]:
    """The logarithm of the perplexity of every run that ended; infinite where it diverged."""
    values = {}
    for run in entry.runs:
        if run.status == "diverged":
            values[run.seed] = math.inf
        elif run.status == "finished" and run.perplexity is not None:
            values[run.seed] = math.log(run.perplexity)
    return values


def _overload(entry: NetworkEntry) -> dict[int, float]:
    # Against the largest entropy each network reaches, as the paper has it, a network whose heads
    # all sit low would count as overloaded too; log T is the same for both.
    shares = entry.entropy.overloaded_share if entry.entropy else {}
    return {int(seed): share for seed, share in shares.items()}
