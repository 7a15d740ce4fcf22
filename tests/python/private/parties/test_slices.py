"""The slices of large products, on which the parties of a session agree."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aero.network.files import read_description
from aero.private.parties.memory import memory_of_run
from aero.private.parties.passes import Request
from aero.private.parties.slices import accepted_slices, sliced_request
from aero.private.parties.terms import PROTOCOL, hello
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings

from ..pretending import Served, client_hello, received, said

CHEAP = PrivateSettings(client_one_hot=True, last_token_head=True)
TABLE = 256 * 32  # weights of the largest product of these networks


def tight(folder: Path, rows: int = 3) -> int:
    """Bytes that are too few for the largest product in one piece."""
    sliced = dataclasses.replace(CHEAP, largest_product=TABLE // 4)
    few, whole = (
        memory_of_run(read_description(folder), each, rows).run_bytes() for each in (sliced, CHEAP)
    )
    assert few < whole
    return few


def test_a_server_slices_by_its_memory_and_both_compute_them(serving: Any, export: Path) -> None:
    server = serving(settings=CHEAP, memory_bytes=tight(export))
    events = server.ask(settings=CHEAP)
    [limit] = [one["largest_product"] for one in events if one["event"] == "sliced"]
    assert 0 < limit < TABLE
    assert server.limits() == [limit, limit]
    assert any(one["event"] == "pass" for one in events)


def test_a_client_slices_by_its_memory_and_the_server_follows(serving: Any, export: Path) -> None:
    server = serving(settings=CHEAP)
    events = server.ask(settings=CHEAP, memory_bytes=tight(export))
    [told] = [one["largest_product"] for one in events if one["event"] == "sliced"]
    [limit, other] = server.limits()
    assert 0 < limit == other == told < TABLE
    # Who gave these slices knows them.
    given = dataclasses.replace(CHEAP, largest_product=told)
    events = server.ask(settings=given, memory_bytes=tight(export))
    assert not [one for one in events if one["event"] == "sliced"]


def test_the_smaller_of_both_settings_counts(serving: Any) -> None:
    server = serving(settings=PrivateSettings(largest_product=4096))
    for client, expected in ((0, 4096), (8000, 4096), (2048, 2048)):
        server.ask(settings=PrivateSettings(largest_product=client))
        assert server.limits()[-2:] == [expected, expected]


def test_without_need_nothing_is_sliced(serving: Any) -> None:
    server = serving()
    server.ask()
    assert server.limits() == [0, 0]


@pytest.mark.parametrize("limit", [-1, 1 << 60, True, "4096", None, 2.5, 1, [4096]])
def test_slices_that_no_client_may_ask_for_end_its_connection(serving: Any, limit: Any) -> None:
    server = serving()
    request = {"prompt_length": 3, "new_tokens": 1, "largest_product": limit}
    with server.connect() as stranger:
        stranger.sendall(client_hello(request=request))
        assert b"largest_product" in received(stranger)
    server.ask()  # and the next client is served


@contextlib.contextmanager
def answering(served: Served, slices: Any) -> Iterator[str]:
    """A server in our hands, which answers a client's hello with these slices; its address."""
    hello = {"protocol": PROTOCOL, "role": "server", "terms": {"exp_squarings": 8, "weights": None}}
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            with contextlib.suppress(OSError):
                connection, _ = listener.accept()
                with connection:
                    connection.sendall(said(hello=hello) + said(slices=slices) + said(go="here"))
                    received(connection)

        thread = threading.Thread(target=answer)
        thread.start()
        host, port = listener.getsockname()
        yield f"{host}:{port}"
        thread.join(30)


@pytest.mark.parametrize("slices", [-1, 1 << 60, True, "4096", None, 2.5, 1, 8001, 0])
def test_a_client_refuses_slices_that_no_server_may_answer(serving: Any, slices: Any) -> None:
    server = serving()
    settings = PrivateSettings(largest_product=8000)
    with answering(server, slices) as address:
        server.address = address
        with pytest.raises(PartyError, match=r"largest_product|slices") as caught:
            server.ask(settings=settings)
    assert str(caught.value).isprintable()
    assert not Path(f"{server.python}.limits").exists()  # no worker began


def test_a_client_refuses_slices_that_do_not_fit(export: Path) -> None:
    given = (read_description(export), CHEAP, {"rows": 3}, tight(export), "server")
    with pytest.raises(PartyError, match="of memory here"):
        accepted_slices(0, *given)
    assert accepted_slices(TABLE // 4, *given).largest_product == TABLE // 4


def test_a_third_party_takes_the_slices_of_the_two_or_refuses(export: Path) -> None:
    given, few = read_description(export), tight(export)
    with pytest.raises(PartyError, match=r"give --set largest_product=\d+"):
        sliced_request(Request(3, 1), given, CHEAP, few, further=False)
    agreed = sliced_request(Request(3, 1), given, CHEAP, few, further=True)
    assert sliced_request(agreed, given, CHEAP, few, further=False) == agreed
    said = json.loads(json.dumps(hello("client", {}, agreed).to_dict()))
    assert said["request"]["largest_product"] == agreed.largest_product


def test_several_prompts_take_the_memory_of_all_or_are_refused(export: Path) -> None:
    description, few = read_description(export), tight(export)
    one, many = Request(3, 1), Request(3, 1, sequences=1000)
    assert sliced_request(one, description, CHEAP, few, further=True).sequences == 1
    with pytest.raises(PartyError, match=r"1000 prompts .* of memory here.*fewer prompts"):
        sliced_request(many, description, CHEAP, few, further=True)
    likeliest = dataclasses.replace(CHEAP, reveal="top-k")
    with pytest.raises(PartyError, match="reveal must be"):
        sliced_request(Request(3, 1, sequences=2), description, likeliest, None, further=True)
