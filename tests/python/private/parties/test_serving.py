"""A server that nobody ends from outside, whatever strangers and clients send."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aero.private.parties.party import PartyJob, ask
from aero.private.parties.terms import PROTOCOL
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from ..pretending import LIMITS, Served, client_hello, frame, received, said

# `make private-test` sends 10,000 in each of two tests, which takes a minute each.
MESSAGES = int(os.environ.get("AERO_FUZZ_MESSAGES", "400"))


def test_clients_are_served_one_after_the_other(serving: Any) -> None:
    server = serving()
    for number in (1, 2):
        events = server.ask()
        assert [event["stage"] for event in events if "stage" in event] == ["layer 0", "revealed"]
        server.wait_for("served", number)
    client = server.wait_for("client", 2)
    assert client.pop("address").startswith("127.0.0.1:")
    assert client == {"event": "client", "who": "127.0.0.1", "prompt_length": 3, "new_tokens": 1}


def test_a_second_client_waits_and_hears_its_place(serving: Any) -> None:
    server = serving()
    started, release = threading.Event(), threading.Event()

    def hold(event: dict[str, Any]) -> None:
        if event.get("stage") == "layer 0":
            started.set()
            release.wait(30)

    places: dict[str, list[int]] = {"second": [], "third": []}

    def waiting(name: str) -> Callable[[dict[str, Any]], None]:
        def take(event: dict[str, Any]) -> None:
            if event["event"] == "place":
                places[name].append(event["place"])

        return take

    clients = [threading.Thread(target=server.ask, args=(hold,))]
    clients[0].start()
    assert started.wait(30)
    for name in places:
        clients.append(threading.Thread(target=server.ask, args=(waiting(name),)))
        clients[-1].start()
        end = time.monotonic() + 30
        while not places[name] and time.monotonic() < end:
            time.sleep(0.01)
    release.set()
    for client in clients:
        client.join(60)
        assert not client.is_alive()
    server.wait_for("served", 3)
    assert places["second"][0] == 2 and places["third"] == [3, 2]


def test_a_queue_has_an_end_and_who_leaves_it_makes_room(serving: Any) -> None:
    server = serving()
    holding = []
    for number in range(9):  # the first one is served, and never goes on
        holding.append(connection := server.connect())
        connection.sendall(client_hello())
        if number == 0:
            server.wait_for("client")
        heard = b""
        while number and b'"place"' not in heard:
            heard += (chunk := connection.recv(1 << 16))
            assert chunk, (number, heard)
    refused = server.connect()
    refused.sendall(client_hello())
    assert b"8 clients wait already" in received(refused)
    for connection in (refused, *holding):
        connection.close()
    server.ask()
    server.wait_for("served")


def honest(server: Served, number: int) -> None:
    """The next honest client is served."""
    server.ask()
    server.wait_for("served", number)


STRANGERS: dict[str, bytes] = {
    "200 kB of brackets": b"[" * 200_000,
    "brackets in a message": frame(0, b"[" * 60_000),
    "an empty message again and again": said() * 1000,
    "a line again and again": b"{}\n" * 10_000,
    "nulls": said(hello={"protocol": None, "role": None, "terms": None, "link": None}),
    "a hello of another protocol": client_hello(protocol="aero-private 1"),
    "a server": client_hello(role="server"),
    "other terms": client_hello(terms={"exp_squarings": 5, "\x1b[2J\nserved": 1}),
    "no request": said(hello={"protocol": PROTOCOL, "role": "client", "terms": {}}),
    "true tokens": client_hello(request={"prompt_length": True, "new_tokens": True}),
    "many tokens": client_hello(request={"prompt_length": 3, "new_tokens": 10**15}),
    "a web browser": b"GET / HTTP/1.1\r\nHost: here\r\n\r\n",
    "TLS": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "SPU's protocol": b"PRPC" + struct.pack("!II", 50_000_000, 100) + bytes(1000),
    "a frame of 4 GB": struct.pack("!II", 0, 0xFFFFFFFF) + bytes(1000),
    "traffic before the run": frame(1, bytes(1000)),
}


def test_what_strangers_send_ends_their_connection_alone(serving: Any) -> None:
    server = serving()
    for sent in STRANGERS.values():
        with server.connect() as stranger:
            try:
                stranger.sendall(sent)
                stranger.shutdown(socket.SHUT_WR)
                answer = received(stranger)
            except ConnectionError:  # closed before all was sent
                continue
            assert b'"failed"' in answer
    honest(server, 1)
    reasons = [event["reason"] for event in server.events if event["event"] == "refused"]
    assert reasons and all(reason.isprintable() for reason in reasons)


def test_the_server_never_connects_anywhere(serving: Any) -> None:
    server = serving()
    with socket.create_server(("127.0.0.1", 0)) as named:
        named.settimeout(1.0)
        address = f"127.0.0.1:{named.getsockname()[1]}"
        with server.connect() as client:
            client.sendall(client_hello(link=address))
            client.sendall(frame(1, address.encode()))
            with pytest.raises(TimeoutError):
                named.accept()


CLIENTS: dict[str, bytes] = {
    "hello again": client_hello(),
    "an own go": said(go="x"),
    "the server's stream": frame(2, b"x"),
    "stream 0 again and again": said(alive=True) * 1000,
    "too many streams": b"".join(frame(number, b"x") for number in range(1, 999, 2)),
    "half a frame": struct.pack("!II", 1, 1 << 18) + bytes(1000),
    "not this protocol": b"\xff" * 1000,
    "a failure with line ends": said(failed={"reason": "a\nserved 3 tokens\x1b[2J", "where": "x"}),
    "done before anything": said(done=True) * 2,
    "a read before the run": said(read=1),
    "a read of more than the context": frame(1, b"x") + said(read=1 << 40),
    "a negative read": frame(1, b"x") + said(read=-1),
    "a read of no number": frame(1, b"x") + said(read=True),
    "reads before a pass is over": frame(1, b"x") + said(read=1) * 3,
    "a read of a token beyond those asked for": frame(1, b"x") + said(read=1),
    "a read after the end": frame(1, b"x") + said(read=0) * 2,
}


def run_as_client(server: Served, sent: bytes) -> None:
    """Says a proper hello, waits for its turn, sends the given bytes, and leaves."""
    with server.connect() as client:
        client.sendall(client_hello())
        heard = b""
        while b'"go"' not in heard:
            chunk = client.recv(1 << 16)
            assert chunk, heard
            heard += chunk
        try:
            client.sendall(sent)
        except ConnectionError:
            return
        client.shutdown(socket.SHUT_WR)
        received(client)


def test_what_clients_send_within_a_run_ends_their_session_alone(serving: Any) -> None:
    server = serving()
    for number, sent in enumerate(CLIENTS.values()):
        run_as_client(server, sent)
        assert server.wait_for("lost", number + 1)["reason"].isprintable()
    honest(server, 1)


def test_half_open_connections_hold_the_server_for_seconds_only(serving: Any) -> None:
    server = serving(limits=dataclasses.replace(LIMITS, hello=1.5))
    slow = [server.connect() for _ in range(40)]
    for connection in slow:
        connection.sendall(struct.pack("!II", 0, 60_000))
    honest(server, 1)
    for connection in slow:
        connection.close()


def test_a_client_that_dies_in_the_queue_or_in_a_run_is_forgotten(serving: Any) -> None:
    server = serving()
    first, second = server.connect(), server.connect()
    for connection in (first, second):
        connection.sendall(client_hello())
    server.wait_for("client")
    # A reset, as of a machine that was switched off.
    for connection in (second, first):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    honest(server, 1)


def test_a_client_gets_as_many_tokens_as_it_may(serving: Any) -> None:
    server = serving(queries=3)
    server.ask(new_tokens=2)
    with pytest.raises(PartyError, match="at most the 1 that are left to this client of 3, got 2"):
        server.ask(new_tokens=2)
    server.ask(new_tokens=1)
    with pytest.raises(PartyError, match="at most the 0 that are left"):
        server.ask(new_tokens=1)


def test_the_tokens_of_all_prompts_are_counted_and_given_back(serving: Any) -> None:
    server = serving(queries=9)
    pair = ((1, 4), (2, 5), (3, 6))
    with pytest.raises(PartyError, match="at most the 9 that are left to this client of 9, got 10"):
        server.ask(tokens=pair, new_tokens=5)
    reads = iter([[(7, 8)], []])
    events = server.ask(tokens=pair, new_tokens=4, reads=lambda token: next(reads))
    assert [each["token"] for each in events if each["event"] == "pass"] == [(0, 0), (1, 1)]
    assert server.wait_for("client")["sequences"] == 2
    server.wait_for("served")
    with pytest.raises(PartyError, match="at most the 5 that are left"):
        server.ask(tokens=pair, new_tokens=3)


def test_tokens_that_were_not_computed_are_given_back(serving: Any) -> None:
    server = serving(queries=9)
    reads = iter([[5, 6], [7], []])
    events = server.ask(new_tokens=8, reads=lambda token: next(reads))
    assert [event["index"] for event in events if event["event"] == "pass"] == [0, 1, 2]
    server.wait_for("served")
    with pytest.raises(PartyError, match="at most the 6 that are left to this client of 9, got 7"):
        server.ask(new_tokens=7)
    server.ask(new_tokens=6)


def test_what_a_client_reads_is_held_to_the_context_and_to_what_it_asked_for(
    serving: Any,
) -> None:
    server = serving(queries=40)
    with pytest.raises(PartyError, match="must read 1 to 29 more tokens, got 30"):
        server.ask(new_tokens=8, reads=lambda token: [1] * 30)
    with pytest.raises(PartyError, match="may have 2 tokens in this session"):
        server.ask(new_tokens=2, reads=lambda token: [1])
    honest(server, 1)


def test_a_client_that_fails_to_say_what_it_reads_ends_the_session_alone(serving: Any) -> None:
    server = serving()

    def torn(token: int) -> list[int]:
        raise EOFError("the terminal has gone")

    with pytest.raises(EOFError):
        server.ask(reads=torn)
    assert "the client" in server.wait_for("lost")["reason"]
    honest(server, 1)


def test_another_configuration_is_named_at_both_parties(serving: Any) -> None:
    server = serving()
    with pytest.raises(PartyError) as caught:
        server.ask(settings=PrivateSettings(exp_squarings=5))
    assert "exp_squarings must be 5 as here, got 8 from the server" in str(caught.value)
    reason = server.wait_for("refused")["reason"]
    assert reason == "exp_squarings must be 8 as here, got 5 from the client"


def test_a_prompt_longer_than_the_context_is_refused_by_the_server(serving: Any) -> None:
    server = serving()
    with pytest.raises(PartyError, match="prompt_length must be an integer from 1 to 32, got 33"):
        server.ask(tokens=tuple(range(33)))


def test_off_the_loopback_both_parties_need_keys(export: Path) -> None:
    for address in ("0.0.0.0:7700", "192.0.2.1:7700", "[::]:7700", "example.org:7700"):
        job = PartyJob(export, PrivateSettings(), address, tokens=(1,), new_tokens=1)
        with pytest.raises(ValueError, match="is not this machine's loopback, so --keys"):
            ask(job, print)


class Garbage:
    """Malformed, truncated and replayed messages, made from an honest client's."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._whole = [client_hello(), said(alive=True), said(done=True), frame(1, b"x" * 999)]

    def message(self) -> bytes:
        chance = self._random
        sent = b"".join(chance.choices(self._whole, k=chance.randint(1, 3)))
        match chance.randrange(5):
            case 0:  # flipped
                changed = bytearray(sent)
                for _ in range(chance.randint(1, 8)):
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
                return bytes(changed)
            case 1:  # truncated
                return sent[: chance.randrange(len(sent))]
            case 2:  # replayed
                return sent * chance.randint(2, 20)
            case 3:  # noise behind a header that may fit
                size = chance.randrange(2000)
                return frame(chance.choice([0, 0, 1, 2, 1 << 31]), chance.randbytes(size))
            case _:  # JSON of another shape
                value: Any = chance.choice([None, [], 1e300, "x", {"terms": {}}, [[[]]], -1, True])
                return client_hello(**{chance.choice(["terms", "request", "role"]): value})


