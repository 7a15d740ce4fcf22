"""The lines on those who were refused: none is lost, and nobody can fill a log with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aero.private.parties.events import Event, Refused
from aero.reading import one_line

SUMMARY_SECONDS = 10.0
MOST_HOSTS = 16
_OTHERS = "other addresses"


class Refusals:
    """The first refusal of an address is told at once, further ones as a sum every 10 seconds.

    At most 16 addresses have sums of their own; the rest is summed up together.

    Args:
        on_event: called with the last reason, how many there were since the line before, and whose.
    """

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._untold: dict[str, Refused | None] = {}  # by host; None: nothing since its last line

    def add(self, host: str, reason: object, who: str | None = None) -> None:
        """Counts a refusal.

        Args:
            host: whose connection it was.
            reason: in words.
            who: the fingerprint, where it was known.
        """
        told = Refused(one_line(reason), 1, host, who)
        if host not in self._untold:
            if len(self._untold) < MOST_HOSTS:
                self._untold[host] = None
                self._on_event(told)
                return
            told.address = _OTHERS
        before = self._untold.get(told.address)
        told.count += before.count if before else 0
        self._untold[told.address] = told

    def tell(self) -> None:
        """Tells the sums so far. An address of which nothing came meanwhile is forgotten."""
        before, self._untold = self._untold, {}
        for host, told in before.items():
            if told is not None:
                self._untold[host] = None
                self._on_event(told)

    async def keep_telling(self) -> None:
        """Tells the sums from time to time."""
        while True:
            await asyncio.sleep(SUMMARY_SECONDS)
            self.tell()
