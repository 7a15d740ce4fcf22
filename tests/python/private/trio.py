"""A server and its helper, of their own processes, and the other parties in our hands."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

from aero.private.links.keys import Security
from aero.private.parties.terms import PROTOCOL
from aero.private.settings import PrivateSettings

from .pretending import People, Served, pretending_python, said

ABY3 = PrivateSettings(protocol="aby3")
TERMS = {"exp_squarings": 8, "weights": None, "helper": None}


def hello_of(role: str, **changes: Any) -> dict[str, Any]:
    request = {"prompt_length": 3, "new_tokens": 1}
    return {"protocol": PROTOCOL, "role": role, "terms": TERMS, "request": request, **changes}


class Trio:
    """A server and its helper, of their own processes; clients ask both."""

    def __init__(self, export: Path, people: People | None, folder: Path, *known: str) -> None:
        self._export, self._people, self._known = export, people, known
        self._python = pretending_python(folder)
        self._made: list[Served] = []
        self.server = self.started(security=self.security("server", third="helper"))
        self.helper = self.start_helper()

    def security(self, name: str, *known: str, third: str) -> Security | None:
        """None where nobody is named."""
        found = known or self._known
        return self._people.security(name, *found, third=third) if self._known else None

    def started(self, **job: Any) -> Served:
        self._made.append(Served(self._export, self._python, settings=ABY3, **job))
        return self._made[-1]

    def start_helper(self, address: str = "127.0.0.1:0") -> Served:
        security = self.security("helper", third="server")
        return self.started(address=address, helps=self.server.address, security=security)

    def ask(self, name: str = "ann", third: str = "helper", **job: Any) -> list[dict[str, Any]]:
        security = self.security(name, "server", third=third)
        given = {"settings": ABY3, "helper": self.helper.address, "security": security, **job}
        return self.server.ask(**given)

    def end(self) -> None:
        for each in self._made:
            each.end()


def heard(connection: socket.socket, what: bytes) -> bytes:
    """What a party says up to a word."""
    found = b""
    while what not in found:
        found += (chunk := connection.recv(1 << 16))
        assert chunk, found
    return found


def session_with(server: Served) -> tuple[socket.socket, str]:
    """A client whose turn has come, and its session's name."""
    client = server.connect()
    client.sendall(said(hello=hello_of("client")))
    told = heard(client, b'"}')
    while b'"go"' not in told:
        told = heard(client, b'"}')
    return client, told.partition(b'"go": "')[2].partition(b'"')[0].decode()


def run_of(three: Trio) -> tuple[socket.socket, socket.socket]:
    """A client in a run: its connections to the server and to the helper."""
    client, session = session_with(three.server)
    other = three.helper.connect()
    other.sendall(said(hello=hello_of("client", session=session)))
    heard(other, b'"go"')
    return client, other


def run_with_own_helper(server: Served) -> tuple[socket.socket, socket.socket]:
    """A client and a helper in a run, both in our hands: their connections to the server."""
    client, session = session_with(server)
    helper = server.connect()
    helper.sendall(said(hello=hello_of("helper", session=session)))
    heard(helper, b'"go"')
    return client, helper
