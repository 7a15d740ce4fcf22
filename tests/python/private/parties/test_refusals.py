"""The lines on those who were refused, and the counts of tokens that a server starts with."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from aero.private.links.keys import CERTIFICATE, Security, make_keys
from aero.private.parties.events import Event, Refused
from aero.private.parties.party import PartyJob
from aero.private.parties.queries import Queries
from aero.private.parties.refusals import MOST_HOSTS, Refusals
from aero.private.settings import PrivateSettings


def told(refusals: list[tuple[str, str]], sums: int = 1) -> list[Event]:
    """The events of refusals by host and reason, and of so many sums after them."""
    found: list[Event] = []
    counted = Refusals(found.append)
    for host, reason in refusals:
        counted.add(host, reason)
    for _ in range(sums):
        counted.tell()
    return found


def test_a_refusal_is_told_at_once_and_its_repetitions_are_summed_up() -> None:
    events = told([("192.0.2.1", "first"), *[("192.0.2.1", "again")] * 500])
    assert events == [Refused("first", 1, "192.0.2.1"), Refused("again", 500, "192.0.2.1")]


def test_the_sums_of_many_addresses_lose_no_refusal_and_fill_no_log() -> None:
    refusals = [(f"192.0.2.{number % 250}", "no") for number in range(10_000)]
    events = told(refusals, sums=3)
    assert len(events) <= 2 * MOST_HOSTS + 1
    assert sum(event.count for event in events if isinstance(event, Refused)) == 10_000


def test_who_keeps_coming_gets_one_line_for_each_sum() -> None:
    found: list[Event] = []
    refusals = Refusals(found.append)
    for _ in range(5):
        for _ in range(100):
            refusals.add("192.0.2.1", "no")
        refusals.tell()
    assert [event.count for event in found if isinstance(event, Refused)] == [1, 99, *[100] * 4]


def test_an_address_that_stays_away_is_forgotten() -> None:
    found: list[Event] = []
    refusals = Refusals(found.append)
    for number in range(3 * MOST_HOSTS):
        refusals.add(f"192.0.2.{number}", "no")
        refusals.tell()
        refusals.tell()
    assert [event.address for event in found if isinstance(event, Refused)] == [
        f"192.0.2.{number}" for number in range(3 * MOST_HOSTS)
    ]


@pytest.mark.parametrize("count", [-1, -(10**12), True, "3", 1.5, None])
def test_a_count_of_tokens_that_is_none_is_refused_at_the_start(
    tmp_path: Path, count: object
) -> None:
    make_keys(tmp_path / "keys")
    security = Security(tmp_path / "keys", tmp_path / "keys" / CERTIFICATE)
    job = PartyJob(tmp_path, PrivateSettings(), "127.0.0.1:0", security=security, queries=5)
    (tmp_path / "keys" / "queries.json").write_text(json.dumps({"ab" * 32: count}))
    with pytest.raises(ValueError, match=r"queries\.json: abab.*: expected"):
        Queries(job)
