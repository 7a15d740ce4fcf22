"""What a worker is told, a line of JSON each: its job, then `Go`, then what each pass reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from aero.internals.errors import extra
from aero.private.parties.passes import Request
from aero.private.settings import PrivateSettings

with extra("private"):
    import msgspec

_Order = TypeVar("_Order")
# A token; of several sequences side by side one of each.
Token = int | tuple[int, ...]


class BothPartiesJob(msgspec.Struct, frozen=True):
    """The job of a worker that is both parties.

    Attributes:
        folder: of `export_weights`.
        settings: of both.
        tokens: the prompt, or of several each place's.
    """

    folder: Path
    settings: PrivateSettings
    tokens: Sequence[Token]


class OnePartyJob(msgspec.Struct, frozen=True):
    """The job of a worker that is one of two or three parties.

    Attributes:
        party: "client", "server" or "helper".
        folder: the server's of `export_weights`; of the others' only `network.json` is read.
        settings: equal at all parties.
        tokens: the prompt, or of several each place's; the client's alone.
        memory_bytes: that it may take; None: four fifths of the machine's.
    """

    party: str
    folder: Path
    settings: PrivateSettings
    tokens: tuple[Token, ...] | None = None
    memory_bytes: int | None = None


class Go(msgspec.Struct, frozen=True):
    """The run begins.

    Attributes:
        own: where this party's SPU listens.
        others: the places that stand for the other parties.
        request: of the client.
    """

    own: str
    others: dict[str, str]
    request: Request


class ReadTokens(msgspec.Struct, frozen=True):
    """The tokens that the next pass reads; none end the run."""

    tokens: Sequence[Token]


class ReadRows(msgspec.Struct, frozen=True):
    """How many tokens the next pass reads, to those who may not know them; 0 ends the run."""

    rows: int


def plain(tokens: Sequence[Any]) -> list[Token]:
    """The tokens of a pass, which may be NumPy's, as an order has them."""
    return [one if isinstance(one, tuple) else int(one) for one in tokens]


def told(order: object) -> bytes:
    """A job, or what follows it, as a line of JSON; a limit of time may be infinite."""
    return json.dumps(msgspec.to_builtins(order, enc_hook=_word)).encode() + b"\n"


def heard(line: bytes, kind: type[_Order]) -> _Order:
    """The inverse of `told`.

    Args:
        line: of JSON.
        kind: what it must be: one of these classes, or another record.

    Raises:
        msgspec.ValidationError: it is something else.
    """
    return msgspec.convert(json.loads(line), kind, dec_hook=_path)


def _word(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise NotImplementedError(f"a worker's order must have JSON values, got {type(value)}")


def _path(kind: type, value: Any) -> Path:
    if issubclass(kind, Path) and isinstance(value, str):
        return Path(value)
    raise TypeError(f"expected a path, got {value!r}")
