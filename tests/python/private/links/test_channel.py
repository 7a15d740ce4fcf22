"""How two parties find each other, or do not, and their messages."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aero.private.links import channel as channels
from aero.private.links.channel import Channel
from aero.private.links.connections import accept, connect, listen, parse_address, shown_address
from aero.private.party_errors import PartyError


def nothing() -> None:
    pass


async def pair() -> tuple[Channel, Channel]:
    """The client's and the server's end."""
    one, other = socket.socketpair()
    client = Channel(*await asyncio.open_connection(sock=one), "server", "here", dialled=True)
    server = Channel(*await asyncio.open_connection(sock=other), "client", "here", dialled=False)
    return client, server


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack("!II", stream, len(content)) + content


def said(**message: Any) -> bytes:
    return frame(0, json.dumps(message).encode())


def test_waiting_for_a_message_ends_where_one_comes_at_the_same_moment() -> None:
    async def cancelled_after(turns: int) -> bool:
        client, server = await pair()
        waiting = asyncio.create_task(server.next_message(10, "alive"))
        await asyncio.sleep(0.01)
        server._reader.feed_data(said(alive=True))
        for _ in range(turns):
            await asyncio.sleep(0)
        accepted = waiting.cancel()
        await asyncio.wait({waiting})
        for each in (client, server):
            await each.close()
        return accepted == waiting.cancelled()

    assert [turns for turns in range(9) if not asyncio.run(cancelled_after(turns))] == []


def test_a_connection_that_sends_its_last_bytes_late_closes_all_the_same() -> None:
    async def close_before_all_is_sent() -> int:
        client, server = await pair()
        connection = client._writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await client.send(1, bytes(50_000))
        assert client._writer.transport.get_write_buffer_size() > 0
        closing = asyncio.create_task(client.close())
        await asyncio.sleep(0.01)
        _, content = await server.receive()
        await closing
        await server.close()
        return len(content)

    assert asyncio.run(close_before_all_is_sent()) == 50_000


@pytest.mark.parametrize(
    "address", ["", "7700", "host:", ":7700", "host:seven", "host:70000", "host:\u0665", "h:1e9"]
)
def test_an_address_without_host_or_port_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=f"address must be HOST:PORT, got '{re.escape(address)}'"):
        parse_address(address)


@pytest.mark.parametrize(
    ("address", "read"), [("127.0.0.1:7700", ("127.0.0.1", 7700)), ("[::1]:0", ("::1", 0))]
)
def test_an_address_is_read_and_shown(address: str, read: tuple[str, int]) -> None:
    assert parse_address(address) == read
    assert shown_address(*read) == address


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"cannot listen on {address}: .*in use"):
            listen(address)


def test_a_server_that_is_not_there_is_named_in_time(unused_address: str) -> None:
    start = time.monotonic()
    with pytest.raises(
        PartyError, match=rf"no server at {unused_address} within 0\.5 s: .*refused"
    ):
        asyncio.run(connect(unused_address, None, 0.5, nothing))
    assert 0.5 <= time.monotonic() - start < 30


def test_a_connection_to_itself_is_no_server(
    unused_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = asyncio.open_connection

    async def to_itself(*_: object, **__: object) -> Any:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.connect(one.getsockname())
        return await real(sock=one)

    monkeypatch.setattr(asyncio, "open_connection", to_itself)
    with pytest.raises(PartyError, match=rf"no server at {unused_address} .*refused"):
        asyncio.run(connect(unused_address, None, 0.3, nothing))


def test_a_server_that_starts_later_is_waited_for(unused_address: str) -> None:
    async def serve_late() -> None:
        await asyncio.sleep(0.5)
        with listen(unused_address) as listener:
            connection, _ = await asyncio.get_running_loop().sock_accept(listener)
            channel = await accept(connection, None, 5)
            channel.post(place=7)
            await channel.close()

    async def both() -> Any:
        server = asyncio.create_task(serve_late())
        client = await connect(unused_address, None, 60, nothing)
        found = await client.next_message(60, "place")
        await server
        await client.close()
        return found

    assert asyncio.run(both()) == ("place", 7)


def test_a_wait_ends_with_what_ends_the_party() -> None:
    def ended() -> None:
        raise PartyError("the worker ended")

    with pytest.raises(PartyError, match="the worker ended"):
        asyncio.run(connect("127.0.0.1:9", None, 60, ended))


def test_frames_arrive_whole_and_in_order_also_where_a_wait_for_one_is_given_up() -> None:
    sent = [(number, bytes([number]) * 7**number) for number in range(1, 7)]

    async def both() -> list[tuple[int, bytes]]:
        client, server = await pair()
        received = []

        async def send() -> None:
            for stream, content in sent:
                for at in range(0, len(frame(stream, content)), 4):  # the header arrives in two
                    client._writer.write(frame(stream, content)[at : at + 4])
                    if at < 12:
                        await asyncio.sleep(0.02)
                await client._writer.drain()

        sender = asyncio.create_task(send())
        while len(received) < len(sent):
            try:
                received.append(await asyncio.wait_for(server.receive(), 0.01))
            except asyncio.TimeoutError:
                continue
        await sender
        await client.close()
        with pytest.raises(PartyError, match="the client closed the connection"):
            await server.receive()
        await server.close()
        return received

    assert asyncio.run(both()) == sent


FOREIGN = {
    "no header": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "brackets": b"[" * 200_000,
    "deep": frame(0, b"[" * 60_000),
    "nothing": said(),
    "empty": frame(0, b""),
    "null": frame(0, b"null"),
    "nulls": said(hello={"protocol": None, "role": None, "terms": None, "link": "10.0.0.1:22"}),
    "two": said(alive=True, done=True),
    "later": said(done=True),
    "life before a hello": said(alive=True),
    "other": said(run="rm"),
    "digits": frame(0, b'{"place": ' + b"9" * 5000 + b"}"),
    "wide": frame(0, b'{"hello": {"terms": [' + b"0," * 30_000 + b"0]}}"),
    "long message": struct.pack("!II", 0, 1 << 16 | 1),
    "long frame": struct.pack("!II", 1, 1 << 18 | 1),
    "longest": b"\xff" * 8,
    "not text": frame(0, b"\xff\xfe{}"),
    "traffic": frame(1, b"PRPC"),
}


@pytest.mark.parametrize("sent", FOREIGN.values(), ids=FOREIGN)
def test_what_is_no_message_of_this_protocol_is_refused_in_one_printable_line(sent: bytes) -> None:
    async def both() -> str:
        client, server = await pair()
        client._writer.write(sent)
        with pytest.raises(PartyError) as caught:
            await server.next_message(10, "hello")
        client._writer.transport.abort()
        await server.close()
        return str(caught.value)

    text = asyncio.run(both())
    assert text.startswith("the client does not speak this protocol: got ")
    assert text.isprintable() and len(text) < 300


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_a_frame_or_a_party_error(sent: bytes, stream: int) -> None:
    async def both(content: bytes) -> None:
        client, server = await pair()
        client._writer.write(content)
        client._writer.write_eof()
        try:
            while True:
                stream, found = await server.receive()
                if stream == 0:
                    server.message(found, ("hello", "place", "go", "done"))
        except PartyError:
            pass
        client._writer.transport.abort()
        server._writer.transport.abort()

    asyncio.run(both(sent))
    asyncio.run(both(frame(stream, sent)))


@pytest.mark.parametrize("encrypted", [False, True])
def test_padding_fills_a_stream_to_the_byte(
    encrypted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over three records, from the smallest frame on."""
    monkeypatch.setattr(channels, "_RECORD_BYTES", 100)

    async def sent_beyond_the_last_message(sizes: range) -> list[int]:
        found = []
        for size in sizes:
            client, server = await pair()
            client._encrypted = encrypted
            last = client._size(len(channels._PADDED))
            await client.pad(last + size)
            found.append(client.sent - last)
            for each in (client, server):
                each._writer.transport.abort()
        return found

    smallest = 30 if encrypted else 8
    found = asyncio.run(sent_beyond_the_last_message(range(300)))
    assert found == [size if size >= smallest else 0 for size in range(300)]


