"""The server's side, and the helper's: clients one after the other, from a port for anybody.

Whatever comes from outside ends one connection. A stranger has so many seconds to show a known
certificate and to say a whole hello; only then it stands in the queue, and only the first of the
queue meets a worker.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import socket
import time
from collections.abc import Callable
from pathlib import Path

from aero.network.files import read_description
from aero.private.compute.calls import Party
from aero.private.environment import private_command
from aero.private.links.channel import Channel, within
from aero.private.links.connections import accept, listen, shown_address
from aero.private.parties import third_party
from aero.private.parties.entrance import ClientInLine, Places, Stranger, Strangers
from aero.private.parties.events import Client, Event, Listening, Lost, Served
from aero.private.parties.interrupts import run_interruptibly
from aero.private.parties.party import PartyJob, check_security, last_words
from aero.private.parties.passes import Passes, Request
from aero.private.parties.queries import Queries
from aero.private.parties.refusals import Refusals
from aero.private.parties.slices import sliced_request
from aero.private.parties.supervision import bound_of, supervise
from aero.private.parties.terms import check_hello, checked_request, hello
from aero.private.parties.worker_pipe import Worker, first_report
from aero.private.party_errors import PartyError
from aero.private.temporary import temporary_folder
from aero.reading import one_line

_MOST_STRANGERS = 32  # connections before their hello
_MOST_WAITING = 8
_MOST_SESSION = 64  # characters
_POLL_SECONDS = 0.05
_RENEW_SECONDS = 5.0
_START = "at the start of the run"


def serve(
    job: PartyJob,
    on_event: Callable[[Event], None],
    python: Path | None = None,
    *,
    once: bool = False,
) -> None:
    """Serves clients until this is interrupted.

    Args:
        job: the server's, or the helper's.
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
            run_interruptibly(server.serve(listener, once=once))
        except PartyError as error:
            text = str(error).removeprefix("private: ")
            raise PartyError(f"private: {text}{last_words(server.log)}") from error
        finally:
            server.worker.end()


