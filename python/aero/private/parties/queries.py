"""How many tokens each client has had, also of servers with the same keys before this one."""

from __future__ import annotations

import json

from aero.internals.atomic_files import write_bytes_atomically
from aero.private.parties.party import PartyJob
from aero.private.party_errors import PartyError
from aero.reading import UnreadableFileError, checked, one_line, read_json


class Queries:
    """The tokens of each client, by fingerprint, or by address without keys.

    Args:
        job: the server's.

    Raises:
        UnreadableFileError: the counts of an earlier server are damaged.
    """

    def __init__(self, job: PartyJob) -> None:
        self._most = job.queries
        self._path = None if job.security is None else job.security.keys / "queries.json"
        self._counts: dict[str, int] = {}
        if self._path is not None and self._path.exists():
            counts = read_json(self._path)
            self._counts = checked(counts, dict.fromkeys(counts, int), str(self._path))
            for who, count in self._counts.items():
                if count < 0:
                    where = f"{self._path}: {one_line(who, 80)}"
                    raise UnreadableFileError(f"{where}: expected at least 0 tokens, got {count}")

    def check(self, who: str, tokens: int) -> None:
        """Checks that a client may have so many more.

        Raises:
            PartyError: the client has had as many as it may.
        """
        had = self._counts.get(who, 0)
        if self._most is not None and had + tokens > self._most:
            raise PartyError(
                f"new tokens must be at most the {max(0, self._most - had)} that are left to this "
                f"client of {self._most}, got {tokens}"
            )

    def count(self, who: str, tokens: int) -> None:
        """Counts a request before it is computed.

        Raises:
            PartyError: as of `check`.
        """
        self.check(who, tokens)
        self._add(who, tokens)

    def give_back(self, who: str, tokens: int) -> None:
        """Takes off what was counted and never computed."""
        if tokens:
            self._add(who, -tokens)

    def _add(self, who: str, tokens: int) -> None:
        self._counts[who] = self._counts.get(who, 0) + tokens
        if self._path is not None:
            write_bytes_atomically(self._path, json.dumps(self._counts).encode())
