"""SPU's connections inside the parties' own connection.

SPU wants to listen at each party. Here it does so at a socket in a folder of its own that no other
user can enter, and so does this tunnel, in the other party's place. Whatever SPU connects goes as a
stream through the channel and comes out at the other party's socket; who ends a connection ends
both its directions, as SPU does. So SPU has no port, and nobody reaches it but the party of this
session.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from pathlib import Path

from aero.private.links.channel import FRAME_BYTES, Channel, abort
from aero.private.party_errors import PartyError

_MOST_STREAMS = 64  # SPU opens a few


class Tunnel:
    """Streams between this party's SPU and the other's.

    Args:
        channel: to the other party.
        folder: for the sockets; nobody else may enter it.

    Attributes:
        own: address for this party's SPU to listen at, as SPU writes it; one for all tunnels.
        peer: address that stands for the other party's SPU.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self.own, self.peer = (f"unix:{folder / name}" for name in ("own", channel.peer))
        self._channel = channel
        # Each party opens streams of its own parity.
        self._first = 1 if channel.dialled else 2
        self._numbers = itertools.count(self._first, 2)
        self._last_opened = {self._first % 2: 0, 1 - self._first % 2: 0}
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Tunnel:
        path = self.peer.removeprefix("unix:")
        self._server = await asyncio.start_unix_server(self._opened, path, limit=FRAME_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        for writer in self._writers.values():
            abort(writer)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def ended(self) -> None:
        """Waits until all streams have: this party's SPU is to be gone."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def take(self, stream: int, data: bytes) -> None:
        """Hands a frame of the other party to SPU; waits while SPU takes none.

        Raises:
            PartyError: the frame is of no stream that there can be.
        """
        if stream not in self._writers and not (data and await self._join(stream)):
            return
        writer = self._writers[stream]
        if not data or writer.is_closing():  # nothing comes after the end
            writer.close()
            return
        with contextlib.suppress(OSError):  # where SPU has closed, its end is under way
            writer.write(data)
            await writer.drain()

    async def _join(self, stream: int) -> bool:
        """Connects a new stream to SPU; false where it has ended, or SPU does not listen yet."""
        if stream <= self._last_opened[stream % 2]:
            return False  # ended on this side, not yet on the other
        if stream % 2 == self._first % 2 or len(self._writers) >= _MOST_STREAMS:
            raise self._channel.foreign(f"stream {stream} among {len(self._writers)}")
        self._last_opened[stream % 2] = stream
        try:
            path = self.own.removeprefix("unix:")
            reader, self._writers[stream] = await asyncio.open_unix_connection(
                path, limit=FRAME_BYTES
            )
        except OSError:  # the other party's SPU tries again
            await self._channel.send(stream, b"")
            return False
        self._follow(stream, reader)
        return True

    def _opened(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """SPU connects to the other party's."""
        stream = next(self._numbers)
        self._last_opened[stream % 2] = stream
        self._writers[stream] = writer
        self._follow(stream, reader)

    def _follow(self, stream: int, reader: asyncio.StreamReader) -> None:
        task = asyncio.create_task(self._carry(stream, reader))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry(self, stream: int, reader: asyncio.StreamReader) -> None:
        # Receiving from the channel tells that it has ended.
        with contextlib.suppress(PartyError):
            with contextlib.suppress(OSError):
                while data := await reader.read(FRAME_BYTES):
                    await self._channel.send(stream, data)
            await self._channel.send(stream, b"")
        self._writers.pop(stream).close()