class _Server:
    def __init__(
        self, job: PartyJob, on_event: Callable[[Event], None], command: list[str], folder: Path
    ) -> None:
        self.log = job.log or folder / "worker.log"
        self._job, self._on_event, self._command = job, on_event, command
        self._three = job.settings.parties == 3
        self._meeting_helper = third_party.Meeting()
        self._description = read_description(job.folder)
        self._queries = Queries(job)
        self._own = hello(job.party.word, {})  # its terms come from the worker
        self._refusals = Refusals(on_event)
        self._strangers = Strangers(_MOST_STRANGERS, job.strangers, self._refuse_crowd)
        self._places = Places()
        self._meeting: set[asyncio.Task[None]] = set()
        self._queue: list[ClientInLine] = []
        self._busy = self._served = self._used = False
        self.worker = self._new_worker()

    def _new_worker(self) -> Worker:
        return self._job.start_worker(self._command, self.log)

    async def serve(self, listener: socket.socket, *, once: bool) -> None:
        """Serves clients; returns after one with `once`."""
        host, port = listener.getsockname()[:2]
        self._on_event(Listening(shown_address(host, port)))
        tasks = [asyncio.create_task(self._refusals.keep_telling())]
        try:
            terms = await first_report(self.worker, self._job.limits.ready)
            party, security = self._job.party, self._job.security
            if self._three:
                terms = third_party.three_party_terms(terms, security, helper=party is Party.HELPER)
            self._own = hello(party.word, terms)
            tasks.append(asyncio.create_task(self._accept(listener)))
            while True:
                client = await self._next_client(once=once)
                error = await self._serve_one(client)
                if once:
                    if error is not None:
                        raise error
                    return
                if self._used:
                    await self._renew_worker()
        finally:
            tasks += [*self._meeting, *(each.watching for each in self._queue)]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._refusals.tell()
            for each in self._queue:
                await each.channel.close(failure=PartyError("stopped"), where="in the queue")

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                connection, (host, port, *_) = await loop.sock_accept(listener)
            except OSError:  # it left at once, or this process has too many files open
                await asyncio.sleep(_POLL_SECONDS)
                continue
            meet = functools.partial(self._meet, connection, shown_address(host, port))
            task = self._strangers.admit(host, meet)
            self._meeting.add(task)
            task.add_done_callback(self._meeting.discard)
            await asyncio.sleep(0)  # many that come at once do not keep others from their turn

    async def _meet(self, connection: socket.socket, address: str, stranger: Stranger) -> None:
        """Turns a stranger into a client in the queue, or takes the helper to who waits for it."""
        limits, security = self._job.limits, self._job.security
        third = Party.HELPER.word if self._waits_for_helper else None
        try:
            channel = await accept(connection, security, limits.hello, stranger.speak, third)
        except Exception as error:
            self._refusals.add(stranger.host, error)
            return
        placed = False
        try:
            if security is not None:
                await self._places.take(channel.who, limits.hello)
                placed = True
                self._strangers.forget(stranger)
            request, session = await self._agree(channel)
            if channel.peer == Party.HELPER.word:
                self._meeting_helper.join(channel, session, request)
            else:
                self._line_up(ClientInLine(channel, address, request, session))
        except Exception as error:
            self._refusals.add(stranger.host, error, channel.who)
            told = error if isinstance(error, PartyError) else PartyError(type(error).__name__)
            await channel.close(failure=told, where="in the handshake")
            if placed:
                self._places.leave(channel.who)
        except BaseException:
            channel.drop()
            raise

    @property
    def _waits_for_helper(self) -> bool:
        return self._three and self._job.party is Party.SERVER

    def _line_up(self, client: ClientInLine) -> None:
        if len(self._queue) >= _MOST_WAITING:
            raise PartyError(f"{_MOST_WAITING} clients wait already")
        self._queue.append(client)
        client.watching = asyncio.create_task(self._watch(client))
        self._tell_places()

    async def _agree(self, channel: Channel) -> tuple[Request, str]:
        """A client's request and its session, after the terms of both agreed."""
        _, theirs = await channel.next_message(self._job.limits.hello, "hello")
        channel.post(hello=self._own.to_dict())
        helper = Party.HELPER.word
        if self._job.security is None and self._waits_for_helper and theirs["role"] == helper:
            channel.peer = helper
        check_hello(self._own, theirs, channel.peer)
        request = checked_request(theirs.get("request"), self._description)
        session = theirs.get("session", "")
        if len(session) > _MOST_SESSION:
            raise channel.foreign(f"a session of {len(session)} characters")
        if channel.peer != helper:
            self._queries.check(channel.who, request.all_tokens)
        channel.beat()
        if channel.peer != helper:
            job, further = self._job, self._job.party is Party.SERVER
            request = await asyncio.to_thread(
                sliced_request, request, self._description, job.settings, job.memory_bytes,
                further=further,
            )  # fmt: skip
            channel.post(slices=request.largest_product)
        return request, session

    async def _watch(self, client: ClientInLine) -> None:
        """Takes a client that leaves, or says anything but that it lives, out of the queue."""
        try:
            while True:
                await client.channel.next_message(self._job.limits.silence, "alive")
        except PartyError as error:
            self._queue.remove(client)
            self._tell_places()
            self._refusals.add(client.host, error, client.channel.who)
            await client.channel.close(failure=error, where="in the queue")
            self._places.leave(client.channel.who)

    def _tell_places(self) -> None:
        for index, client in enumerate(self._queue):
            place = index + 1 + self._busy
            if place != client.place:
                client.place = place
                client.channel.post(place=place)

    async def _next_client(self, *, once: bool) -> ClientInLine:
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

    async def _serve_one(self, client: ClientInLine) -> PartyError | None:
        """Computes with a client; returns the failure, if there is one."""
        channel, request, limits = client.channel, client.request, self._job.limits
        told, count = (channel.who, client.address), request.sequences
        self._on_event(Client(*told, request.prompt_length, request.new_tokens, count))
        passes = Passes(self._description["context_length"], request)
        sliced = dataclasses.replace(self._job.settings, largest_product=request.largest_product)
        bound = bound_of(self._description, sliced, self._job.party, count)
        channels = [channel]
        try:
            await self._begin(client, channels)
            self._used = True
            try:
                await supervise(self.worker, channels, limits, self._on_event, passes, bound)
            finally:
                left = request.all_tokens - count * len(passes.rows)
                self._queries.give_back(channel.who, left)
        except Exception as error:  # whatever it is, the next client is served
            self._on_event(Lost(one_line(error), *told))
            return error if isinstance(error, PartyError) else PartyError(type(error).__name__)
        finally:
            self._busy, self._served = False, True
            for each in channels:
                self._places.leave(each.who)
        self._on_event(Served(*told))
        return None

    async def _begin(self, client: ClientInLine, channels: list[Channel]) -> None:
        """Waits for a client's SPU to speak. Until then the worker knows nothing of it.

        Args:
            client: whose turn it is.
            channels: of the run; the third party's is added where there is one.

        Raises:
            PartyError: the client has no tokens left, or somebody left; the others are told.
        """
        who, limits, tokens = client.channel.who, self._job.limits, client.request.all_tokens
        told: PartyError | None = PartyError("stopped")  # other errors name this party's files
        try:
            self._queries.check(who, tokens)
            await within(limits.stage, self._start(client, channels))
            self._queries.count(who, tokens)
            told = None
        except asyncio.TimeoutError as error:
            told = PartyError(f"no progress for {limits.stage:g} s")
            raise told from error
        except PartyError as error:
            told = error
            raise
        finally:
            if told is not None:
                await asyncio.gather(*(each.close(failure=told, where=_START) for each in channels))

    async def _start(self, client: ClientInLine, channels: list[Channel]) -> None:
        """All parties of a session come together, and the client's SPU speaks."""
        job, session, silence = self._job, client.session, self._job.limits.silence
        if job.helps is None:
            session = third_party.new_session()
        else:
            own = self._own.in_session(session, client.request)
            going = third_party.go_to_server(
                own, job.helps, job.security, silence, self.worker.check, channels
            )
            await third_party.while_alive(going, client.channel, silence)
        client.channel.post(go=session)
        if self._waits_for_helper:
            waiting = self._meeting_helper.wait(session, client.request, channels)
            await third_party.while_alive(waiting, client.channel, silence)
            channels[-1].post(go=session)
        await client.channel.wait_for_traffic(silence)

    async def _renew_worker(self) -> None:
        """A worker for the next client; waits where this machine has no room for one now."""
        while True:
            self.worker.end()
            try:
                self.worker = self._new_worker()
                await first_report(self.worker, self._job.limits.ready)
                self._used = False
            except (PartyError, OSError) as error:
                self._on_event(Lost(one_line(error)))  # the worker
                await asyncio.sleep(_RENEW_SECONDS)
            else:
                return

    def _refuse_crowd(self, host: str) -> None:
        self._refusals.add(host, "too many connections, and this one was the oldest silent one")