def test_garbage_before_the_run_leaves_the_server_as_it_was(serving: Any) -> None:
    server = serving(limits=dataclasses.replace(LIMITS, hello=5.0, silence=2.0))
    honest(server, 1)
    start, garbage = server.memory("VmRSS"), Garbage(1)
    slow: list[socket.socket] = []
    for number in range(MESSAGES):
        connection = server.connect()
        connection.sendall(garbage.message())
        if number % 50 == 0 and len(slow) < 16:
            slow.append(connection)  # it says no more, and does not leave
        else:
            connection.close()
    for connection in slow:
        connection.close()
    honest(server, 2)
    assert server.memory() - start < 100e6


def test_garbage_within_runs_leaves_the_server_as_it_was(serving: Any) -> None:
    server = serving()
    honest(server, 1)
    start, chance = server.memory("VmRSS"), random.Random(2)
    left = MESSAGES
    while left > 0:
        sent = [
            frame(chance.randrange(1, 64, 2), chance.randbytes(chance.randrange(5000)))
            for _ in range(min(left, 40))
        ]
        sent.append(Garbage(left).message())
        run_as_client(server, b"".join(sent))
        left -= len(sent)
    honest(server, 2)
    assert server.memory() - start < 100e6


def test_fifty_megabytes_in_half_finished_frames_take_no_memory(serving: Any) -> None:
    server = serving(limits=dataclasses.replace(LIMITS, stage=3.0))
    honest(server, 1)
    start = server.memory("VmRSS")
    with server.connect() as client:
        client.sendall(client_hello())
        server.wait_for("client", 2)
        client.settimeout(2)
        # Where the worker takes no more, nothing more is read, and the system makes us wait.
        with contextlib.suppress(TimeoutError):
            for stream in range(1, 101, 2):
                client.sendall(frame(stream, bytes(1 << 18)) * 4)
        client.close()
        peak = server.memory()
    # The 32 frames of 256 KiB that wait for the worker, and the modules that a session loads.
    assert peak - start < 20e6
    honest(server, 2)


def test_a_log_has_no_lines_of_strangers(serving: Any) -> None:
    server = serving()
    with server.connect() as stranger:
        stranger.sendall(client_hello(terms={"a\nserved 3 tokens": "\x1b[2J"}))
        received(stranger)
    event = server.wait_for("refused")
    assert json.dumps(event).isprintable() and event["reason"].isprintable()
