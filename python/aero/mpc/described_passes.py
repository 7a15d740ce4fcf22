"""The price of a pass that reads new tokens after earlier ones, whose keys and values are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from aero import _core
from aero.mpc.cost import FieldValue, Operation
from aero.mpc.described_stacks import StackDescription, stack_description
from aero.mpc.simulation import plain_value


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
    network = _core.Network(operations, keys)
    found = _core.simulate_pass(network, priced, batch=sequences, queries=rows, keys=keys)
    operations_of_pass: tuple[Operation, ...] = found["operations"]
    return operations_of_pass
