"""One party's computation, as its worker runs it."""

from __future__ import annotations

import functools
import itertools
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
    """Computes with the other parties what the supervisor says, and reports `parties.events`.

    After each pass a line says what the next one reads: `{"read": [17]}` at the client, and how
    much, `{"read": 1}`, at the others. Nothing ends the run.

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

    knows_weights, knows_prompt = party is Party.SERVER, party is Party.CLIENT
    network = read_network(folder) if knows_weights else with_blank_weights(description)
    told = pipe.next_message()
    length, _ = checked_request(told["request"], description)
    go = told["go"]
    parties = TcpParties(
        party,
        {each: go["own"] if each is party else go.get(each.word, "") for each in Party},
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
    read = job["tokens"] if knows_prompt else length
    for index in itertools.count():
        used = time.process_time()
        new = np.asarray([read], np.int32) if knows_prompt else AbstractArray((1, read), np.int32)
        found = computed.read_on(new, functools.partial(say_piece, index))
        if knows_prompt:
            pipe.say(reported_pass(found, index))
        pipe.say(Computed(time.process_time() - used))
        read = pipe.next_message()["read"]
        if not read:
            break
    parties.close()
