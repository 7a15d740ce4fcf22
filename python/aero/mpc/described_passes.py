"""The price of a pass that reads new tokens after earlier ones, whose keys and values are kept."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from aero import _core
from aero.mpc.cost import FieldValue, Operation
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.simulation import operation_cost, plain_value


def described_pass(
    operations: list[dict[str, Any]],
    *,
    rows: int,
    keys: int,
    sequences: int = 1,
    stack: str | Path | StackDescription = "spu-2024",
    **overrides: FieldValue,
) -> tuple[Operation, ...]:
    """The priced operations of one private pass of a described network.

    Args:
        operations: of a description, see `aero.network`; each token sees earlier ones alone.
        rows: tokens of each sequence that it reads.
        keys: tokens of each sequence so far, these included.
        sequences: side by side, of equal lengths.
        stack: As in `simulate`.
        **overrides: Fields of the stack.

    Raises:
        ValueError: Names the field, or the operation that has no price.
    """
    fields = [(name, plain_value(name, value)) for name, value in overrides.items()]
    priced = stack_description(stack).with_fields(fields)
    whole = rows == keys

    def passed(batch: int) -> list[Operation]:
        # Of a pass over one token the simulator takes the length before it.
        network = _core.Network(operations, keys if whole else keys - 1)
        sizes: dict[str, Any] = {"batch": batch, "token": 0 if whole else 1}
        found = _core.simulate_token(network, priced, **sizes, sampling="argmax")["operations"]
        named = ("reveal",) if priced.fields["argmax"] else ("reveal", "argmax")
        return [one for one in found if one.kind not in named]

    if whole or rows == 1:
        return tuple(passed(sequences))
    # All but the products of heads, and what the last token alone has, are as of so many sequences
    # of one token each.
    found, single = passed(sequences * rows), passed(sequences)
    for index, one in enumerate(found):
        if one.kind in ("QK", "PV"):
            heads, each, inner, columns = map(int, re.findall(r"\d+", one.shape))
            sizes = heads // rows, each * rows, inner, columns
            cost = operation_cost("head_product", *sizes, stack=stack, **overrides)
            shape = "{} x {}x{}x{}".format(*sizes)
            found[index] = _with(one, shape, cost)
        elif one.kind == "argmax" or (priced.fields["last_token_head"] and _of_head(found, index)):
            found[index] = single[index]
    return tuple(found)


def _of_head(operations: list[Operation], index: int) -> bool:
    """Returns whether an operation comes after the last layer."""
    layers = [place for place, one in enumerate(operations) if one.layer is not None]
    return bool(layers) and index > layers[-1]


def _with(operation: Operation, shape: str, cost: Any) -> Operation:
    return Operation(
        name=operation.name,
        layer=operation.layer,
        kind=operation.kind,
        shape=shape,
        inputs=operation.inputs,
        cost=cost,
    )
