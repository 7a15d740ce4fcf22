"""Many strangers at a server, and a few known clients who take more than their place."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from aero.private.parties.entrance import Stranger, Strangers

from ..pretending import LIMITS, People, Served, client_hello, received

# `make private-test` sends many times as many.
STRANGERS = int(os.environ.get("AERO_FUZZ_MESSAGES", "400"))
QUICK = dataclasses.replace(LIMITS, hello=2.0)

# The header of a handshake's record, and the start of a ClientHello that does not go on.
PART_OF_A_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(20)


@contextlib.contextmanager
def held(server: Served, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
    """Connections that send something, say no more, and stay."""
    with contextlib.ExitStack() as opened:
        connections = []
        for _ in range(count):
            connections.append(opened.enter_context(server.connect()))
            connections[-1].sendall(sent)
        yield connections


@pytest.mark.parametrize("sent", [b"", PART_OF_A_HELLO], ids=["silent", "half a ClientHello"])
def test_an_honest_client_is_served_while_200_slow_ones_of_its_address_stay(
    serving: Any, people: People, sent: bytes
) -> None:
    server = serving("ann")
    with held(server, 200, sent):
        server.ask(security=people.security("ann", "server"))
        server.wait_for("served")


def test_without_keys_too_slow_ones_make_room(serving: Any) -> None:
    server = serving()
    with held(server, 200, struct.pack("!II", 0, 60_000)):
        server.ask()
        server.wait_for("served")


def who_stay(arrivals: list[tuple[str, bool]], most: int, most_of_one: int) -> list[int]:
    """The numbers of those that are not sent away, of hosts and whether they speak at once."""

    async def arrive() -> list[int]:
        dropped: list[str] = []
        strangers = Strangers(most, most_of_one, dropped.append)
        tasks = []
        for host, speaks in arrivals:
            meeting: list[Stranger] = []

            async def meet(stranger: Stranger, kept: list[Stranger] = meeting) -> None:
                kept.append(stranger)
                await asyncio.sleep(60)

            tasks.append(strangers.admit(host, meet))
            await asyncio.sleep(0)
            meeting[0].spoke = speaks
        await asyncio.sleep(0)
        staying = [number for number, task in enumerate(tasks) if not task.done()]
        assert len(staying) + len(dropped) == len(arrivals)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return staying

    return asyncio.run(arrive())


def test_the_oldest_silent_stranger_of_an_address_makes_room() -> None:
    assert who_stay([("192.0.2.1", False)] * 5, most=9, most_of_one=3) == [2, 3, 4]
    spoken = [("192.0.2.1", speaks) for speaks in (True, False, True, False, True)]
    assert who_stay(spoken, most=9, most_of_one=3) == [0, 2, 4]
    assert who_stay([("192.0.2.1", True)] * 4, most=9, most_of_one=3) == [1, 2, 3]


def test_where_all_are_too_many_the_address_with_most_makes_room() -> None:
    arrivals = [("192.0.2.1", True), *[("192.0.2.2", True)] * 3, ("192.0.2.3", False)]
    assert who_stay(arrivals, most=4, most_of_one=3) == [0, 2, 3, 4]


def test_an_ipv6_host_is_its_network_of_64_bits() -> None:
    arrivals = [(f"2001:db8::{number}", True) for number in range(1, 5)]
    assert who_stay([*arrivals, ("2001:db8:0:1::1", True)], most=9, most_of_one=2) == [2, 3, 4]


def test_a_stranger_has_seconds_for_each_step_and_not_more(serving: Any, people: People) -> None:
    server = serving("ann", limits=dataclasses.replace(LIMITS, hello=1.0))
    ann = people.security("ann", "server").context(server=False)
    silent, half = server.connect(), server.connect()
    half.sendall(PART_OF_A_HELLO)
    known = ann.wrap_socket(server.connect())  # it says no hello
    whole = server.connect()  # a ClientHello, and no certificate after it
    begun = ann.wrap_bio(ssl.MemoryBIO(), out := ssl.MemoryBIO())
    with contextlib.suppress(ssl.SSLWantReadError):
        begun.do_handshake()
    whole.sendall(out.read())
    for slow in (silent, half, known, whole):
        with slow, contextlib.suppress(ConnectionResetError):
            slow.settimeout(20)
            received(slow)
    refused = server.wait_for("refused")
    assert refused["reason"].endswith("within 1 s") or "for 1 s" in refused["reason"]
    server.ask(security=people.security("ann", "server"))


def test_connections_that_made_room_are_closed(serving: Any, people: People) -> None:
    server = serving("ann", strangers=3)
    with held(server, 20, PART_OF_A_HELLO) as connections:
        for gone in connections[:17]:
            with contextlib.suppress(ConnectionResetError):
                assert gone.recv(1) == b""
        connections[-1].settimeout(0.2)
        with pytest.raises(TimeoutError):
            connections[-1].recv(1)
    assert server.wait_for("refused")["address"] == "127.0.0.1"


def test_a_known_client_has_one_place_however_often_it_connects(
    serving: Any, people: People
) -> None:
    server = serving("ann", "bob", limits=QUICK, strangers=20)
    ann = people.security("ann", "server")
    with contextlib.ExitStack() as opened:
        greedy = [opened.enter_context(server.say_hello(ann)) for _ in range(12)]
        server.wait_for("client")
        assert b"this client has another connection" in received(greedy[-1])
        refused = server.wait_for("refused")
        assert refused["who"] == people.fingerprint["ann"]
        greedy[0].close()
        server.ask(security=people.security("bob", "server"))
    server.wait_for("served")
    assert [event["event"] for event in server.events].count("client") <= 3


def test_a_client_that_comes_again_at_once_is_served_again(serving: Any, people: People) -> None:
    server = serving("ann")
    for _ in range(3):
        server.ask(security=people.security("ann", "server"))
    server.wait_for("served", 3)


def test_who_has_no_tokens_left_is_refused_before_the_queue(serving: Any, people: People) -> None:
    server = serving("ann", "bob", queries=4)
    with server.say_hello(people.security("bob", "server")):
        server.wait_for("client")  # and stays
        with server.say_hello(people.security("ann", "server"), new_tokens=5) as ann:
            assert b"at most the 4 that are left to this client of 4, got 5" in received(ann)


def test_a_worker_that_nobody_used_is_not_renewed(serving: Any) -> None:
    server = serving(queries=3)
    for number in range(1, 6):  # each leaves at its turn
        with server.connect() as client:
            client.sendall(client_hello())
            server.wait_for("client", number)
        server.wait_for("lost", number)
    server.ask(new_tokens=1)
    server.wait_for("served")
    time.sleep(0.5)  # in which a new one would start
    assert server.starts() <= 3  # the server's before and after, the client's


def test_a_server_keeps_nothing_of_the_strangers_that_it_met(serving: Any, people: People) -> None:
    server = serving("ann", strangers=5)
    server.ask(security=people.security("ann", "server"))
    start, sockets = server.memory("VmRSS"), server.sockets()
    unknown = people.security("bob", "server").context(server=False)
    with contextlib.ExitStack() as opened:
        for number in range(STRANGERS):
            connection = opened.enter_context(server.connect())
            with contextlib.suppress(OSError):
                match number % 3:
                    case 0:
                        connection.sendall(PART_OF_A_HELLO)
                    case 1:
                        connection.sendall(b"x" * 1000)
                    case 2:
                        opened.enter_context(unknown.wrap_socket(connection)).sendall(b"x" * 1000)
            assert server.sockets() <= sockets + 8
            if number % 100 == 99:
                opened.pop_all().close()
    server.ask(security=people.security("ann", "server"))
    assert server.memory() - start < 30e6  # 10 MB, most of it OpenSSL's own code
    told = [event for event in server.events if event["event"] == "refused"]
    assert len(told) < 20


def test_a_server_ends_at_once_while_a_client_says_nothing(serving: Any) -> None:
    server = serving(limits=dataclasses.replace(LIMITS, silence=300.0))
    with server.connect() as client:
        client.sendall(client_hello())
        server.wait_for("client")
        while b'"go"' not in client.recv(1 << 16):
            pass
        server.process.send_signal(signal.SIGINT)
        server.process.wait(60)  # long before the client's silence is too long
