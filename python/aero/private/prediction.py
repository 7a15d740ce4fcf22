"""What the simulator predicts for the pieces of a private run."""

from __future__ import annotations

from typing import Any

from aero import mpc
from aero.architecture import ArchitectureSpec
from aero.private.settings import STACK, PrivateSettings

__all__ = ["predicted_pieces"]

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
    spec = ArchitectureSpec.from_dict(description["spec"])
    report = mpc.simulate(spec, context_length=length, stack=STACK, **settings.stack_fields())
    found: dict[str, tuple[float, float]] = {}
    for operation in report.operations:
        in_layer = operation.layer is not None
        piece = f"layer {operation.layer}" if in_layer else _PIECES[operation.kind]
        client, server = found.get(piece, (0.0, 0.0))
        cost = operation.cost
        found[piece] = (client + cost.client_bytes, server + cost.server_bytes)
    return found
