"""One party's supervisor: a plain process above the one that computes.

SPU's calls cannot be interrupted, and SPU ends the process when a message cannot be sent. So the
computing is a child process, the worker: it reads its job on its standard input, reports on
its standard output and ends when that input closes. The supervisor watches it, the others and the
clock, carries SPU's traffic between them, and whatever ends the run, it ends the worker and tells
the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aero.network.description import Description
from aero.private.compute.calls import Party
from aero.private.links.channel import Channel
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
from aero.private.parties.orders import Go, ReadRows, ReadTokens, Token, plain
from aero.private.parties.passes import Passes, Reads
from aero.private.parties.peer import Peer
from aero.private.parties.worker_pipe import Worker
from aero.private.party_errors import PartyError, PeerFailedError
from aero.private.prediction import most_sent
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder

TICK_SECONDS = 0.25


# Of the tokens that each pass reads: the bytes that a party sends at most.
Bound = Callable[[Sequence[int]], int | None]


def bound_of(
    description: Description, settings: PrivateSettings, party: Party, sequences: int = 1
) -> Bound | None:
    """The bound of a party's bytes by the simulator's prediction.

    None where nothing is to be padded: under ABY3 sizes follow from shapes and from coins that all
    three throw together. Cheetah compresses ciphertexts.
    """
    if settings.protocol == "aby3":
        return None

    def bound(rows: Sequence[int]) -> int | None:
        most = most_sent(description, rows, settings, sequences)
        return None if most is None else most[party.value]

    return bound


@dataclass(frozen=True)
class TimeLimits:
    """How long a party waits before it gives up, in seconds, each > 0.

    Attributes:
        connect: for another party to appear; of a client also for the server's first message.
        hello: of a server for a client's first message of TLS, for TLS, and for the client's own
            first message, each.
        ready: for this party's worker to start.
        silence: without a sign of life of another party's supervisor.
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
    channels: Sequence[Channel],
    limits: TimeLimits,
    on_event: Callable[[Event], None],
    passes: Passes,
    bound: Bound | None,
    reads: Reads | None = None,
) -> Event:
    """Takes a worker through a run together with the others'; all get the sign to go.

    The worker is told to `Go`, and after each pass what the next one reads. It reports any events,
    of which a `Stage` names where it stands, and last `Done`. `Failed` ends the run. The client
    says before each pass how many tokens it reads.

    Args:
        worker: after its `first_report`; ended in every case.
        channels: to the others' supervisors; closed in every case.
        limits: of time.
        on_event: called with every event but the last.
        passes: of the run; the first is known to all.
        bound: of the passes, the bytes that this party sends at most, besides the weights' shares.
            Its traffic is padded up to them, so that all runs of such passes take equal bytes.
            Where that fails, `Unpadded` tells why; a bound None cannot be padded. Without a bound
            nothing is.
        reads: of the client alone: what the next pass reads, called with the last one's token in a
            thread.

    Returns:
        The last event.

    Raises:
        PartyError: the worker or another party ended or stands still; all sides name the stage.
    """
    run = _Run(worker, limits, on_event, passes, bound, reads)
    told: PartyError | None = None
    try:
        async with contextlib.AsyncExitStack() as stack:
            folder = stack.enter_context(temporary_folder())
            peers = [Peer(channel, folder) for channel in channels]
            for peer in peers:
                await stack.enter_async_context(peer.tunnel)
            others = {peer.channel.peer: peer.tunnel.peer for peer in peers}
            worker.tell(Go(peers[0].tunnel.own, others, passes.request))
            return await run.result(peers)
    except BaseException as error:
        told = error if isinstance(error, PartyError) else PartyError("stopped")
        if isinstance(error, PartyError):
            raise PartyError(f"{error}{_own_place(error, run.where)}") from error
        raise
    finally:
        worker.end()
        await asyncio.gather(*(each.close(failure=told, where=run.where) for each in channels))


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
        limits: TimeLimits,
        on_event: Callable[[Event], None],
        passes: Passes,
        bound: Bound | None,
        reads: Reads | None,
    ) -> None:
        self._worker, self._limits = worker, limits
        self._on_event, self._passes, self._bound, self._reads = on_event, passes, bound, reads
        self._peers: list[Peer] = []
        self._weights_bytes = 0
        self._most_sent: int | None = None
        self._result: Event | None = None
        self._all_done = asyncio.Event()
        self.where = "at the start of the run"
        self._start = self._progress = time.monotonic()
        self._end: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    async def result(self, peers: list[Peer]) -> Event:
        """The worker's last event, when the others are done too."""
        self._peers = peers
        loop, reports = asyncio.get_running_loop(), self._worker.fileno()
        loop.add_reader(reports, self._read_worker)
        each = [part for peer in peers for part in (self._follow(peer), peer.deliver())]
        tasks = [asyncio.create_task(part) for part in (*each, self._watch(), self._finish())]
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
        if not self._all_done.is_set():
            self._end.set_exception(error)
        else:  # nothing but the padding can be lost
            padded = all(peer.padded.is_set() for peer in self._peers)
            self._conclude("" if padded else str(error))

    def _note_if_all_are_done(self) -> None:
        if self._result is not None and all(peer.done for peer in self._peers):
            self._all_done.set()

    async def _finish(self) -> None:
        """Pads the traffic when all are done; nothing of SPU may come after it."""
        await self._all_done.wait()
        self._worker.stop()
        for peer in self._peers:
            await peer.tunnel.ended()
        if self._bound is not None:
            most = await asyncio.to_thread(self._bound, self._passes.rows)
            self._most_sent = None if most is None else most + self._weights_bytes
        for peer in self._peers:
            await peer.channel.pad(self._most_sent or 0)
        for peer in self._peers:
            await peer.padded.wait()
        self._conclude()

    def _conclude(self, reason: str = "") -> None:
        if self._end.done():
            return
        sent = self._peers[0].channel.sent  # of two parties: of three nothing is padded
        if not reason and sent != self._most_sent:
            expected = "unknown" if self._most_sent is None else f"{self._most_sent:,}"
            reason = f"this party sent {sent:,} bytes, expected {expected}"
        if reason and self._bound is not None:
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
                for peer in self._peers:
                    peer.channel.post(done=True)
                self._note_if_all_are_done()
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
        elif isinstance(event, Piece) and event.call.name == "weights":
            at_client = all(peer.channel.peer != "client" for peer in self._peers)
            sent = event.call.traffic
            self._weights_bytes += sent.client_bytes if at_client else sent.server_bytes

    def _start_reading(self, reads: Reads, token: int | tuple[int, ...]) -> None:
        """Asks in a thread what the client reads next: it may wait for a person."""
        loop = asyncio.get_running_loop()

        def told(tokens: Sequence[Token] | None, error: Exception | None = None) -> None:
            try:
                if error is not None:
                    raise error
                self._read_on(plain(tokens or ()))
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

    def _read_on(self, tokens: Sequence[Token]) -> None:
        """The client's next pass."""
        self._progress = time.monotonic()
        self._passes.add(len(tokens))
        for peer in self._peers:
            peer.channel.post(read=len(tokens))
        self._worker.tell(ReadTokens(tokens))

    async def _follow(self, peer: Peer) -> None:
        def take(name: str, value: Any) -> None:
            if name == "read":
                self._passes.add(value)
                peer.channel.uncount()
                self._worker.tell(ReadRows(value))
            else:
                peer.done = True
                self._note_if_all_are_done()

        await peer.follow(*(["read"] if peer.channel.peer == "client" else []), take=take)

    async def _watch(self) -> None:
        limits = self._limits
        while True:
            await asyncio.sleep(TICK_SECONDS)
            if not self._all_done.is_set():
                self._worker.check_memory()
            now = time.monotonic()
            for peer in self._peers:
                peer.check_life(limits.silence)
            if now - self._progress > limits.stage:
                raise PartyError(f"no progress for {limits.stage:g} s")
            if now - self._start > limits.run:
                raise PartyError(f"the run took longer than {limits.run:g} s")
