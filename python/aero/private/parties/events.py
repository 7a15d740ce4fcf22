"""What workers and parties report, a line of JSON each: `{"event": "place", "place": 2}`."""

from __future__ import annotations

from typing import TypeAlias

from aero.internals.errors import extra
from aero.private.compute.calls import Call

with extra("private"):
    import msgspec


class _Event(msgspec.Struct, tag_field="event", tag=str.lower, omit_defaults=True):
    """The name of its class, in small letters, is the value of "event"."""


class Terms(_Event):
    """The worker is ready; these values must be equal at both parties."""

    terms: dict[str, object]


class Stage(_Event):
    """The computation has come to this stage."""

    stage: str


class Piece(_Event):
    """A part of a pass ran.

    Attributes:
        index: of the pass, from 0.
        call: of the part; "set-up" and "weights" come before the first pass.
    """

    index: int
    call: Call


class Pass(_Event):
    """A forward pass ended, at the client.

    Attributes:
        index: from 0.
        token: the next one; of several sequences one of each.
        likeliest: with `reveal="top-k"`, tokens and their logits, best first.
        shape: of the logits, where they are revealed; of several sequences with their number.
        logits: float32, little-endian.
    """

    index: int
    token: int | tuple[int, ...]
    likeliest: tuple[tuple[int, float], ...] | None = None
    shape: tuple[int, ...] | None = None
    logits: bytes | None = None


class Computed(_Event):
    """A pass ended, at either party, after so much of its processors' time."""

    cpu_seconds: float


class Done(_Event):
    """The last event of a run that went well."""


class Failed(_Event):
    """The last event of a run that did not."""

    reason: str


class Unpadded(_Event):
    """The traffic of this run could not be padded."""

    reason: str


class Sliced(_Event):
    """Memory allows products of at most so many weights in one piece, fewer than were given."""

    largest_product: int


class Place(_Event):
    """The client's place in the server's queue."""

    place: int


class Listening(_Event):
    """The server waits for clients at HOST:PORT."""

    address: str


class Client(_Event):
    """The server computes with a client.

    Attributes:
        who: its certificate's fingerprint, or its host without keys.
        address: HOST:PORT of its end.
        prompt_length: in tokens.
        new_tokens: that it asks for at most, for each prompt.
        sequences: its prompts, side by side.
    """

    who: str
    address: str
    prompt_length: int
    new_tokens: int
    sequences: int = 1


class Served(_Event):
    """The server has computed all that a client wanted; fields as of `Client`."""

    who: str
    address: str


class Lost(_Event):
    """The run of a client failed; without one, no worker started for the next."""

    reason: str
    who: str | None = None
    address: str | None = None


class Refused(_Event):
    """Somebody was turned away.

    Attributes:
        reason: of the last time.
        count: times since the last such event of the same address.
        address: the host, or "other addresses".
        who: the fingerprint, where it was known.
    """

    reason: str
    count: int
    address: str
    who: str | None = None


Event: TypeAlias = (
    Terms
    | Stage
    | Piece
    | Pass
    | Computed
    | Done
    | Failed
    | Unpadded
    | Sliced
    | Place
    | Listening
    | Client
    | Served
    | Lost
    | Refused
)

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encoded(event: Event) -> bytes:
    """An event as a line of JSON."""
    return msgspec.json.encode(event) + b"\n"


def decoded(line: bytes) -> Event:
    """The inverse of `encoded`.

    Raises:
        msgspec.ValidationError: it is no event.
    """
    return _DECODER.decode(line)
