"""One party's supervisor: a plain process above the one that computes.

SPU's calls cannot be interrupted, and SPU ends the process when a message cannot be sent. So the
computing is a child process, the worker: it reads its job on its standard input, reports on
its standard output and ends when that input closes. The supervisor watches it, the other party and
the clock, carries SPU's traffic between them, and whatever ends the run, it ends the worker and
tells the other party.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aero.private.compute.calls import Party
from aero.private.links.channel import PADDING, Channel
from aero.private.links.tunnel import Tunnel
from aero.private.parties.events import (
    Computed,
    Done,
    Event,
    Failed,
    Pass,
    Piece,
    Stage,
    Unpadded,
)
from aero.private.parties.passes import Passes, Reads
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError, PeerFailedError
from aero.private.prediction import most_sent
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder

TICK_SECONDS = 0.25
# Frames of the other party, at most 256 KiB each, that wait for a stalled SPU; later ones are read.
_MOST_FRAMES = 32


# Of the tokens that each pass reads: the bytes that a party sends at most.
Bound = Callable[[Sequence[int]], int | None]


def bound_of(description: dict[str, Any], settings: PrivateSettings, party: Party) -> Bound:
    """The bound of a party's bytes by the simulator's prediction."""

    def bound(rows: Sequence[int]) -> int | None:
        most = most_sent(description, rows, settings)
        return None if most is None else most[party.value]

    return bound


@dataclass(frozen=True)
class TimeLimits:
    """How long a party waits before it gives up, in seconds, each > 0.

    Attributes:
        connect: for the other party to appear; of a client also for the server's first message.
        hello: of a server for a client's first message of TLS, for TLS, and for the client's own
            first message, each.
        ready: for this party's worker to start.
        silence: without a sign of life of the other party's supervisor.
        stage: without any progress of the run.
        run: from the first stage to the last.

    Raises:
        ValueError: one is not positive.
    """

    connect: float = 60.0
    hello: float = 5.0
    ready: float = 180.0
    silence: float = 15.0
    stage: float = 600.0
    run: float = 86400.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"private: {name} must be > 0 seconds, got {getattr(self, name)}")


async def supervise(
    worker: Worker,
    channel: Channel,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
    passes: Passes,
    bound: Bound,
    reads: Reads | None = None,
) -> Event:
    """Takes a worker through a run together with the other party's; both get the sign to go.

    The worker receives {"go": {"own": ..., "peer": ...}, "request": ...} with addresses for SPU,
    and {"read": ...} after each pass. It reports any events, of which a `Stage` names where it
    stands, and last `Done`. `Failed` ends the run. The client says before each pass how many tokens
    it reads.

    Args:
        worker: after its `first_report`; ended in every case.
        channel: to the other party's supervisor; closed in every case.
        limits: of time.
        on_event: called with every event but the last.
        passes: of the run; the first is known to both.
        bound: of the passes, the bytes that this party sends at most, besides the weights' shares.
            Its traffic is padded up to them, so that all runs of such passes take equal bytes.
            Where that fails, `Unpadded` tells why; None cannot be padded.
        reads: of the client alone: what the next pass reads, called with the last one's token in a
            thread.

    Returns:
        The last event.

    Raises:
        PartyError: the worker or the other party ended or stands still; both sides name the stage.
    """
    run = _Run(worker, channel, limits, on_event, passes, bound, reads)
    told: PartyError | None = None
    try:
        with temporary_folder() as folder:
            async with Tunnel(channel, folder) as tunnel:
                request = {"prompt_length": passes.rows[0], "new_tokens": passes.most}
                worker.tell({"go": {"own": tunnel.own, "peer": tunnel.peer}, "request": request})
                return await run.result(tunnel)
    except BaseException as error:
        told = error if isinstance(error, PartyError) else PartyError("stopped")
        if isinstance(error, PartyError):
            raise PartyError(f"{error}{_own_place(error, run.where)}") from error
        raise
    finally:
        worker.end()
        await channel.close(failure=told, where=run.where)


def _own_place(error: PartyError, where: str) -> str:
    """This party's stage, unless the error that ends it names one."""
    if not isinstance(error, PeerFailedError):
        return f" ({where})"
    return "" if error.where == where else f" (here {where})"


