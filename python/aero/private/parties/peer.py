"""Another party of a run: the frames that come from it, and how far it has got."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aero.private.links.channel import PADDING, Channel
from aero.private.links.tunnel import Tunnel
from aero.private.party_errors import PartyError

# Frames of another party, at most 256 KiB each, that wait for a stalled SPU; later ones are read.
MOST_FRAMES = 32


class Peer:
    """Another party of a run.

    Args:
        channel: to it.
        folder: for the sockets of SPU.

    Attributes:
        channel: see above.
        tunnel: of SPU's connections with it.
        done: it has computed all.
        padded: it has sent its last message.
    """

    def __init__(self, channel: Channel, folder: Path) -> None:
        self.channel, self.tunnel = channel, Tunnel(channel, folder)
        self.done, self.padded = False, asyncio.Event()
        self._frames: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(MOST_FRAMES)
        self._full = False

    async def deliver(self) -> None:
        """Hands frames to SPU, for ever."""
        while True:
            await self.tunnel.take(*await self._frames.get())

    async def follow(self, *allowed: str, take: Callable[[str, Any], None]) -> None:
        """Reads all that it sends, for ever.

        Args:
            allowed: names of messages that may come besides signs of life and of the end.
            take: called with each message but those signs of life.

        Raises:
            PartyError: it left, gave up, or broke the protocol.
        """
        while True:
            stream, content = await self.channel.receive()
            if stream == PADDING:
                continue
            if stream:
                # Once so much waits for this party's SPU, nothing is read, and nobody is silent.
                self._full = self._frames.full()
                await self._frames.put((stream, content))
                self._full = False
                self.channel.heard = time.monotonic()
                continue
            name, value = self.channel.message(content, ("done", "padded", "alive", *allowed))
            if name == "padded":
                self.padded.set()
            elif name != "alive":
                take(name, value)

    def check_life(self, silence: float) -> None:
        """Raises PartyError where it gave no sign of life for so many seconds."""
        if time.monotonic() - self.channel.heard > silence and not self._full:
            raise PartyError(f"no sign of life of the {self.channel.peer} for {silence:g} s")
