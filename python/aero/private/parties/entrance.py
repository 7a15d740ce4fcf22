"""Who may stand before the server: few strangers, few of one address, each known client once."""

from __future__ import annotations

import asyncio
import collections
import ipaddress
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from aero.private.links.channel import Channel, within
from aero.private.links.connections import parse_address
from aero.private.parties.passes import Request
from aero.private.party_errors import PartyError


def network_of(host: str) -> str:
    """Whom an address stands for: itself, of IPv6 the 64 bits that one household or host has."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


@dataclass(eq=False)
class Stranger:
    """A connection that has not shown yet who it is.

    Attributes:
        host: its address without the port.
        spoke: whether its first message came whole. Who has not got so far goes first.
    """

    host: str
    spoke: bool = False
    task: asyncio.Task[None] = field(init=False)

    def speak(self) -> None:
        """Its first message is there."""
        self.spoke = True


class Strangers:
    """The connections of strangers: so many at once, and so many of one address.

    A new one is always let in: it takes the place of the oldest silent one, of its own address or
    else of the address with most. So who holds connections open pushes out nobody but itself.

    Args:
        most: at once.
        most_of_one: of one address at once.
        on_drop: called with the host of one that had to go.
    """

    def __init__(self, most: int, most_of_one: int, on_drop: Callable[[str], None]) -> None:
        self._most, self._most_of_one, self._on_drop = most, most_of_one, on_drop
        self._all: list[Stranger] = []  # the oldest first

    def admit(
        self, host: str, meet: Callable[[Stranger], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        """Meets a stranger in a task of its own, which is cancelled where it must make room."""
        self._make_room(network_of(host))
        stranger = Stranger(host)
        self._all.append(stranger)
        stranger.task = asyncio.create_task(meet(stranger))
        stranger.task.add_done_callback(lambda _: self.forget(stranger))
        return stranger.task

    def forget(self, stranger: Stranger) -> None:
        """It is none any more: known, or gone."""
        if stranger in self._all:
            self._all.remove(stranger)

    def _make_room(self, network: str) -> None:
        of_one = collections.defaultdict(list)
        for each in self._all:
            of_one[network_of(each.host)].append(each)
        crowd = of_one[network]
        if len(crowd) < self._most_of_one:
            if len(self._all) < self._most:
                return
            crowd = max(of_one.values(), key=len)
        leaving = min(crowd, key=lambda each: each.spoke)
        self.forget(leaving)
        leaving.task.cancel()
        self._on_drop(leaving.host)


@dataclass(eq=False)
class ClientInLine:
    """One that said a proper hello.

    Attributes:
        channel: to it.
        address: HOST:PORT of its end.
        request: of it.
        session: at the helper, the one that its server has named.
        place: in the queue.
    """

    channel: Channel
    address: str
    request: Request
    session: str = ""
    place: int = 1
    watching: asyncio.Task[None] = field(init=False)

    @property
    def host(self) -> str:
        """Its address without the port."""
        return parse_address(self.address)[0]


class Places:
    """One place for each known client, from its certificate to the end of its run."""

    def __init__(self) -> None:
        self._taken: dict[str, asyncio.Event] = {}

    async def take(self, who: str, seconds: float) -> None:
        """Takes a client's place; waits while its connection before this one comes to its end.

        Raises:
            PartyError: the client has another connection.
        """
        end = asyncio.get_running_loop().time() + seconds
        while who in self._taken:
            left = end - asyncio.get_running_loop().time()
            try:
                await within(max(0.0, left), self._taken[who].wait())
            except asyncio.TimeoutError:
                raise PartyError("this client has another connection, and may have one") from None
        self._taken[who] = asyncio.Event()

    def leave(self, who: str) -> None:
        """Gives a client's place back; nothing where it has none."""
        left = self._taken.pop(who, None)
        if left is not None:
            left.set()
