"""Attention with fewer key heads, or within windows: changes of described networks."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

Operations = list[dict[str, Any]]


def fewer_key_heads(description: Mapping[str, Any], to: int) -> dict[str, Any] | None:
    """The network with `to` key heads in every layer; None where it has other attention.

    Keys and values become fewer channels of the product that makes them.
    """
    made = _copied(description)
    found = False
    for operations in _layers(made):
        for place, one in enumerate(operations):
            if one["op"] != "scores" or one["key_heads"] == to:
                continue
            summing = _next(operations, place, "weighted_sum")
            if summing is None or one["key_heads"] % to:
                return None
            for end, value in (
                (place, one["inputs"][1]),
                (summing, operations[summing]["inputs"][1]),
            ):
                if not _cut(operations, end, value, to):
                    return None
            one["key_heads"] = operations[summing]["key_heads"] = to
            found = True
    return made if found else None


def with_window(description: Mapping[str, Any], window: int) -> dict[str, Any] | None:
    """The network whose causal layers see the last `window` keys; None where nothing changes.

    Layers that see fewer already stay as they are.
    """
    made = _copied(description)
    found = False
    for operations in _layers(made):
        for one in operations:
            if one["op"] == "softmax" and one["causal"] and not 0 < one["window"] <= window:
                one["window"] = window
                found = True
    return made if found else None


def key_heads_of(description: Mapping[str, Any]) -> set[int]:
    """How many key heads the layers have."""
    return {
        int(one["key_heads"])
        for operations in _layers(description)
        for one in operations
        if one["op"] == "scores"
    }


def _copied(description: Mapping[str, Any]) -> dict[str, Any]:
    return {**description, "operations": copy.deepcopy(description["operations"])}


def _layers(description: Mapping[str, Any]) -> Iterator[Operations]:
    yield from (one["operations"] for one in description["operations"] if "repeat" in one)


def _next(operations: Operations, place: int, op: str) -> int | None:
    return next((n for n in range(place + 1, len(operations)) if operations[n]["op"] == op), None)


def _made(operations: Operations, place: int, value: str) -> int | None:
    """The place where a value is written that the operation at `place` reads."""
    return next((n for n in range(place - 1, -1, -1) if operations[n]["output"] == value), None)


def _cut(operations: Operations, place: int, value: str, to: int) -> bool:
    """Leaves `to` heads of keys or values; False where they are not split from a product."""
    made = _made(operations, place, value)
    while made is not None and operations[made]["op"] in ("rotate", "norm"):
        if operations[made]["op"] == "rotate":
            operations[made]["heads"] = to
        made = _made(operations, made, operations[made]["inputs"][0])
    if made is None or operations[made]["op"] != "split_heads":
        return False
    split = operations[made]
    product = _made(operations, made, split["inputs"][0])
    if product is None or operations[product]["op"] != "linear":
        return False
    removed = (split["heads"] - to) * split["head_dim"]
    split["heads"] = to
    operations[product]["out"] -= removed
    for other in operations:
        if other["op"] == "split_heads" and other["inputs"] == split["inputs"]:
            other["start"] -= removed * (other["start"] > split["start"])
    return True
