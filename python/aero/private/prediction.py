"""What the simulator predicts for the pieces of a private run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.private.settings import STACK, PrivateSettings

__all__ = ["predicted_costs", "predicted_pieces", "total_cost"]

# Operations outside the layers by the part of the bill they belong to.
_PIECES = {
    "setup": "set-up",
    "embed": "embedding",
    "layernorm": "head",
    "lm head": "head",
    "argmax": "argmax",
}


def predicted_pieces(
    description: dict[str, Any], length: int, settings: PrivateSettings
) -> dict[str, tuple[float, float]]:
    """Bytes that client and server are to send, by the names of `Call`s.

    Args:
        description: content of `network.json`.
        length: T, tokens of the pass.
        settings: of both parties.

    Example:
        >>> from aero.architecture import ArchitectureSpec
        >>> spec = ArchitectureSpec.from_label("SM+ScFuFFN", model="tiny").to_dict()
        >>> sorted(predicted_pieces({"spec": spec}, 8, PrivateSettings()))
        ['argmax', 'embedding', 'head', 'layer 0', 'layer 1', 'set-up']
    """
    costs = predicted_costs(description, length, settings)
    return {piece: (cost.client_bytes, cost.server_bytes) for piece, cost in costs.items()}


def predicted_costs(
    description: dict[str, Any], length: int, settings: PrivateSettings
) -> dict[str, mpc.Cost]:
    """All that the simulator counts, by the names of `Call`s; arguments as of `predicted_pieces`.

    Flights add up, as pieces run one after the other.
    """
    spec = ArchitectureSpec.from_dict(description["spec"])
    report = mpc.simulate(spec, context_length=length, stack=STACK, **settings.stack_fields())
    found: dict[str, list[mpc.Cost]] = {}
    for operation in report.operations:
        in_layer = operation.layer is not None
        piece = f"layer {operation.layer}" if in_layer else _PIECES[operation.kind]
        found.setdefault(piece, []).append(operation.cost)
    return {piece: total_cost(costs) for piece, costs in found.items()}


def total_cost(costs: Iterable[mpc.Cost]) -> mpc.Cost:
    """Of operations that run one after the other.

    Example:
        >>> relu = mpc.operation_cost("relu", 10)
        >>> total_cost([relu, relu]).flights == 2 * relu.flights
        True
    """
    return mpc.Cost(*(sum(column) for column in zip(*(c.counts() for c in costs), strict=True)))
