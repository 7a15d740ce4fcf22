"""What the private environment runs for one party of two: SPU over TCP.

Takes a line of JSON, `{"party": "client", "folder": ..., "settings": {...}, "tokens": [...],
"new_tokens": N}`, of the server without the last two, and reports as `aero.private.supervision`
asks; "piece" and "pass" are those of `aero.private.job`.
"""

from __future__ import annotations

import functools
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from aero.export.description_file import read_description
from aero.export.numpy_forward import Network, read_network
from aero.private.inference import PrivateNetwork, set_up
from aero.private.parties import AbstractArray, Call, Party, Traffic
from aero.private.party_errors import PartyError
from aero.private.party_terms import checked_request, party_terms
from aero.private.preparation import with_blank_weights
from aero.private.settings import PrivateSettings
from aero.private.tcp_parties import TcpParties
from aero.private.worker import reported_call, reported_pass
from aero.private.worker_pipe import WorkerPipe

Part = dict[str, Any]


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
    pipe.say("ready", terms=party_terms(network.description, settings), request=request)
    go = pipe.next_message()
    length, new_tokens = checked_request(go["request"], network.description)
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
        used = time.process_time()
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
        pipe.say("computed", cpu_seconds=time.process_time() - used)
    parties.close()


def _say_piece(pipe: WorkerPipe, index: int, call: Call) -> None:
    pipe.say("piece", **reported_call(call, index))


def _network(party: Party, folder: Path) -> Network:
    """The server's with its weights; of the client's folder only the description is read."""
    if party is Party.SERVER:
        return read_network(folder)
    return with_blank_weights(read_description(folder))


if __name__ == "__main__":
    main()
