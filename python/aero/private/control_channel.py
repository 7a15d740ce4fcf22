"""The connection beside SPU's own link: who the parties are, and whether they still live.

JSON messages, one per line, over TCP. SPU's calls block and end the process when the peer has died,
so nothing of this goes over SPU's link.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable
from typing import Any

from aero.private.party_errors import PartyError
from aero.reading import UnreadableFileError, parse_json

Message = dict[str, Any]

_LONGEST_MESSAGE = 1 << 20  # bytes; a peer that sends more is not one of ours
_RETRY_SECONDS = 0.2
_LINGER_SECONDS = 1.0


class ControlChannel:
    """Messages to and from the other party; every wait ends.

    Args:
        connection: connected to the other party; owned by the channel from now on.
        peer: what errors call the other party: "client" or "server".
    """

    def __init__(self, connection: socket.socket, peer: str) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setblocking(False)
        self.peer = peer
        self._connection = connection
        self._received = b""
        self._closed = False

    def __enter__(self) -> ControlChannel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def fileno(self) -> int:
        """The descriptor, for select."""
        return self._connection.fileno()

    @property
    def own_host(self) -> str:
        """The address under which the other party sees this one, unless something translates it."""
        return str(self._connection.getsockname()[0])

    def send(self, message: Message, seconds: float = 5.0) -> None:
        """Sends a message.

        Raises:
            PartyError: the other party has gone or takes nothing for `seconds`.
        """
        self._connection.settimeout(seconds)
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError as error:
            raise PartyError(f"the {self.peer} closed the connection") from error
        finally:
            self._connection.setblocking(False)

    def poll(self) -> Message | None:
        """The next message if it is there.

        Raises:
            PartyError: no further message can come, or what came is none.
        """
        while b"\n" not in self._received:
            if self._closed:
                raise PartyError(f"the {self.peer} closed the connection")
            if len(self._received) > _LONGEST_MESSAGE:
                raise PartyError(f"the {self.peer} does not speak this protocol")
            try:
                self._take(self._connection.recv(65536))
            except BlockingIOError:
                return None
            except OSError as error:
                raise PartyError(f"the {self.peer} closed the connection") from error
        line, self._received = self._received.split(b"\n", 1)
        try:
            message: Message = parse_json(line, "message")
        except UnreadableFileError as error:
            raise PartyError(f"the {self.peer} does not speak this protocol") from error
        return message

    def close(self) -> None:
        """Ends the connection; what was sent still arrives, and the other party sees the end."""
        # Closing with unread messages would reset the connection and lose those on their way.
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)
            self._connection.settimeout(_LINGER_SECONDS)
            end = time.monotonic() + _LINGER_SECONDS
            while time.monotonic() < end and self._connection.recv(65536):
                pass
        self._connection.close()

    def _take(self, received: bytes) -> None:
        self._closed = self._closed or not received
        self._received += received


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; port 0 is any free one.

    Raises:
        ValueError: it is not of that form.

    Example:
        >>> parse_address("127.0.0.1:7700"), parse_address("[::1]:0")
        (('127.0.0.1', 7700), ('::1', 0))
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"private: address must be HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def shown_address(host: str, port: int) -> str:
    """The inverse of `parse_address`.

    Example:
        >>> shown_address("::1", 7700)
        '[::1]:7700'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """Listens for the other party; `getsockname()` tells a port that the system chose.

    Raises:
        ValueError: the port is taken, or the address is not this machine's.
    """
    host, port = parse_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1)
    except OSError as error:
        raise ValueError(f"private: cannot listen on {address}: {error.strerror}") from error


def accept(
    listener: socket.socket, seconds: float, while_waiting: Callable[[], None]
) -> ControlChannel:
    """Waits for the client.

    Args:
        listener: from `listen`.
        seconds: until it must have come.
        while_waiting: called several times a second; what it raises ends the wait.

    Raises:
        PartyError: none came.
    """
    end = time.monotonic() + seconds
    listener.settimeout(_RETRY_SECONDS)
    while True:
        while_waiting()
        try:
            connection, _ = listener.accept()
            return ControlChannel(connection, peer="client")
        except TimeoutError as error:
            if time.monotonic() > end:
                raise PartyError(f"private: no client came within {seconds:g} s") from error


def connect(address: str, seconds: float, while_waiting: Callable[[], None]) -> ControlChannel:
    """Connects to the server, which may start later than the client.

    Args:
        address: HOST:PORT.
        seconds: until it must be there.
        while_waiting: called several times a second; what it raises ends the wait.

    Raises:
        PartyError: nobody listened there.
    """
    host, port = parse_address(address)
    end = time.monotonic() + seconds
    while True:
        while_waiting()
        try:
            connection = socket.create_connection((host, port), timeout=min(seconds, 5.0))
            if connection.getsockname() == connection.getpeername():
                # Where nobody listens the system may give that very port to this end.
                connection.close()
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            return ControlChannel(connection, peer="server")
        except OSError as error:
            if time.monotonic() > end:
                reason = error.strerror or str(error)
                raise PartyError(
                    f"private: no server at {address} within {seconds:g} s: {reason}"
                ) from error
            time.sleep(_RETRY_SECONDS)


def free_port(host: str) -> int:
    """A port of this host that nobody uses at the moment."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as probe:
        return int(probe.getsockname()[1])