class _Run:
    """The state of a supervised run."""

    def __init__(
        self,
        worker: Worker,
        channel: Channel,
        limits: TimeLimits,
        on_event: Callable[[Event], None],
        passes: Passes,
        bound: Bound,
        reads: Reads | None,
    ) -> None:
        self._worker, self._channel, self._limits = worker, channel, limits
        self._on_event, self._passes, self._bound, self._reads = on_event, passes, bound, reads
        self._weights_bytes = 0
        self._most_sent: int | None = None
        self._result: Event | None = None
        self._peer_done, self._both_done = False, asyncio.Event()
        self._peer_padded = asyncio.Event()
        self._frames: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(_MOST_FRAMES)
        self._full = False
        self.where = "at the start of the run"
        self._start = self._progress = time.monotonic()
        self._end: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    async def result(self, tunnel: Tunnel) -> Event:
        """The worker's last event, when the other party is done too."""
        loop, reports = asyncio.get_running_loop(), self._worker.fileno()
        loop.add_reader(reports, self._read_worker)
        tasks = [
            asyncio.create_task(each)
            for each in (
                self._follow_peer(),
                self._deliver(tunnel),
                self._watch_the_clock(),
                self._finish(tunnel),
            )
        ]
        try:
            for task in tasks:
                task.add_done_callback(self._fail_with)
            return await self._end
        finally:
            loop.remove_reader(reports)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _fail_with(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is None or self._end.done():
            return
        if self._both_done.is_set():  # nothing but the padding can be lost
            self._conclude("" if self._peer_padded.is_set() else str(error))
        else:
            self._end.set_exception(error)

    def _note_if_both_are_done(self) -> None:
        if self._result is not None and self._peer_done:
            self._both_done.set()

    async def _finish(self, tunnel: Tunnel) -> None:
        """Pads the traffic when both are done; nothing of SPU may come after it."""
        await self._both_done.wait()
        self._worker.stop()
        await tunnel.ended()
        most = await asyncio.to_thread(self._bound, self._passes.rows)
        self._most_sent = None if most is None else most + self._weights_bytes
        await self._channel.pad(self._most_sent or 0)
        await self._peer_padded.wait()
        self._conclude()

    def _conclude(self, reason: str = "") -> None:
        if self._end.done():
            return
        if not reason and self._channel.sent != self._most_sent:
            expected = "unknown" if self._most_sent is None else f"{self._most_sent:,}"
            reason = f"this party sent {self._channel.sent:,} bytes, expected {expected}"
        if reason:
            self._on_event(Unpadded(reason))
        assert self._result is not None
        self._end.set_result(self._result)

    def _read_worker(self) -> None:
        try:
            for event in self._worker.events():
                self._take_event(event)
        except Exception as error:
            if self._result is None and not self._end.done():
                self._end.set_exception(error)
            asyncio.get_running_loop().remove_reader(self._worker.fileno())

    def _take_event(self, event: Event) -> None:
        self._progress = time.monotonic()
        match event:
            case Done():
                self._result = event
                self.where = "after the last stage"
                self._channel.post(done=True)
                self._note_if_both_are_done()
            case Failed(reason=reason):
                raise PartyError(reason)
            case Computed():
                self._passes.computed += 1
                self._on_event(event)
            case _:
                self._note(event)
                self._on_event(event)
                if isinstance(event, Pass) and self._reads is not None:
                    self._start_reading(self._reads, event.token)

    def _note(self, event: Event) -> None:
        if isinstance(event, Stage):
            self.where = f"in stage {event.stage}"
        elif isinstance(event, Piece) and event.name == "weights":
            at_client = self._channel.peer == "server"
            self._weights_bytes += event.client_bytes if at_client else event.server_bytes

    def _start_reading(self, reads: Reads, token: int) -> None:
        """Asks in a thread what the client reads next: it may wait for a person."""
        loop = asyncio.get_running_loop()

        def told(tokens: Sequence[int] | None, error: Exception | None = None) -> None:
            try:
                if error is not None:
                    raise error
                self._read_on([int(each) for each in tokens or ()])
            except Exception as failure:
                if not self._end.done():
                    self._end.set_exception(failure)

        def ask() -> None:
            found: tuple[Any, ...]
            try:
                found = (reads(token),)
            except Exception as error:
                found = (None, error)
            with contextlib.suppress(RuntimeError):  # the run has ended meanwhile
                loop.call_soon_threadsafe(told, *found)

        threading.Thread(target=ask, daemon=True).start()

    def _read_on(self, tokens: list[int]) -> None:
        """The client's next pass."""
        self._progress = time.monotonic()
        self._passes.add(len(tokens))
        self._channel.post(read=len(tokens))
        self._worker.tell({"read": tokens})

    async def _deliver(self, tunnel: Tunnel) -> None:
        while True:
            await tunnel.take(*await self._frames.get())

    async def _follow_peer(self) -> None:
        while True:
            stream, content = await self._channel.receive()
            if stream == PADDING:
                continue
            if stream:
                # Once so much waits for this party's SPU, nothing is read, and nobody is silent.
                self._full = self._frames.full()
                await self._frames.put((stream, content))
                self._full = False
                self._channel.heard = time.monotonic()
                continue
            known = ("done", "padded", "alive", *(["read"] if self._reads is None else []))
            name, value = self._channel.message(content, known)
            if name == "read":
                self._passes.add(value)
                self._channel.uncount()
                self._worker.tell({"read": value})
            elif name == "done":
                self._peer_done = True
                self._note_if_both_are_done()
            elif name == "padded":
                self._peer_padded.set()

    async def _watch_the_clock(self) -> None:
        limits, peer = self._limits, self._channel.peer
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._both_done.is_set():
                self._worker.check_memory()
            now = time.monotonic()
            if now - self._channel.heard > limits.silence and not self._full:
                raise PartyError(f"no sign of life of the {peer} for {limits.silence:g} s")
            if now - self._progress > limits.stage:
                raise PartyError(f"no progress for {limits.stage:g} s")
            if now - self._start > limits.run:
                raise PartyError(f"the run took longer than {limits.run:g} s")
