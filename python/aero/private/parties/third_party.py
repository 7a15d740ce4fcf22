"""How a third party, the helper, comes into a client's session where three compute.

The server's "go" names the session, and nobody else can guess the name. With it the client goes to
the helper, which goes with it to the server that it was started for, and to no other. So the server
connects nowhere, and a session begins only where all three know each other.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from aero.private.links.channel import Channel
from aero.private.links.connections import connect
from aero.private.links.keys import Security, own_fingerprint
from aero.private.parties.passes import Request
from aero.private.parties.terms import Hello, check_hello
from aero.private.party_errors import PartyError

_Result = TypeVar("_Result")


def new_session() -> str:
    """The name of a session."""
    return secrets.token_urlsafe(16)


def three_party_terms(
    terms: Mapping[str, object], security: Security | None, *, helper: bool
) -> dict[str, object]:
    """Terms with the helper's fingerprint: client and server must know the same one.

    Args:
        terms: of this party's worker.
        security: of this party.
        helper: whether this party is it.
    """
    if security is None:
        return {**terms, "helper": None}
    who = own_fingerprint(security.keys) if helper else security.third_party
    return {**terms, "helper": who}


async def while_alive(
    work: Coroutine[Any, Any, _Result], channel: Channel, silence: float
) -> _Result:
    """Does some work while another party only says that it lives.

    Raises:
        PartyError: that party left, was silent or said anything else; the work is given up.
    """
    watching = asyncio.create_task(channel.wait_for_traffic(silence))
    working = asyncio.create_task(work)
    try:
        await asyncio.wait({watching, working}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        watching.result()
        raise channel.foreign("traffic of SPU before the run")
    finally:
        for task in (watching, working):
            task.cancel()
        await asyncio.gather(watching, working, return_exceptions=True)


class Meeting:
    """The session that the server's helper may join, and the one who has."""

    def __init__(self) -> None:
        self._expected: tuple[str, Request, list[Channel]] | None = None
        self._came = asyncio.Event()

    async def wait(self, session: str, request: Request, channels: list[Channel]) -> None:
        """Adds the helper's channel when it comes; nobody is expected before and after.

        Args:
            session: its name.
            request: of the client, which the helper has heard too.
            channels: of the run.
        """
        self._expected, self._came = (session, request, channels), asyncio.Event()
        try:
            await self._came.wait()
        finally:
            self._expected = None

    def join(self, channel: Channel, session: str, request: Request) -> None:
        """The helper has come.

        Raises:
            PartyError: nobody waits for it, or the client asked it for something else.
        """
        name, asked, channels = self._expected or ("", request, [])
        if not name or not hmac.compare_digest(session.encode(), name.encode()):
            raise PartyError("no client of this session waits for the helper")
        if request != asked:
            raise PartyError(f"the request must be {asked} as here, got {request} from the helper")
        self._expected = None
        channels.append(channel)
        self._came.set()


async def go_to_server(
    own: Hello,
    address: str,
    security: Security | None,
    seconds: float,
    while_waiting: Callable[[], None],
    channels: list[Channel],
) -> None:
    """Adds the helper's channel to its server, which is to agree to the session.

    Args:
        own: the helper's hello, with the client's request and its session.
        address: of the server.
        security: of the helper.
        seconds: that the server may give no sign of life.
        while_waiting: called several times a second; an exception of it ends the wait.
        channels: of the run.

    Raises:
        PartyError: the server is not there, or does not wait for this session.
    """
    channel = await connect(address, security, seconds, while_waiting, third=True)
    channels.append(channel)
    channel.post(hello=own.to_dict())
    _, theirs = await channel.next_message(seconds, "hello")
    check_hello(own, theirs, "server")
    channel.beat()
    name = "alive"
    while name != "go":
        name, _ = await channel.next_message(seconds, "go", "alive")
