"""Three parties under ABY3: who may be the third, and how a run ends when one is gone."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aero.private.links.keys import CERTIFICATE, Security
from aero.private.parties.party import PartyJob, check_security
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from .. import pretending
from ..pretending import LIMITS, People, frame, received, said
from ..trio import ABY3, Trio, hello_of, run_of, run_with_own_helper, session_with
from .test_serving import MESSAGES, Garbage


@pytest.fixture
def trio(export: Path, people: People, tmp_path: Path) -> Iterator[Callable[..., Trio]]:
    made: list[Trio] = []

    def start(*known: str) -> Trio:
        made.append(Trio(export, people, tmp_path, *known))
        return made[-1]

    yield start
    for each in made:
        each.end()


def asked_in_vain(three: Trio, *args: Any, **job: Any) -> str:
    """The one line with which a client ends."""
    with pytest.raises(PartyError) as raised:
        three.ask(*args, **job)
    assert str(raised.value).isprintable()
    return str(raised.value)


@pytest.mark.parametrize("known", [(), ("ann", "bob")])
def test_three_parties_compute_for_one_client_after_the_other(trio: Any, known: Any) -> None:
    three = trio(*known)
    for number, name in enumerate(("ann", "bob"), start=1):
        reads = iter([[7], [9, 1], []])
        events = three.ask(name, new_tokens=3, reads=lambda token, reads=reads: next(reads))
        assert [event["token"] for event in events if event["event"] == "pass"] == [0, 1, 2]
        assert not [event for event in events if event["event"] == "unpadded"]
        for each in (three.server, three.helper):
            each.wait_for("served", number)
            told = each.wait_for("client", number)
            assert (told["prompt_length"], told["new_tokens"]) == (3, 3)
            who = three._people.fingerprint[name] if known else "127.0.0.1"
            assert told["who"] == who


def test_a_stranger_at_the_helper_is_refused_and_costs_the_server_one_session(trio: Any) -> None:
    three = trio("ann")
    three.server.end()
    # The server knows bob, and its helper does not.
    security = three._people.security("server", "ann", "bob", third="helper")
    three.server = three.started(security=security, address=three.server.address)
    assert "the helper closed the connection" in asked_in_vain(three, "bob")
    assert "without a known certificate" in three.helper.wait_for("refused")["reason"]
    assert "before the run" in three.server.wait_for("lost")["reason"]
    three.ask("ann")
    three.helper.wait_for("served")
    assert three.server.starts() == 5  # two servers, a helper, two clients: none was renewed


def test_who_comes_to_the_helper_without_a_session_is_turned_away(trio: Any) -> None:
    three = trio()
    for session in ({}, {"session": "guessed"}):
        with three.helper.connect() as client:
            client.sendall(said(hello=hello_of("client", **session)))
            assert b"no client of this session waits" in received(client)
    for number in (1, 2):
        assert "no client of this session" in three.helper.wait_for("lost", number)["reason"]
    three.ask()
    three.server.wait_for("served")


def test_nobody_else_can_be_the_helper(trio: Any) -> None:
    three = trio("ann")
    ann = three.security("ann", "server", third="helper")
    for role, expected in (("helper", b"role must be"), ("server", b"role must be")):
        context = ann.context(server=False)
        with context.wrap_socket(three.server.connect()) as client:
            client.sendall(said(hello=hello_of(role)))
            assert expected in received(client)
    # And the helper, who would see two of three shares, is no client.
    folder = three._people.folder
    helper = Security(folder / "helper", folder / "server" / CERTIFICATE)
    with helper.context(server=False).wrap_socket(three.server.connect()) as client:
        client.sendall(said(hello=hello_of("client")))
        assert b"role must be 'helper'" in received(client)
    # Nor does anybody come to the helper as its server.
    server = Security(folder / "server", folder / "helper" / CERTIFICATE)
    connection = three.helper.connect()
    with contextlib.suppress(OSError), server.context(server=False).wrap_socket(connection) as it:
        it.sendall(said(hello=hello_of("server")))
        assert not received(it)
    assert "the third party came" in three.helper.wait_for("refused")["reason"]
    three.ask("ann")


def test_a_client_takes_the_helper_for_no_server_and_the_server_for_no_helper(trio: Any) -> None:
    three = trio("ann")
    given = {"settings": ABY3, "security": three.security("ann", "server", third="helper")}
    with pytest.raises(PartyError, match="is another party than the server"):
        three.helper.ask(helper=three.server.address, **given)
    with pytest.raises(PartyError, match="is another party than the helper"):
        three.server.ask(helper=three.server.address, **given)
    three.ask("ann")


def test_client_and_server_must_know_the_same_helper(trio: Any) -> None:
    three = trio("ann")
    assert "helper must be" in asked_in_vain(three, "ann", third="bob")
    three.ask("ann")


def test_one_party_is_never_two_of_three(people: People) -> None:
    for name, known, third in (
        ("server", "helper", "helper"),  # among the clients
        ("ann", "server", "server"),
        ("server", "ann", "server"),  # this party itself
    ):
        with pytest.raises(ValueError, match="expected a party of its own"):
            people.security(name, known, third=third)
    two = people.folder / "two.pem"
    both = ((people.folder / name / CERTIFICATE).read_bytes() for name in ("ann", "helper"))
    two.write_bytes(b"".join(both))
    with pytest.raises(ValueError, match="expected one certificate, got 2"):
        Security(people.folder / "server", people.folder / "bob" / CERTIFICATE, two)


def test_a_client_that_asks_both_for_different_passes_is_turned_away(trio: Any) -> None:
    three = trio()
    client, session = session_with(three.server)
    with client, three.helper.connect() as other:
        asked = {"prompt_length": 2, "new_tokens": 1}
        other.sendall(said(hello=hello_of("client", session=session, request=asked)))
        assert b"the request must be" in received(other)
    three.server.wait_for("lost")  # the client has left
    three.ask()


def test_a_second_client_waits_at_the_server_and_meets_the_helper_in_its_turn(trio: Any) -> None:
    three, places = trio("ann", "bob"), []
    waiting, release = threading.Event(), threading.Event()

    def note(event: dict[str, Any]) -> None:
        if event["event"] == "place":
            places.append(event["place"])
            release.set()

    def hold(_: int) -> list[int]:
        waiting.set()
        assert release.wait(30)
        return []

    first = threading.Thread(
        target=three.ask, args=("ann",), kwargs={"new_tokens": 2, "reads": hold}
    )
    first.start()
    assert waiting.wait(30)
    three.ask("bob", on_event=note)
    first.join(60)
    assert places == [2]
    for each in (three.server, three.helper):
        who = [each.wait_for("client", number)["who"] for number in (1, 2)]
        assert who == [three._people.fingerprint[name] for name in ("ann", "bob")]


@pytest.mark.parametrize("gone", ["helper", "server"])
def test_where_one_party_vanishes_in_mid_run_the_others_end_with_one_line(
    trio: Any, gone: str
) -> None:
    three = trio("ann")
    left = three.server if gone == "helper" else three.helper

    def vanish(_: int) -> list[int]:
        getattr(three, gone).process.kill()
        return [7]

    # Whoever hears of it first tells the third one.
    assert f"the {gone} closed" in asked_in_vain(three, new_tokens=3, reads=vanish)
    assert f"the {gone} closed" in left.wait_for("lost")["reason"]
    assert left.wait_for("lost")["reason"].isprintable()
    if gone == "helper":
        three.helper = three.start_helper(three.helper.address)
        three.ask()
        three.server.wait_for("served")


def test_where_the_client_vanishes_the_servers_serve_the_next(trio: Any) -> None:
    three = trio()

    def vanish(_: int) -> list[int]:
        raise KeyError("the user leaves")

    with pytest.raises(KeyError):
        three.ask(new_tokens=3, reads=vanish)
    for each in (three.server, three.helper):
        assert "the client gave up" in each.wait_for("lost")["reason"]
    three.ask()


def test_a_helper_that_is_not_there_is_named_and_the_server_goes_on(
    trio: Any, unused_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    three = trio()
    monkeypatch.setattr(pretending, "LIMITS", dataclasses.replace(LIMITS, connect=0.5))
    assert f"no helper at {unused_address}" in asked_in_vain(three, helper=unused_address)
    assert "the client gave up" in three.server.wait_for("lost")["reason"]
    monkeypatch.undo()
    three.ask()


def test_what_has_no_third_party_is_refused_before_anything_starts(
    export: Path, people: People
) -> None:
    three, two = people.security("ann", "server", third="helper"), people.security("ann", "server")
    cheetah, address = PrivateSettings(), "127.0.0.1:1"
    for settings, job, expected in (
        (ABY3, {"tokens": (1,)}, "--helper must be given"),
        (cheetah, {"tokens": (1,), "helper": address}, "--helper must be left out"),
        (cheetah, {"helps": address}, "--helps must be left out"),
        (ABY3, {"security": two}, "third party's certificate"),
        (cheetah, {"security": three}, "no third party"),
        (ABY3, {"tokens": (1,), "helper": "10.1.2.3:1"}, "10.1.2.3:1 is not this machine's"),
        (PrivateSettings(protocol="semi2k"), {}, "its dealer"),
    ):
        with pytest.raises(ValueError, match=expected):
            check_security(PartyJob(export, settings, address, **job))


@pytest.mark.parametrize("who", ["client", "helper"])
def test_what_two_of_three_send_within_a_run_ends_their_session_alone(trio: Any, who: str) -> None:
    three = trio()
    for number, sent in enumerate(RUNS, start=1):
        both = run_of(three) if who == "client" else run_with_own_helper(three.server)
        with both[0], both[1]:
            both[0].sendall(frame(1, b"x"))
            with contextlib.suppress(ConnectionError):
                both[1].sendall(sent)
                both[1].shutdown(socket.SHUT_WR)
                received(both[1])
        for each in (three.server, three.helper)[: 2 if who == "client" else 1]:
            assert each.wait_for("lost", number)["reason"].isprintable()
    three.ask()


RUNS = (
    said(read=1), said(read=1) * 3, said(go="again"), said(done=True) * 2, frame(2, b"x"),
    b"\xff" * 999, said(hello=hello_of("server")),
    said(failed={"reason": "a\nserved\x1b[2J", "where": "x"}),
    b"".join(frame(number, b"x") for number in range(1, 999, 2)),
)  # fmt: skip


def test_garbage_before_and_within_runs_leaves_the_helper_as_it_was(trio: Any) -> None:
    three, garbage = trio(), Garbage(3)
    three.ask()
    start = three.helper.memory("VmRSS")
    for _ in range(MESSAGES // 2):
        with three.helper.connect() as stranger:
            stranger.sendall(garbage.message())
    left, chance = MESSAGES // 2, random.Random(4)
    while left > 0:
        sent = [
            frame(chance.randrange(1, 64, 2), chance.randbytes(chance.randrange(5000)))
            for _ in range(min(left, 40))
        ]
        client, other = run_of(three)
        with client, other, contextlib.suppress(ConnectionError):
            client.sendall(frame(1, b"x"))
            other.sendall(b"".join([*sent, garbage.message()]))
        left -= len(sent) + 1
    three.ask()
    assert three.helper.memory() - start < 100e6
    assert all(event.get("reason", "").isprintable() for event in three.helper.events)
