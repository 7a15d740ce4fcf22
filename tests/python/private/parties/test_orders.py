"""What workers are told is one record each, which arrives as it was sent or is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.python.refusals import assert_refused

from aero.private.parties.orders import (
    BothPartiesJob,
    Go,
    OnePartyJob,
    ReadRows,
    ReadTokens,
    heard,
    told,
)
from aero.private.parties.party import PartyJob
from aero.private.parties.passes import Request
from aero.private.parties.supervision import TimeLimits
from aero.private.settings import PrivateSettings

from ..pretending import People

SETTINGS = PrivateSettings(exp_squarings=5)
ORDERS = [
    BothPartiesJob(Path("/a network"), SETTINGS, [3, 4]),
    BothPartiesJob(Path("/a network"), SETTINGS, [(3, 4), (5, 6)]),
    OnePartyJob("client", Path("/a"), SETTINGS, (1, 2)),
    OnePartyJob("server", Path("/a"), SETTINGS, memory_bytes=1 << 40),
    Go("unix:/own", {"server": "unix:/server"}, Request(3, 1)),
    ReadTokens([7]),
    ReadTokens([]),
    ReadRows(1),
    PartyJob(Path("/a"), SETTINGS, "[::1]:0", tokens=(1,), limits=TimeLimits(run=math.inf)),
]


@pytest.mark.parametrize("order", ORDERS, ids=lambda each: type(each).__name__)
def test_an_order_arrives_as_it_was_sent_in_one_line(order: Any) -> None:
    line = told(order)
    assert line.endswith(b"\n") and line.count(b"\n") == 1
    assert heard(line, type(order)) == order


def test_a_job_with_keys_arrives_without_what_was_made_of_them(tmp_path: Path) -> None:
    security = People(tmp_path).security("server", "ann")
    job = PartyJob(tmp_path, SETTINGS, "0.0.0.0:7700", security=security)
    security.context(server=True)
    found = heard(told(job), PartyJob)
    assert found == job and found.security is not None
    assert found.security.context(server=True) is not security.context(server=True)


@pytest.mark.parametrize(
    ("line", "kind", "named"),
    [
        (b'{"rows": "1"}', ReadRows, "rows"),
        (b'{"tokens": [1]}', ReadRows, "rows"),
        (b'{"tokens": [null]}', ReadTokens, "tokens"),
        (told(ORDERS[-1]).replace(b'"/a"', b"1"), PartyJob, "folder"),
        (
            told(ORDERS[2]).replace(b'"exp_squarings": 5', b'"exp_squarings": 99'),
            OnePartyJob,
            "exp_squarings",
        ),
    ],
)
def test_what_is_no_such_order_is_refused_by_the_name_of_its_entry(
    line: bytes, kind: type, named: str
) -> None:
    assert_refused(lambda: heard(line, kind), named, error=msgspec.ValidationError)
