"""Every price that was recorded is today's, to the last digit."""

import json

from tests.python.mpc.recorded_prices import FILE, record


def test_every_recorded_price_round_operation_and_schedule_is_as_it_was() -> None:
    before = json.loads(FILE.read_text())
    now = record()
    assert len(before) > 2000
    assert {name: (before.get(name), now.get(name)) for name in {*before, *now}
            if before.get(name) != now.get(name)} == {}  # fmt: skip
