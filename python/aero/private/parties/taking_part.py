"""One party's computation, as its worker runs it."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from aero.network.files import read_description
from aero.private.compute.calls import AbstractArray, Call, Party
from aero.private.parties.events import Computed, Piece, Stage, Terms
from aero.private.parties.orders import Go, OnePartyJob, ReadRows, ReadTokens, Token
from aero.private.parties.terms import party_terms
from aero.private.parties.worker_pipe import WorkerPipe


def take_part(job: OnePartyJob, pipe: WorkerPipe) -> None:
    """Computes with the other parties what the supervisor says, and reports `parties.events`.

    After each pass the client is told what the next one reads, the others how much. Nothing ends
    the run.

    Args:
        job: of this party.
        pipe: to the supervisor.
    """
    party, settings, folder = Party[job.party.upper()], job.settings, job.folder
    description = read_description(folder)
    pipe.say(Terms(party_terms(description, settings)))
    # The events above come at once; these imports take seconds.
    from aero.network.files import read_network
    from aero.network.folding import with_blank_weights
    from aero.private.compute.inference import prepared
    from aero.private.compute.tcp_parties import TcpParties
    from aero.private.parties.both_parties_worker import reported_pass

    def say_piece(index: int, call: Call) -> None:
        pipe.say(Piece(index, call))

    knows_weights = party is Party.SERVER
    network = read_network(folder) if knows_weights else with_blank_weights(description)
    go = pipe.next_order(Go)
    settings = dataclasses.replace(settings, largest_product=go.request.largest_product)
    parties = TcpParties(
        party,
        {each: go.own if each is party else go.others.get(each.word, "") for each in Party},
        settings,
        on_stage=lambda name: pipe.say(Stage(name)),
    )
    first = functools.partial(say_piece, 0)
    computed = prepared(parties, network, first, knows_weights=knows_weights)
    for index, new in enumerate(_reads(job, go, pipe)):
        used = time.process_time()
        found = computed.read_on(new, functools.partial(say_piece, index))
        if party is Party.CLIENT:
            pipe.say(reported_pass(found, index))
        pipe.say(Computed(time.process_time() - used))
    parties.close()


def _reads(
    job: OnePartyJob, go: Go, pipe: WorkerPipe
) -> Iterator[NDArray[np.int32] | AbstractArray]:
    """What each pass reads, [B, T]; the client alone knows the tokens."""
    tokens: Sequence[Token] | None = job.tokens
    rows, sequences = go.request.prompt_length, go.request.sequences
    while tokens if tokens is not None else rows:
        if tokens is not None:
            yield np.asarray(tokens, np.int32).reshape(len(tokens), -1).T
            tokens = pipe.next_order(ReadTokens).tokens
        else:
            yield AbstractArray((sequences, rows), np.int32)
            rows = pipe.next_order(ReadRows).rows
