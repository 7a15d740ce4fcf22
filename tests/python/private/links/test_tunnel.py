"""SPU's connections through the parties' own: bytes come out unchanged, and connections are few."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from aero.private.links import tunnel as tunnels
from aero.private.links.channel import Channel
from aero.private.links.tunnel import Tunnel
from aero.private.party_errors import PartyError


async def with_tunnels(
    folder: Path, use: Callable[[Tunnel, Tunnel], Awaitable[None]], *, refused: bool
) -> list[BaseException | None]:
    """A client's and a server's tunnel; behind the server's an SPU that answers in capitals."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data.upper())
        writer.close()

    async def follow(channel: Channel, tunnel: Tunnel) -> None:
        while True:
            await tunnel.take(*await channel.receive())

    ends = [
        Channel(*await asyncio.open_connection(sock=end), peer, "here", dialled=peer == "server")
        for end, peer in zip(socket.socketpair(), ("server", "client"), strict=True)
    ]
    for name in ("client", "server"):
        (folder / name).mkdir()
    async with Tunnel(ends[0], folder / "client") as one, Tunnel(ends[1], folder / "server") as two:
        spu = await asyncio.start_unix_server(answer, two.own.removeprefix("unix:"))
        pairs = zip(ends, (one, two), strict=True)
        following = [asyncio.create_task(follow(*pair)) for pair in pairs]
        await use(one, two)
        if refused:  # however slow the machine is
            await asyncio.wait(following, return_when=asyncio.FIRST_COMPLETED)
        spu.close()
        for task in following:
            task.cancel()
        found = await asyncio.gather(*following, return_exceptions=True)
        for end in ends:
            end._writer.transport.abort()
    return [None if isinstance(each, asyncio.CancelledError) else each for each in found]


def run(
    folder: Path, use: Callable[[Tunnel, Tunnel], Awaitable[None]], *, refused: bool = False
) -> list[BaseException | None]:
    return asyncio.run(asyncio.wait_for(with_tunnels(folder, use, refused=refused), 30))


def test_connections_are_carried_at_once_and_their_ends_too(tmp_path: Path) -> None:
    async def use(client: Tunnel, server: Tunnel) -> None:
        path = client.peer.removeprefix("unix:")
        opened = [await asyncio.open_unix_connection(path) for _ in range(5)]
        for number, (_, writer) in enumerate(opened):
            writer.write(b"abc%d" % number * 100_000)
        for number, (reader, writer) in enumerate(opened):
            expected = b"ABC%d" % number * 100_000
            assert await reader.readexactly(len(expected)) == expected
            writer.close()
        while client._writers or server._writers:  # nothing is left of them
            await asyncio.sleep(0.01)

    assert run(tmp_path, use) == [None, None]


def test_a_connection_to_an_spu_that_does_not_listen_is_closed(tmp_path: Path) -> None:
    async def use(client: Tunnel, server: Tunnel) -> None:
        path = server.peer.removeprefix("unix:")  # the client's SPU is not there yet
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"is anybody there")
        assert await reader.read() == b""
        writer.close()

    assert run(tmp_path, use) == [None, None]


@pytest.mark.parametrize("stream", [2, 4])
def test_a_stream_that_only_this_party_could_open_is_foreign(tmp_path: Path, stream: int) -> None:
    async def use(client: Tunnel, server: Tunnel) -> None:
        await client._channel.send(stream, b"x")

    _, server = run(tmp_path, use, refused=True)
    assert isinstance(server, PartyError) and f"got stream {stream} among 0" in str(server)


def test_a_party_opens_only_so_many_streams(tmp_path: Path) -> None:
    most = tunnels._MOST_STREAMS

    async def use(client: Tunnel, server: Tunnel) -> None:
        for number in range(most + 1):
            await client._channel.send(1 + 2 * number, b"x")
        while len(server._writers) < most:
            await asyncio.sleep(0.01)

    _, server = run(tmp_path, use, refused=True)
    assert isinstance(server, PartyError)
    assert f"got stream {1 + 2 * most} among {most}" in str(server)


def test_what_comes_for_a_stream_that_has_ended_is_dropped(tmp_path: Path) -> None:
    async def use(client: Tunnel, server: Tunnel) -> None:
        client._last_opened[1] = 1
        for data in (b"x", b"", b"", b"late"):
            await client._channel.send(1, data)
            await asyncio.sleep(0.1)
        assert not server._writers

    assert run(tmp_path, use) == [None, None]
