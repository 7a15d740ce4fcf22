"""What two parties compare before a run, and what a client may ask for."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from typing import Any

from aero import __version__
from aero.private.parties.handshake import flat_terms
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.reading import shown

__all__ = ["checked_request", "party_terms"]

Part = dict[str, Any]

# Of `network.json`: words, and the weights' hash, which the client need not know.
_NOT_COMPARED = {"conventions", "weights"}
# What each party may choose for itself.
_OWN_SETTINGS = {"timeout_seconds"}


def party_terms(description: Part, settings: PrivateSettings) -> dict[str, Any]:
    """What must be equal at both parties before they start, the general first.

    Args:
        description: content of `network.json`; the client's may lack the hash of the weights.
        settings: of this party.

    Returns:
        Versions, settings, the network in words and as a hash, the stages, the weights' hash.

    Raises:
        PartyError: outside the private environment.
    """
    public = {key: description[key] for key in description if key not in _NOT_COMPARED}
    text = json.dumps(public, sort_keys=True)
    layers = len(description["layers"])
    stages = ["embedding", f"layer 0 to {layers - 1}", "head"]
    if settings.argmax or settings.reveal == "top-k":
        stages.append("top-k" if settings.reveal == "top-k" else "argmax")
    try:
        versions = {name: importlib.metadata.version(name) for name in ("spu", "jax", "numpy")}
    except importlib.metadata.PackageNotFoundError as error:
        raise PartyError(f"the private environment has no {error.name}") from error
    return flat_terms(
        aero=__version__,
        **versions,
        settings={k: v for k, v in settings.to_dict().items() if k not in _OWN_SETTINGS},
        network={
            "label": description["label"],
            "spec": description["spec"],
            "stages": ", ".join(stages),
            "description": hashlib.sha256(text.encode()).hexdigest(),
        },
        weights=description.get("weights", {}).get("sha256"),
    )


def checked_request(request: Any, description: Part) -> tuple[int, int]:
    """Prompt length and number of new tokens, which the client alone knows before.

    Args:
        request: what the client said, not to be trusted.
        description: content of `network.json`.

    Raises:
        PartyError: they do not fit in the context.
    """
    context = description["spec"]["context_length"]
    asked: list[int] = []
    for name in ("prompt_length", "new_tokens"):
        value = request.get(name) if isinstance(request, dict) else None
        if type(value) is not int or not 1 <= value <= context:
            raise PartyError(f"{name} must be an integer from 1 to {context}, got {shown(value)}")
        asked.append(value)
    length, new_tokens = asked
    if length + new_tokens - 1 > context:
        raise PartyError(
            f"prompt_length + new_tokens - 1 must be at most the context of {context}, got "
            f"{length} + {new_tokens} - 1"
        )
    return length, new_tokens
