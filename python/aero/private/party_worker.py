"""What the private environment runs for one party of two: SPU over TCP.

Takes a line of JSON, `{"party": "client", "folder": ..., "settings": {...}, "tokens": [...],
"new_tokens": N}`, of the server without the last two, and reports as `aero.private.supervision`
asks; "piece" and "pass" are those of `aero.private.job`.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import json
import sys
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from aero import __version__
from aero.export.numpy_forward import Network, read_network
from aero.private.handshake import flat_terms
from aero.private.inference import PrivateNetwork, set_up
from aero.private.parties import AbstractArray, Call, Party, Traffic
from aero.private.party_errors import PartyError
from aero.private.preparation import with_blank_weights
from aero.private.settings import PrivateSettings
from aero.private.tcp_parties import TcpParties
from aero.private.worker import reported_call, reported_pass
from aero.private.worker_pipe import WorkerPipe

Part = dict[str, Any]

# Of `network.json`: words, and the weights' hash, which the client need not know.
_NOT_COMPARED = {"conventions", "weights"}


def main() -> None:
    """Does the job; whatever goes wrong is the last event, without what it was about."""
    pipe = WorkerPipe()
    job = pipe.next_message()
    try:
        _take_part(Party[job["party"].upper()], job, pipe)
    except PartyError as error:
        pipe.say("failed", reason=str(error))
    except Exception as error:
        # The text of other errors may quote what was computed with; where it happened does not.
        traceback.print_tb(error.__traceback__, file=sys.stderr)
        print(type(error).__name__, file=sys.stderr, flush=True)
        pipe.say("failed", reason=f"{type(error).__name__} in the worker")
    else:
        pipe.say("done")


def _take_part(party: Party, job: Part, pipe: WorkerPipe) -> None:
    settings = PrivateSettings.from_dict(job["settings"])
    network = _network(party, Path(job["folder"]))
    request = None
    if party is Party.CLIENT:
        request = {"prompt_length": len(job["tokens"]), "new_tokens": job["new_tokens"]}
    pipe.say("ready", terms=_terms(network.description, settings), request=request)
    go = pipe.next_message()
    length, new_tokens = _checked_request(go["request"], network.description)
    client_link, server_link = go["go"]
    parties = TcpParties(
        party,
        (client_link, server_link),
        settings,
        on_stage=lambda name: pipe.say("stage", stage=name),
    )
    set_up(parties)
    pipe.say("piece", **reported_call(parties.calls[-1], 0))
    before = len(parties.calls)
    computed = PrivateNetwork(parties, network, knows_weights=party is Party.SERVER)
    weights = parties.calls[before:]
    sent = sum((call.traffic for call in weights), Traffic())
    pipe.say("piece", **reported_call(Call("weights", sum(c.seconds for c in weights), sent), 0))
    tokens = job.get("tokens")
    for index in range(new_tokens):
        found = computed.run(
            AbstractArray((length + index,), np.int32)
            if tokens is None
            else np.asarray(tokens, np.int32),
            functools.partial(_say_piece, pipe, index),
        )
        if tokens is not None:
            reported = reported_pass(found, index)
            pipe.say("pass", **reported)
            tokens.append(reported["token"])
    parties.close()


def _say_piece(pipe: WorkerPipe, index: int, call: Call) -> None:
    pipe.say("piece", **reported_call(call, index))


def _network(party: Party, folder: Path) -> Network:
    """The server's with its weights; of the client's folder only the description is read."""
    if party is Party.SERVER:
        return read_network(folder)
    return with_blank_weights(json.loads((folder / "network.json").read_text(encoding="utf-8")))


def _terms(description: Part, settings: PrivateSettings) -> dict[str, Any]:
    """What must be equal at both parties before they start, the general first."""
    public = {key: description[key] for key in description if key not in _NOT_COMPARED}
    text = json.dumps(public, sort_keys=True)
    layers = len(description["layers"])
    stages = ["embedding", f"layer 0 to {layers - 1}", "head"] + ["argmax"] * settings.argmax
    return flat_terms(
        aero=__version__,
        **{name: importlib.metadata.version(name) for name in ("spu", "jax", "numpy")},
        settings={k: v for k, v in settings.to_dict().items() if k != "timeout_seconds"},
        network={
            "label": description["label"],
            "spec": description["spec"],
            "stages": ", ".join(stages),
            "description": hashlib.sha256(text.encode()).hexdigest(),
        },
        weights=description.get("weights", {}).get("sha256"),
    )


def _checked_request(request: Any, description: Part) -> tuple[int, int]:
    """Prompt length and number of new tokens, which the client alone knows before.

    Raises:
        PartyError: they do not fit in the context.
    """
    context = description["spec"]["context_length"]
    asked: list[int] = []
    for name in ("prompt_length", "new_tokens"):
        value = request.get(name) if isinstance(request, dict) else None
        if not isinstance(value, int) or not 1 <= value <= context:
            raise PartyError(f"{name} must be an integer from 1 to {context}, got {value!r}")
        asked.append(value)
    length, new_tokens = asked
    if length + new_tokens - 1 > context:
        raise PartyError(
            f"prompt_length + new_tokens - 1 must be at most the context of {context}, got "
            f"{length} + {new_tokens} - 1"
        )
    return length, new_tokens


if __name__ == "__main__":
    main()
