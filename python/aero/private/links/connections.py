"""Connections between the parties: where the server listens, and channels of those that come."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
import time
from collections.abc import Callable
from typing import Any

from aero.private.links.channel import FRAME_BYTES, Channel, abort, within
from aero.private.links.keys import Security
from aero.private.party_errors import PartyError
from aero.reading import one_line

_RETRY_SECONDS = 0.2
_POLL_SECONDS = 0.05
_HANDSHAKE = b"\x16"  # of TLS's records: kind, version, length
_MOST_RECORD_BYTES = 5 + (1 << 14)
_AT_ONCE = (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; port 0 is any free one.

    Raises:
        ValueError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port[:6]) > 65535:
        raise ValueError(f"private: address must be HOST:PORT, got {text!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def shown_address(host: str, port: int) -> str:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(address: str) -> socket.socket:
    """Listens for clients; `getsockname()` tells a port that the system chose.

    Raises:
        ValueError: the port is taken, or the address is not this machine's.
    """
    host, port = parse_address(address)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise ValueError(f"private: cannot listen on {address}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


async def accept(
    connection: socket.socket,
    security: Security | None,
    seconds: float,
    on_speaking: Callable[[], None] = lambda: None,
    third: str | None = None,
) -> Channel:
    """The channel to a client, or to the third party, that has connected.

    Args:
        connection: of it; closed where it becomes no channel.
        security: of the server; None: neither encrypted nor authenticated.
        seconds: that the client's first message of TLS and all of TLS may take.
        on_speaking: called when that first message is there.
        third: what the party of `Security.third` is, where it may come; without `security` it
            comes as a client, and its hello says who it is.

    Raises:
        PartyError: it does not speak TLS, or its certificate is not one of the known ones.
    """
    try:
        if security is None:
            return await _opened(connection, None, third)
        await within(seconds, _first_record(connection))
        on_speaking()
        return await within(seconds, _opened(connection, security, third))
    except BaseException as error:
        connection.close()
        if isinstance(error, asyncio.TimeoutError):
            raise PartyError(f"no certificate of the client came within {seconds:g} s") from error
        if isinstance(error, OSError):  # of TLS too
            raise PartyError(f"a client without a known certificate: {_words(error)}") from error
        raise


async def _first_record(connection: socket.socket) -> None:
    """Waits until a ClientHello is there as a whole, and leaves it there.

    TLS takes 256 KiB for a connection: not before somebody speaks.
    """
    loop, readable = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(connection, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(connection)
    while True:
        start = connection.recv(_MOST_RECORD_BYTES, socket.MSG_PEEK)
        if not start.startswith(_HANDSHAKE):
            raise ConnectionError("it left" if not start else "it does not speak TLS")
        if len(start) >= 5 + int.from_bytes(start[3:5], "big"):
            return
        await asyncio.sleep(_POLL_SECONDS)


async def _opened(
    connection: socket.socket, security: Security | None, third: str | None
) -> Channel:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(FRAME_BYTES)
    protocol = asyncio.StreamReaderProtocol(reader)
    host = str(connection.getpeername()[0])
    connection.setsockopt(*_AT_ONCE)
    context = None if security is None else security.context(server=True)
    transport, _ = await loop.connect_accepted_socket(lambda: protocol, connection, ssl=context)
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    who = _known(writer, host, security)
    peer = "client"
    if security is not None and who == security.third_party:
        if third is None:
            abort(writer)
            raise PartyError("the third party came, whom this one is to go to")
        peer = third
    return Channel(reader, writer, peer, who, dialled=False)


async def connect(
    address: str,
    security: Security | None,
    seconds: float,
    while_waiting: Callable[[], None],
    peer: str = "server",
    *,
    third: bool = False,
) -> Channel:
    """Connects to the server, or to another party, which may start later than this one.

    Args:
        address: HOST:PORT.
        security: of the client; None: neither encrypted nor authenticated.
        seconds: until it must be there.
        while_waiting: called several times a second; an exception of it ends the wait.
        peer: who is there.
        third: that party has the certificate of `Security.third`.

    Raises:
        PartyError: nobody listened there, or its certificate is not the known one.
    """
    host, port = parse_address(address)
    end = time.monotonic() + seconds
    tls: dict[str, Any] = {}
    if security is not None:  # names are not checked: the certificate itself is
        tls = {"ssl": security.context(server=False), "server_hostname": ""}
    while True:
        while_waiting()
        try:
            opened = asyncio.open_connection(host, port, limit=FRAME_BYTES, **tls)
            reader, writer = await within(min(seconds, 10.0), opened)
            connection = writer.get_extra_info("socket")
            if security is None and connection.getsockname() == connection.getpeername():
                # Where nobody listens the system may give that very port to this end.
                abort(writer)
                raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
            if connection is not None:  # else the server has closed already
                connection.setsockopt(*_AT_ONCE)
            who = _known(writer, host, security)
            if security is not None and (who == security.third_party) != third:
                abort(writer)
                raise PartyError(f"private: at {address} is another party than the {peer}")
            return Channel(reader, writer, peer, who, dialled=True)
        except ssl.SSLError as error:
            raise PartyError(
                f"private: the {peer} at {address} has another certificate than the known one: "
                f"{_words(error)}"
            ) from error
        except (OSError, asyncio.TimeoutError) as error:
            if time.monotonic() > end:
                raise PartyError(
                    f"private: no {peer} at {address} within {seconds:g} s: {_words(error)}"
                ) from error
            await asyncio.sleep(_RETRY_SECONDS)


def _known(writer: asyncio.StreamWriter, host: str, security: Security | None) -> str:
    """Who is at the other end: the fingerprint of a known certificate, without TLS the host."""
    if security is None:
        return host
    certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    try:
        return security.checked(certificate)
    except PartyError:
        abort(writer)
        raise


def _words(error: BaseException) -> str:
    code = getattr(error, "errno", None)  # asyncio's own words are "Connect call failed"
    reason = os.strerror(code) if isinstance(error, ConnectionError) and code else str(error)
    return one_line(reason or type(error).__name__, 200)
