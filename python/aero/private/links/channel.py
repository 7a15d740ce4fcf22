"""The one connection of two parties: their supervisors' messages, and SPU's own traffic.

Frames over TCP, inside TLS where the parties have keys. A frame is the number of its stream and its
length, 4 bytes each, big-endian, then at most 256 KiB. Stream 0 carries messages, JSON; the last
one carries padding, and any other one connection of SPU, see `aero.private.links.tunnel`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import struct
import time
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from aero.private.party_errors import PartyError, PeerFailedError
from aero.reading import UnreadableFileError, one_line, parse_json

FRAME_BYTES = 1 << 18
PADDING = 0xFFFFFFFF
_HEADER = struct.Struct("!II")
_MESSAGE_BYTES = 1 << 16  # a hello has 3 kB
# Signs of life are one a second.
_MESSAGES_AT_ONCE, _MESSAGES_PER_SECOND = 30, 5
_HEARTBEAT_SECONDS = 1.0
_LINGER_SECONDS = 1.0
# TLS 1.3 cuts what it sends into records: header, content type and tag around 16 KiB at most.
_RECORD_BYTES, _AROUND_RECORD = 1 << 14, 22

# The bounds of a message; anything else ends the connection.
_MESSAGES: dict[str, Any] = {
    "hello": {
        "protocol": str,
        "role": str,
        "terms": dict,
        "request?": {
            "prompt_length": int, "new_tokens": int, "largest_product?": int, "sequences?": int,
        },
        "session?": str,  # with the third party, the one that the server's "go" has named
    },
    "slices": int,  # the request's largest product, as the other party computes it
    "place": int,  # in the server's queue
    "go": str,  # the name of the session, which nobody else can guess
    "read": int,  # tokens that the client's next pass reads; 0: it ends the run
    "alive": bool,
    "done": bool,
    "padded": bool,
    "failed": {"reason": str, "where": str},
}  # fmt: skip
_PADDED = json.dumps({"padded": True}).encode()

_Result = TypeVar("_Result")


async def within(seconds: float, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
    """`asyncio.wait_for`, which before Python 3.12 can lose a cancellation.

    It loses one that comes in the turn of the loop in which the coroutine ends; whoever cancelled
    then waits for a task that goes on.

    Raises:
        asyncio.TimeoutError: the coroutine took longer, and was cancelled.
    """
    task = asyncio.ensure_future(coroutine)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if task.done():
            return task.result()
        raise asyncio.TimeoutError
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def abort(writer: asyncio.StreamWriter) -> None:
    """Ends a connection at once, also one that has ended.

    asyncio's own fails where the last bytes went out after the connection was told to close.
    """
    with contextlib.suppress(AttributeError):
        writer.transport.abort()


class Channel:
    """Frames to and from the other party; nothing it sends is trusted.

    Args:
        reader, writer: of the connection; owned by the channel from now on.
        peer: the other party: "client", "server" or "helper".
        who: the other party's fingerprint, or its host where there is no TLS.
        dialled: whether this party made the connection.

    Attributes:
        peer, who, dialled: see above.
        sent: bytes on the wire since the channel was made, inside TLS those of its records.
        heard: when the last whole frame came, by `time.monotonic`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        who: str,
        *,
        dialled: bool,
    ) -> None:
        self.peer, self.who, self.dialled, self.sent = peer, who, dialled, 0
        self._encrypted = writer.get_extra_info("sslcontext") is not None
        self.heard = self._start = time.monotonic()
        self._reader, self._writer = reader, writer
        self._header: tuple[int, int] | None = None
        self._sending = asyncio.Lock()
        self._messages = 0
        self._beating: asyncio.Task[None] | None = None

    def post(self, **message: Any) -> None:
        """Sends a message without waiting; that it does not arrive is found by receiving."""
        if not self._writer.is_closing():
            self._write(0, json.dumps(message).encode())

    def _write(self, stream: int, data: bytes) -> None:
        self.sent += self._size(len(data))
        self._writer.write(_HEADER.pack(stream, len(data)) + data)

    def _size(self, length: int) -> int:
        """The size of a frame on the wire."""
        size = _HEADER.size + length
        return size + self._encrypted * _AROUND_RECORD * math.ceil(size / _RECORD_BYTES)

    async def pad(self, size: int) -> None:
        """Sends the last message, "padded", after frames that fill `sent` up to `size`, if it can.

        Raises:
            PartyError: as of `send`.
        """
        if self._beating is not None:
            self._beating.cancel()  # the last sign of life would come after the padding
        last, empty = self._size(len(_PADDED)), self._size(0)
        left = size - self.sent - last
        while left >= empty:
            length = min(left, _RECORD_BYTES) - empty
            if 0 < left - length - empty < empty:  # too little for another frame
                length -= empty
            await self.send(PADDING, bytes(length))
            left = size - self.sent - last
        await self.send(0, _PADDED)

    def uncount(self) -> None:
        """The last message was due: it does not count among those that come too fast."""
        self._messages -= 1

    def beat(self) -> None:
        """Gives a sign of life every second from now on."""
        self._beating = asyncio.create_task(self._beat())

    async def send(self, stream: int, data: bytes) -> None:
        """Sends a frame of a stream; waits while the other party takes none.

        Raises:
            PartyError: the other party has gone.
        """
        if self._writer.is_closing():
            raise self._gone()
        try:
            self._write(stream, data)
            async with self._sending:  # Python 3.10 lets only one wait
                await self._writer.drain()
        except OSError as error:
            raise self._gone() from error

    async def receive(self) -> tuple[int, bytes]:
        """The next frame: stream and content. Nothing is lost where this is cancelled.

        Raises:
            PartyError: no further frame can come, or the input is none.
        """
        stream, length = await self._next_header()
        try:
            content = await self._reader.readexactly(length)
        except (OSError, EOFError) as error:  # of TLS too
            raise self._gone() from error
        self._header = None
        self.heard = time.monotonic()
        return stream, content

    async def _next_header(self) -> tuple[int, int]:
        if self._header is None:
            try:
                header = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            except (OSError, EOFError) as error:
                raise self._gone() from error
            stream, length = header
            if length > (FRAME_BYTES if stream else _MESSAGE_BYTES):
                raise self.foreign(f"a frame of {length:,} bytes")
            self._header = header
        return self._header

    async def wait_for_traffic(self, silence: float) -> None:
        """Waits for the other party's SPU to speak; what it says is still to be received.

        Args:
            silence: seconds that the other party may give no sign of life.

        Raises:
            PartyError: it was silent, gave up, or said anything else.
        """
        while not (await self._soon(silence, self._next_header()))[0]:
            await self.next_message(silence, "alive")

    def message(self, content: bytes, allowed: Iterable[str]) -> tuple[str, Any]:
        """Name and value of a message.

        Args:
            content: of a frame of stream 0.
            allowed: the names that may come now; "failed" always may.

        Raises:
            PartyError: it is none of them, there are too many, or the other party gave up.
        """
        self._messages += 1
        elapsed = time.monotonic() - self._start
        if self._messages > _MESSAGES_AT_ONCE + _MESSAGES_PER_SECOND * elapsed:
            raise self.foreign(f"{self._messages} messages in {elapsed:.1f} s")
        try:
            parsed = parse_json(content, "message", {f"{k}?": s for k, s in _MESSAGES.items()})
        except UnreadableFileError as error:
            raise self.foreign(error) from error
        name = next(iter(parsed), "nothing")
        if len(parsed) != 1 or name not in {*allowed, "failed"}:
            raise self.foreign(f"{name!r}")
        if name == "failed":
            raise PeerFailedError(
                self.peer, **{k: one_line(parsed[name][k]) for k in _MESSAGES[name]}
            )
        return name, parsed[name]

    async def next_message(self, seconds: float, *allowed: str) -> tuple[str, Any]:
        """The next message; nothing else may come before it.

        Raises:
            PartyError: none came in `seconds`, or as of `message`.
        """
        stream, content = await self._soon(seconds, self.receive())
        if stream:
            raise self.foreign("traffic of SPU before the run")
        return self.message(content, allowed)

    async def _soon(self, seconds: float, coroutine: Coroutine[Any, Any, _Result]) -> _Result:
        try:
            return await within(seconds, coroutine)
        except asyncio.TimeoutError as error:
            raise PartyError(f"no sign of life of the {self.peer} for {seconds:g} s") from error

    async def close(self, *, failure: PartyError | None = None, where: str = "") -> None:
        """Ends the connection.

        Args:
            failure: sent to the other party, which gets a second to read it; not where it is
                that party's own.
            where: this party stands.
        """
        try:
            own = isinstance(failure, PeerFailedError) and failure.peer == self.peer
            if failure is not None and not own:
                with contextlib.suppress(OSError, EOFError, asyncio.TimeoutError):
                    self.post(failed={"reason": str(failure)[:1000], "where": where})
                    # To close with unread bytes would reset the connection and lose the message.
                    await within(_LINGER_SECONDS, self._until_closed())
            else:
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await within(_LINGER_SECONDS, self._writer.drain())
                    self._writer.close()
                    await within(_LINGER_SECONDS, self._writer.wait_closed())
        finally:
            self.drop()

    def drop(self) -> None:
        """Ends the connection at once and says nothing."""
        if self._beating is not None:
            self._beating.cancel()
        abort(self._writer)

    def foreign(self, got: object) -> PartyError:
        """The error that the other party broke the protocol."""
        return PartyError(f"the {self.peer} does not speak this protocol: got {one_line(got, 200)}")

    def _gone(self) -> PartyError:
        # With TLS 1.3 a client only learns like this that its certificate was refused.
        unheard = self.dialled and self.heard == self._start
        refused = unheard and self._encrypted
        hint = "; it may not know this party's certificate" if refused else ""
        return PartyError(f"the {self.peer} closed the connection{hint}")

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(_HEARTBEAT_SECONDS)
            self.post(alive=True)

    async def _until_closed(self) -> None:
        while await self._reader.read(FRAME_BYTES):
            pass