@pytest.fixture
def flood() -> Iterator[bytes]:
    return iter(lambda: said(alive=True) * 100, b"")


def test_a_flood_of_signs_of_life_is_no_life(flood: Iterator[bytes]) -> None:
    async def both() -> None:
        client, server = await pair()
        client._writer.write(next(flood))
        for _ in range(100):
            await server.next_message(10, "alive")

    with pytest.raises(PartyError, match=r"got 3[1-9] messages in 0\.\d s"):
        asyncio.run(both())


def test_a_message_that_trickles_in_is_no_sign_of_life() -> None:
    async def trickle(client: Channel) -> None:
        for byte in said(alive=True) * 20:
            client._writer.write(bytes([byte]))
            await asyncio.sleep(0.05)

    async def both() -> None:
        client, server = await pair()
        sending = asyncio.create_task(trickle(client))
        try:
            await server.next_message(0.4, "alive")
        finally:
            sending.cancel()

    with pytest.raises(PartyError, match=r"no sign of life of the client for 0\.4 s"):
        asyncio.run(both())


def test_what_the_other_party_says_of_its_failure_is_one_short_printable_line() -> None:
    async def both() -> str:
        client, server = await pair()
        reason = "\x1b[2J\nserved 9 tokens " + "x" * 900
        await client.close(failure=PartyError(reason), where="in\nstage")
        with pytest.raises(PartyError) as caught:
            await server.next_message(10)
        return str(caught.value)

    text = asyncio.run(both())
    assert text.startswith(r"the client gave up in stage: \x1b[2J served 9 tokens")
    assert text.isprintable() and len(text) <= 400


def test_a_failure_is_heard_although_much_unread_was_sent() -> None:
    async def both() -> None:
        client, server = await pair()
        sending = asyncio.create_task(client.send(1, bytes(1 << 18)))
        closing = asyncio.create_task(
            server.close(failure=PartyError("enough"), where="in the middle")
        )
        with pytest.raises(PartyError, match="the server gave up in the middle: enough"):
            await client.next_message(10)
        await client.close()
        await asyncio.gather(sending, closing)

    asyncio.run(both())


def test_a_frame_waits_while_the_other_party_takes_none() -> None:
    async def both() -> int:
        client, _server = await pair()
        sent = 0
        try:
            while sent < 1000:
                await asyncio.wait_for(client.send(1, bytes(channels.FRAME_BYTES)), 0.3)
                sent += 1
        except asyncio.TimeoutError:
            pass
        return sent

    assert asyncio.run(both()) < 12  # of 256 KiB: the two ends and the system hold as much
