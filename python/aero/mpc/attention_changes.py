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


def in_windows(
    description: Mapping[str, Any], length: int, window: int, *, own: bool = False
) -> dict[str, Any] | None:
    """The network whose queries see `window` keys or more, in blocks; None where nothing changes.

    A block of `window` queries meets the keys of its own and of the one before.

    Args:
        description: of the network.
        length: T, a multiple of the window.
        window: keys that every query sees at least.
        own: only layers whose own window is no larger, which compute the same then.
    """
    if length % window or 2 * window >= length:
        return None
    made, blocks = _copied(description), length // window
    found = False
    for operations in _layers(made):
        places = [place for place, one in enumerate(operations) if one["op"] == "scores"]
        for place in reversed(places):
            parts = _chain(operations, place)
            if parts is None or (own and not 0 < parts[1]["window"] <= window):
                continue
            _block(operations, parts, blocks, window, length)
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


def windows_of(description: Mapping[str, Any]) -> set[int]:
    """The windows of the layers; 0 of those that see all."""
    return {
        int(one["window"])
        for operations in _layers(description)
        for one in operations
        if one["op"] == "softmax"
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


def _chain(operations: Operations, place: int) -> list[dict[str, Any]] | None:
    """Scores, softmax and weighted sum that read each other and are causal."""
    scores = operations[place]
    after = operations[place + 1 : place + 3]
    if [one["op"] for one in after] != ["softmax", "weighted_sum"] or not after[0]["causal"]:
        return None
    reads = after[0]["inputs"] == [scores["output"]]
    return [scores, *after] if reads and after[1]["inputs"][0] == after[0]["output"] else None


def _block(
    operations: Operations, parts: list[dict[str, Any]], blocks: int, window: int, length: int
) -> None:
    scores, _, summing = parts
    width = scores["head_dim"]

    def moved(value: str, positions: int, output: str) -> dict[str, Any]:
        return {"op": "rearrange", "inputs": [value], "output": output, "positions": positions,
                "width": width}  # fmt: skip

    queries, keys = scores["inputs"]
    values = summing["inputs"][1]
    before = [
        moved(queries, window, "blocks of queries"),
        moved(keys, 2 * window, "blocks of keys"),
        moved(values, 2 * window, "blocks of values"),
    ]
    scores["inputs"] = ["blocks of queries", "blocks of keys"]
    summing["inputs"][1] = "blocks of values"
    for one in parts:
        for name in ("heads", "key_heads"):
            if name in one:
                one[name] *= blocks
    output = summing["output"]
    after = moved(output, length, output)
    place = operations.index(scores)
    operations[place : place + 3] = [*before, *parts, after]
