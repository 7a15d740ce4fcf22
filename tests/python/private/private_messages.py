"""The attack `private_messages` of `make fuzz-private`: what strangers and clients send a party.

A case draws 200 messages: today's kinds with values of another shape, flipped, cut, repeated, or
noise. Each is read by a channel in each of its states, and ends in a value or in one printable
line. A part of them goes to a server that runs, or to one of three parties and its helper, before a
run or within one; every 20th case honest clients must still be served, within the memory that the
threat model promises.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import random
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.python.private.pretending import LIMITS, Served, pretending_python, said
from tests.python.private.trio import Trio, hello_of, run_of, run_with_own_helper

import aero
from aero.private.links.channel import FRAME_BYTES, PADDING, Channel
from aero.private.parties.terms import PROTOCOL, check_hello, checked_request, hello
from aero.private.party_errors import PartyError

MESSAGES, TO_THE_SERVER, MOST_BYTES = 200, 12, 100e6
STATES = (
    ("hello",), ("slices", "alive"), ("place", "go", "alive"), ("alive",),
    ("done", "padded", "alive", "read"),
)  # fmt: skip
TERMS = {"exp_squarings": 8, "weights": None}
REQUEST = {"prompt_length": 3, "new_tokens": 1, "largest_product": 0}
HELLO = {
    "protocol": PROTOCOL, "role": "client", "terms": TERMS, "request": REQUEST, "session": "here",
}  # fmt: skip
KINDS: dict[str, Any] = {
    "hello": HELLO,
    "slices": 0,
    "place": 3,
    "go": "the session",
    "read": 1,
    "alive": True,
    "done": True,
    "padded": True,
    "failed": {"reason": "it left", "where": "in stage layer 0"},
}
STREAMS = (0, 0, 0, 1, 2, 3, 1 << 31, PADDING)


class Draw:
    """Messages from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def value(self, depth: int = 0) -> Any:
        """Any JSON value."""
        draw = self.random
        plain = (
            None, True, -1, 0, 1 << 63, 10**40, 1e300, "", "x" * draw.randrange(300), "\x1b[2J\n",
            "\ud800", "\u202e", float("nan"), [], {}, 2.5,
        )  # fmt: skip
        if depth > 3 or draw.random() < 0.6:
            return draw.choice(plain)
        inner = [self.value(depth + 1) for _ in range(draw.randrange(4))]
        return inner if draw.random() < 0.5 else {str(self.word()): each for each in inner}

    def word(self) -> str:
        """The name of a kind or of a field, or another."""
        names = (*KINDS, *HELLO, *TERMS, *REQUEST, "reason", "where", "link", "", "\x1b[2J", "a\nb")
        return self.random.choice(names)

    def changed(self, value: Any) -> Any:
        """A value with one part of another shape."""
        if isinstance(value, dict) and value and self.random.random() < 0.8:
            name = self.random.choice(list(value))
            kept = dict(value)
            if self.random.random() < 0.2:
                kept[self.word()] = kept.pop(name)
            else:
                kept[name] = self.changed(value[name])
            return kept
        return self.value()

    def message(self) -> bytes:
        """A frame, or what looks like one."""
        draw = self.random
        kind = "hello" if draw.random() < 0.5 else draw.choice(list(KINDS))
        whole = {kind: KINDS[kind]}
        if kind == "hello":
            whole = {kind: {**HELLO, "role": draw.choice(["client", "server", "helper"])}}
            if draw.random() < 0.5:
                whole[kind] |= {"terms": {**TERMS, "helper": None}}
        content = json.dumps(whole if draw.random() < 0.3 else self.changed(whole)).encode()
        stream = 0
        match draw.randrange(12):
            case 0:
                content = draw.randbytes(draw.randrange(2000))
            case 1:
                stream = draw.choice(STREAMS)
            case 2:
                content = draw.choice(
                    [b"[" * 50_000, b'{"hello":' * 5000, b'{"a":1,' * 8000, b"\0"]
                )
        sent = bytearray(struct.pack("!II", stream, len(content)) + content)
        match draw.randrange(12):
            case 0:
                for _ in range(draw.randint(1, 8)):
                    sent[draw.randrange(len(sent))] = draw.randrange(256)
            case 1:
                del sent[draw.randrange(len(sent)) :]
            case 2:
                sent *= draw.randint(2, 40) if len(sent) < 2000 else 2
            case 3:
                sent[4:8] = struct.pack(
                    "!I", draw.choice([0, 1, 1 << 16, FRAME_BYTES, 1 << 32 - 1])
                )
        return bytes(sent)


