"""The server's side: clients one after the other, from a port that anybody may reach.

Whatever comes from outside ends one connection. A stranger has so many seconds to show a known
certificate and to say a whole hello; only then it stands in the queue, and only the first of the
queue meets a worker.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aero.internals.atomic_files import write_bytes_atomically
from aero.network.files import read_description
from aero.private.environment import private_command
from aero.private.links.channel import Channel, within
from aero.private.links.connections import accept, listen, shown_address
from aero.private.parties.events import Client, Event, Listening, Lost, Refused, Served
from aero.private.parties.party import PartyJob, check_security, last_words
from aero.private.parties.supervision import supervise
from aero.private.parties.terms import check_hello, checked_request, hello
from aero.private.parties.worker_pipe import Worker, first_report
from aero.private.party_errors import PartyError
from aero.private.prediction import most_sent
from aero.private.temporary import temporary_folder
from aero.reading import checked, one_line, read_json

_MOST_STRANGERS = 32  # connections before their hello
_MOST_WAITING = 8
_REFUSALS_SECONDS = 1.0  # one line for all strangers in that time
_POLL_SECONDS = 0.05
_RENEW_SECONDS = 5.0


def serve(
    job: PartyJob,
    on_event: Callable[[Event], None],
    python: Path | None = None,
    *,
    once: bool = False,
) -> None:
    """Serves clients until this is interrupted.

    Args:
        job: the server's.
        on_event: called with `aero.private.parties.events`: `Listening`; for each client `Client`,
            the worker's reports, and `Served` or `Lost`; for strangers `Refused`.
        python: of the private environment; default: `find_private_python()`.
        once: return after one client.

    Raises:
        PartyError: with `once`: nobody came, or the run failed. This party's worker cannot start.
        ValueError: the address is taken or needs keys.

    Example:
        >>> from pathlib import Path
        >>> from aero.private import serve
        >>> from aero.private.parties.party import PartyJob
        >>> from aero.private.settings import PrivateSettings
        >>> serve(PartyJob(Path("exported"), PrivateSettings(), "0.0.0.0:7700"), print)
        ... # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ValueError: private: 0.0.0.0:7700 is not this machine's loopback, so --keys must be ...
    """
    check_security(job)
    with temporary_folder() as folder, listen(job.address) as listener:
        server = _Server(
            job, on_event, private_command("aero.private.parties.one_party_worker", python), folder
        )
        try:
            asyncio.run(server.serve(listener, once=once))
        except PartyError as error:
            text = str(error).removeprefix("private: ")
            raise PartyError(f"private: {text}{last_words(server.log)}") from error
        finally:
            server.worker.end()


@dataclass(eq=False)
class _Client:
    """One that said a proper hello."""

    channel: Channel
    request: dict[str, int]
    place: int = 1
    watching: asyncio.Task[None] = field(init=False)


class _Server:
    def __init__(
        self, job: PartyJob, on_event: Callable[[Event], None], command: list[str], folder: Path
    ) -> None:
        self.log = job.log or folder / "worker.log"
        self._job, self._on_event, self._command = job, on_event, command
        self._description = read_description(job.folder)
        self._queries = _Queries(job)
        self._own: asyncio.Future[dict[str, Any]] | None = None  # the server's hello
        self._strangers: set[asyncio.Task[None]] = set()
        self._queue: list[_Client] = []
        self._busy = self._served = False
        self._refused, self._last_refusal = 0, -_REFUSALS_SECONDS
        self.worker = self._new_worker()

    def _new_worker(self) -> Worker:
        return Worker(self._command, {"party": "server", **self._job.to_dict()}, self.log)

    async def serve(self, listener: socket.socket, *, once: bool) -> None:
        """Serves clients; returns after one with `once`."""
        host, port = listener.getsockname()[:2]
        self._on_event(Listening(shown_address(host, port)))
        self._own = asyncio.get_running_loop().create_future()
        accepting = asyncio.create_task(self._accept(listener))
        try:
            terms = await first_report(self.worker, self._job.limits.ready)
            self._own.set_result(hello("server", terms))
            while True:
                client = await self._next_client(once=once)
                error = await self._serve_one(client)
                if once:
                    if error is not None:
                        raise error
                    return
                await self._renew_worker()
        finally:
            tasks = [accepting, *self._strangers, *(each.watching for each in self._queue)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for each in self._queue:
                await each.channel.close(failure=PartyError("stopped"), where="in the queue")

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if len(self._strangers) >= _MOST_STRANGERS:  # others wait in the system's queue
                await asyncio.wait(self._strangers, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                connection, _ = await loop.sock_accept(listener)
            except OSError:  # it left at once, or this process has too many files open
                await asyncio.sleep(_POLL_SECONDS)
                continue
            task = asyncio.create_task(self._meet(connection))
            self._strangers.add(task)
            task.add_done_callback(self._strangers.discard)

    async def _meet(self, connection: socket.socket) -> None:
        """From a stranger to a client in the queue."""
        seconds = self._job.limits.hello
        try:
            channel = await accept(connection, self._job.security, seconds)
        except Exception as error:
            connection.close()
            self._refuse(error)
            return
        try:
            client = _Client(channel, await within(seconds, self._agree(channel)))
            if len(self._queue) >= _MOST_WAITING:
                raise PartyError(f"{_MOST_WAITING} clients wait already")
            self._queue.append(client)
            client.watching = asyncio.create_task(self._watch(client))
            self._tell_places()
        except Exception as error:
            self._refuse(error)
            told = error if isinstance(error, PartyError) else PartyError("no hello came in time")
            await channel.close(failure=told, where="in the handshake")

    async def _agree(self, channel: Channel) -> dict[str, int]:
        """A client's request, after the terms of both agreed."""
        assert self._own is not None
        own = await asyncio.shield(self._own)
        _, theirs = await channel.next_message(self._job.limits.hello, "hello")
        channel.post(hello=own)
        check_hello(own, theirs, "client")
        length, new_tokens = checked_request(theirs.get("request"), self._description)
        channel.beat()
        return {"prompt_length": length, "new_tokens": new_tokens}

    async def _watch(self, client: _Client) -> None:
        """Takes a client that leaves, or says anything but that it lives, out of the queue."""
        try:
            while True:
                await client.channel.next_message(self._job.limits.silence, "alive")
        except PartyError as error:
            self._queue.remove(client)
            self._tell_places()
            self._refuse(error)
            await client.channel.close(failure=error, where="in the queue")

    def _tell_places(self) -> None:
        for index, client in enumerate(self._queue):
            place = index + 1 + self._busy
            if place != client.place:
                client.place = place
                client.channel.post(place=place)

    async def _next_client(self, *, once: bool) -> _Client:
        limit = self._job.limits.connect
        end = time.monotonic() + limit
        while not self._queue:
            if once and time.monotonic() > end:
                raise PartyError(f"no client came within {limit:g} s")
            await asyncio.sleep(_POLL_SECONDS)
            try:
                self.worker.check()
            except PartyError:
                if once or not self._served:
                    raise
                await self._renew_worker()
        self._busy = True
        client = self._queue.pop(0)
        client.watching.cancel()
        await asyncio.gather(client.watching, return_exceptions=True)
        self._tell_places()
        return client

    async def _serve_one(self, client: _Client) -> PartyError | None:
        """Computes with a client; returns the failure, if there is one."""
        channel, request = client.channel, client.request
        self._on_event(Client(channel.who, **request))
        try:
            try:
                self._queries.count(channel.who, request["new_tokens"])
                channel.post(go=True)
            except PartyError as error:
                await channel.close(failure=error, where="in the queue")
                raise
            most = most_sent(self._description, request, self._job.settings)
            await supervise(
                self.worker, channel, self._job.limits, self._on_event, request, most and most[1]
            )
        except Exception as error:  # whatever it is, the next client is served
            self._on_event(Lost(one_line(error)))
            return error if isinstance(error, PartyError) else PartyError(type(error).__name__)
        finally:
            self._busy, self._served = False, True
        self._on_event(Served())
        return None

    async def _renew_worker(self) -> None:
        """A worker for the next client; waits where this machine has no room for one now."""
        while True:
            self.worker.end()
            try:
                self.worker = self._new_worker()
                await first_report(self.worker, self._job.limits.ready)
            except (PartyError, OSError) as error:
                self._on_event(Lost(one_line(error)))
                await asyncio.sleep(_RENEW_SECONDS)
            else:
                return

    def _refuse(self, error: Exception) -> None:
        self._refused += 1
        if time.monotonic() - self._last_refusal >= _REFUSALS_SECONDS:
            told = Refused(one_line(error), self._refused)
            self._refused, self._last_refusal = 0, time.monotonic()
            self._on_event(told)


class _Queries:
    """How many tokens each client has had, also of servers with the same keys before this one."""

    def __init__(self, job: PartyJob) -> None:
        self._most = job.queries
        self._path = None if job.security is None else job.security.keys / "queries.json"
        self._counts: dict[str, int] = {}
        if self._path is not None and self._path.exists():
            counts = read_json(self._path)
            self._counts = checked(counts, dict.fromkeys(counts, int), str(self._path))

    def count(self, who: str, tokens: int) -> None:
        """Counts a request before it is computed.

        Raises:
            PartyError: the client has had as many as it may.
        """
        had = self._counts.get(who, 0)
        if self._most is not None and had + tokens > self._most:
            raise PartyError(
                f"new_tokens must be at most the {max(0, self._most - had)} that are left to this "
                f"client of {self._most}, got {tokens}"
            )
        self._counts[who] = had + tokens
        if self._path is not None:
            write_bytes_atomically(self._path, json.dumps(self._counts).encode())
