"""One party's computation, as its worker runs it."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

from aero.network.files import read_description
from aero.private.compute.calls import AbstractArray, Call, Party, Traffic
from aero.private.parties.events import Computed, Stage, Terms
from aero.private.parties.terms import checked_request, party_terms
from aero.private.parties.worker_pipe import WorkerPipe
from aero.private.settings import PrivateSettings


def take_part(job: dict[str, Any], pipe: WorkerPipe) -> None:
    """Computes with the other party what the supervisor says, and reports `parties.events`.

    Args:
        job: as of `one_party_worker`.
        pipe: to the supervisor.
    """
    party = Party[job["party"].upper()]
    settings = PrivateSettings.from_dict(job["settings"])
    folder = Path(job["folder"])
    description = read_description(folder)
    pipe.say(Terms(party_terms(description, settings)))
    # The events above come at once; these imports take seconds.
    from aero.network.files import read_network
    from aero.network.folding import with_blank_weights
    from aero.private.compute.inference import PrivateNetwork, set_up
    from aero.private.compute.tcp_parties import TcpParties
    from aero.private.parties.both_parties_worker import reported_call, reported_pass

    def say_piece(index: int, call: Call) -> None:
        pipe.say(reported_call(call, index))

    knows_weights = party is Party.SERVER
    network = read_network(folder) if knows_weights else with_blank_weights(description)
    told = pipe.next_message()
    length, new_tokens = checked_request(told["request"], description)
    addresses = told["go"]["own"], told["go"]["peer"]
    parties = TcpParties(
        party,
        addresses if party is Party.CLIENT else addresses[::-1],
        settings,
        on_stage=lambda name: pipe.say(Stage(name)),
    )
    set_up(parties)
    say_piece(0, parties.calls[-1])
    before = len(parties.calls)
    computed = PrivateNetwork(parties, network, knows_weights=knows_weights)
    weights = parties.calls[before:]
    sent = sum((call.traffic for call in weights), Traffic())
    say_piece(0, Call("weights", sum(call.seconds for call in weights), sent))
    tokens = job.get("tokens")
    for index in range(new_tokens):
        used = time.process_time()
        found = computed.run(
            AbstractArray((length + index,), np.int32)
            if tokens is None
            else np.asarray(tokens, np.int32),
            functools.partial(say_piece, index),
        )
        if tokens is not None:
            reported = reported_pass(found, index)
            pipe.say(reported)
            tokens.append(reported.token)
        pipe.say(Computed(time.process_time() - used))
    parties.close()