class Ends:
    """In the place of a connection's writer: takes what a channel sends."""

    def get_extra_info(self, _: str) -> None: ...

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...


async def read(sent: bytes, peer: str, state: tuple[str, ...]) -> None:
    """Reads as a party in a state does, to the end of the input."""
    reader = asyncio.StreamReader(FRAME_BYTES)
    reader.feed_data(sent)
    reader.feed_eof()
    channel = Channel(reader, Ends(), peer, "here", dialled=False)  # type: ignore[arg-type]
    try:
        while True:
            stream, content = await channel.receive()
            if stream:
                continue
            name, value = channel.message(content, state)
            if name == "hello":
                check_hello(hello("client" if peer == "server" else "server", TERMS), value, peer)
                checked_request(value.get("request"), {"context_length": 32})
    except PartyError as error:
        assert str(error).isprintable() and len(str(error)) < 1500, str(error)


@functools.cache
def parties() -> tuple[Served, Trio]:
    """A server of two parties, and a server of three with its helper."""
    folder = Path(tempfile.mkdtemp(prefix="aero-fuzz."))
    from tests.python.export.conftest import trained

    export = Path(aero.export_weights(trained("SM+ScFuFFN"), folder / "export"))
    two, three = (
        Served(export, pretending_python(folder), limits=LIMITS),
        Trio(export, None, folder),
    )
    for each in (two, three):
        atexit.register(each.end)
        each.ask()
    for each in (two, three.server, three.helper):
        each.start = each.memory("VmRSS")  # type: ignore[attr-defined]
    return two, three


def begin(draw: Draw) -> list[socket.socket]:
    """The connections of a stranger, or of who is in a run; the last one is to be attacked."""
    two, three = parties()
    within, kind = draw.random.random() < 0.2, draw.random.randrange(4)
    if kind < 2:
        if within:
            return list((run_of, run_with_own_helper)[kind](three if kind == 0 else three.server))
        return [(three.helper, three.server)[kind].connect()]
    connection = two.connect()
    if within:
        connection.sendall(said(hello=hello_of("client", terms=TERMS)))
        heard = b""
        while b'"go"' not in heard and (chunk := connection.recv(1 << 16)):
            heard += chunk
    return [connection]


def send(draw: Draw, messages: list[bytes]) -> None:
    """Messages of a stranger, or of a client or helper after its turn has come."""
    with contextlib.ExitStack() as stack, contextlib.suppress(ConnectionError):
        *others, connection = (stack.enter_context(each) for each in begin(draw))
        for each in others:
            each.sendall(struct.pack("!II", 1, 1) + b"x")
        for message in messages:
            connection.sendall(message)
        if draw.random.random() < 0.5:
            connection.shutdown(socket.SHUT_WR)
            connection.settimeout(5)
            with contextlib.suppress(TimeoutError):
                while connection.recv(1 << 16):
                    pass


def attack(seed: int) -> int:
    """One case; returns how many messages it sent."""
    draw = Draw(seed)
    messages = [draw.message() for _ in range(MESSAGES)]

    async def read_all() -> None:
        for number, each in enumerate(messages):
            state = draw.random.choice([STATES[0], *STATES])
            await read(each, ("client", "server")[number % 2], state)

    asyncio.run(read_all())
    send(draw, messages[:TO_THE_SERVER])
    two, three = parties()
    for served in (two, three.server, three.helper):
        assert served.process.poll() is None, "the server has ended"
    if seed % 20 == 0:
        for asked, served in ((two, two), (three, three.server), (three, three.helper)):
            before = [event["event"] for event in served.events].count("served")
            asked.ask()
            served.wait_for("served", before + 1)
            assert served.memory() - served.start < MOST_BYTES  # type: ignore[attr-defined]
            reasons = [event.get("reason", "") for event in served.events]
            assert all(reason.isprintable() for reason in reasons)
        for served in (two, three.server, three.helper):
            del served.events[:-1000]
    return MESSAGES
