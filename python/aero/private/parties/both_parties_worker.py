"""The program of the private environment for `aero private run`: both parties in one process.

Takes one job on standard input, and after each pass the tokens that the next one reads, as
`parties.orders` has them; none end the run. Reports `parties.events`.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np

from aero.network.files import read_network
from aero.private.compute import inference
from aero.private.compute.calls import Call
from aero.private.compute.in_process import InProcessParties
from aero.private.compute.inference import prepared
from aero.private.parties.events import Done, Failed, Pass, Piece
from aero.private.parties.orders import BothPartiesJob, ReadTokens
from aero.private.parties.worker_pipe import WorkerPipe
from aero.private.party_errors import PartyError


def main() -> None:
    """Does the job; whatever goes wrong is the last event."""
    pipe = WorkerPipe()
    job = pipe.job(BothPartiesJob)
    pipe.listen()
    try:
        generate(job, pipe)
    except PartyError as error:
        pipe.say(Failed(str(error)))
    except Exception as error:
        pipe.say(Failed(f"{type(error).__name__}: {error}"))
    else:
        pipe.say(Done())


def generate(job: BothPartiesJob, pipe: WorkerPipe) -> None:
    """Computes passes one after the other, and says each piece and each pass."""
    network = read_network(job.folder)
    parties = InProcessParties(job.settings)
    try:
        computed = prepared(parties, network, functools.partial(_say_piece, pipe, 0))
        read = job.tokens
        for index in itertools.count():
            # Of several sequences each entry has a token of each.
            new = np.asarray(read, np.int32).reshape(len(read), -1).T
            found = computed.read_on(new, functools.partial(_say_piece, pipe, index))
            pipe.say(reported_pass(found, index))
            read = pipe.next_order(ReadTokens).tokens
            if not read:
                break
    finally:
        parties.close()


def _say_piece(pipe: WorkerPipe, index: int, call: Call) -> None:
    pipe.say(Piece(index, call))


def reported_pass(found: inference.Pass, index: int) -> Pass:
    """The result of a pass as an event, for the client."""
    likeliest, logits = None, None
    if found.likeliest is not None:  # of one sequence
        both = (each[0] for each in found.likeliest)
        likeliest = tuple((int(t), float(x)) for t, x in zip(*both, strict=True))
    if found.logits is not None:
        one = len(found.logits) == 1
        logits = np.ascontiguousarray(found.logits[0] if one else found.logits, dtype="<f4")
    return Pass(
        index,
        _next_token(found),
        likeliest,
        None if logits is None else logits.shape,
        None if logits is None else logits.tobytes(),
    )


def _next_token(found: inference.Pass) -> int | tuple[int, ...]:
    """The parties' token, else the client's own look at the logits; of several sequences each."""
    tokens = found.tokens
    if tokens is None:
        assert found.logits is not None
        tokens = found.logits[:, -1].argmax(-1)
    first, *others = (int(token) for token in tokens)
    return (first, *others) if others else first


if __name__ == "__main__":
    main()
