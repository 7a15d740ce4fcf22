"""How two parties find each other, or do not."""

from __future__ import annotations

import re
import socket
import threading
import time

import pytest

from aero.private.control_channel import accept, connect, listen, parse_address
from aero.private.party_errors import PartyError


def nothing() -> None:
    pass


@pytest.mark.parametrize("address", ["", "7700", "host:", ":7700", "host:seven", "host:70000"])
def test_an_address_without_host_or_port_is_named(address: str) -> None:
    with pytest.raises(ValueError, match=f"address must be HOST:PORT, got '{re.escape(address)}'"):
        parse_address(address)


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1:0") as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ValueError, match=rf"cannot listen on {address}: .*in use"):
            listen(address)


def test_a_server_that_is_not_there_is_named_in_time(unused_address: str) -> None:
    start = time.monotonic()
    said = rf"no server at {unused_address} within 0\.5 s: .*refused"
    with pytest.raises(PartyError, match=said):
        connect(unused_address, 0.5, nothing)
    assert 0.5 <= time.monotonic() - start < 30


def test_a_connection_to_itself_is_no_server(
    unused_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def to_itself(*_: object, **__: object) -> socket.socket:
        one = socket.socket()
        one.bind(("127.0.0.1", 0))
        one.connect(one.getsockname())
        return one

    monkeypatch.setattr(socket, "create_connection", to_itself)
    with pytest.raises(PartyError, match=rf"no server at {unused_address} .*refused"):
        connect(unused_address, 0.3, nothing)


def test_a_client_that_does_not_come_is_named_in_time() -> None:
    start = time.monotonic()
    with (
        listen("127.0.0.1:0") as listener,
        pytest.raises(PartyError, match=r"no client came within 0\.3 s"),
    ):
        accept(listener, 0.3, nothing)
    assert 0.3 <= time.monotonic() - start < 30


def test_a_server_that_starts_later_is_waited_for(unused_address: str) -> None:
    def serve_late() -> None:
        time.sleep(0.5)
        with listen(unused_address) as listener, accept(listener, 60, nothing) as channel:
            channel.send({"late": True})

    server = threading.Thread(target=serve_late)
    server.start()
    with connect(unused_address, 60, nothing) as channel:
        while (message := channel.poll()) is None:
            time.sleep(0.01)
    server.join()
    assert message == {"late": True}


def test_a_wait_ends_with_what_ends_the_party() -> None:
    def ended() -> None:
        raise PartyError("the worker ended")

    with listen("127.0.0.1:0") as listener, pytest.raises(PartyError, match="the worker ended"):
        accept(listener, 60, ended)
    with pytest.raises(PartyError, match="the worker ended"):
        connect("127.0.0.1:9", 60, ended)


def test_messages_arrive_whole_and_in_order_however_long() -> None:
    sent = [{"number": number, "text": "x" * 10**number} for number in range(6)]
    with listen("127.0.0.1:0") as listener:
        client = connect(f"127.0.0.1:{listener.getsockname()[1]}", 5, nothing)
        server = accept(listener, 5, nothing)
    sender = threading.Thread(target=lambda: [client.send(message) for message in sent])
    sender.start()
    received = []
    while len(received) < len(sent):
        message = server.poll()
        if message is not None:
            received.append(message)
    sender.join()
    assert received == sent
    client.close()
    with pytest.raises(PartyError, match="the client closed the connection"):
        while server.poll() is None:
            time.sleep(0.01)
    server.close()
