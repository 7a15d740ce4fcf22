"""What the simulator predicts for the pieces of a private run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.mpc.cost import Cost
from aero.private.settings import STACK, PrivateSettings

__all__ = ["network_fields", "predicted_costs", "predicted_pieces", "set_up_cost", "total_cost"]

# Of `aero.private.inference.set_up`, which this environment cannot import.
_ELEMENTS_PER_THREAD = 2048
# Slots of ciphertexts that one refill of SPU's cached triples takes: two for each of 4,096.
_CACHED_TRIPLES_SLOTS = 8192

# Operations outside the layers by the part of the cost report they belong to.
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
        >>> from aero.private import PrivateSettings
        >>> from aero.private.prediction import predicted_pieces
        >>> from aero.architecture import ArchitectureSpec
        >>> spec = ArchitectureSpec.from_label("SM+ScFuFFN", model="tiny").to_dict()
        >>> sorted(predicted_pieces({"spec": spec}, 8, PrivateSettings()))
        ['argmax', 'embedding', 'head', 'layer 0', 'layer 1', 'set-up']
    """
    costs = predicted_costs(description, length, settings)
    return {piece: (cost.client_bytes, cost.server_bytes) for piece, cost in costs.items()}


def predicted_costs(
    description: dict[str, Any], length: int, settings: PrivateSettings
) -> dict[str, Cost]:
    """All that the simulator counts, by the names of `Call`s; arguments as of `predicted_pieces`.

    Rounds add up, as pieces run one after the other.
    """
    spec = ArchitectureSpec.from_dict(description["spec"])
    fields = settings.stack_fields() | network_fields(description)
    report = mpc.simulate(spec, context_length=length, stack=STACK, **fields)
    found: dict[str, list[Cost]] = {}
    for operation in report.operations:
        in_layer = operation.layer is not None
        piece = f"layer {operation.layer}" if in_layer else _PIECES[operation.kind]
        found.setdefault(piece, []).append(operation.cost)
    costs = {piece: total_cost(operations) for piece, operations in found.items()}
    return costs | {"set-up": set_up_cost(settings)}


def set_up_cost(settings: PrivateSettings) -> Cost:
    """What `aero.private.inference.set_up` is to cost: keys, and the operations that make them.

    Those are a small matrix product, products that fill SPU's first cache of triples, and a
    truncation of so many elements that every thread has some.

    Example:
        >>> from aero.private import PrivateSettings
        >>> from aero.private.prediction import set_up_cost
        >>> round(set_up_cost(PrivateSettings()).comm_bytes / 1e6, 2)
        22.73
    """
    operations: list[tuple[str, tuple[int, ...]]] = [
        ("setup", ()),
        ("matmul", (2, 2, 2)),
        ("private_product", (_CACHED_TRIPLES_SLOTS,)),
        ("truncation", (_ELEMENTS_PER_THREAD * settings.threads,)),
    ]
    fields = settings.stack_fields()
    return total_cost(
        mpc.operation_cost(name, *sizes, stack=STACK, **fields) for name, sizes in operations
    )


def network_fields(description: dict[str, Any]) -> dict[str, Any]:
    """Fields of a stack that a network's description tells, besides the settings.

    Example:
        >>> from aero.private.prediction import network_fields
        >>> network_fields({"layers": [{"feed_forward": {"activation": "gelu_erf"}}]})
        {'gelu': 'erf'}
    """
    layers = [layer["feed_forward"] for layer in description.get("layers", [])]
    exact = any(mlp is not None and mlp["activation"] == "gelu_erf" for mlp in layers)
    return {"gelu": "erf"} if exact else {}


def total_cost(costs: Iterable[Cost]) -> Cost:
    """Of operations that run one after the other.

    Example:
        >>> from aero import mpc
        >>> from aero.private.prediction import total_cost
        >>> relu = mpc.operation_cost("relu", 10)
        >>> total_cost([relu, relu]).rounds == 2 * relu.rounds
        True
    """
    return Cost(*(sum(column) for column in zip(*(c.counts() for c in costs), strict=True)))
