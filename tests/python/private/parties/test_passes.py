"""What a client may read in a session, as both parties count it."""

from __future__ import annotations

import pytest
from tests.python.refusals import assert_refused

from aero.private.parties.passes import Passes, Request, read_alone
from aero.private.party_errors import PartyError


def passes(**request: int) -> Passes:
    return Passes(16, Request(**{"prompt_length": 4, "new_tokens": 8, **request}))


def test_a_conversation_reads_its_own_tokens_and_new_text() -> None:
    found = passes()
    for rows in (1, 1, 5, 1):
        found.computed += 1
        found.add(rows)
    found.computed += 1
    found.add(0)
    assert found.rows == [4, 1, 1, 5, 1] and found.ended


@pytest.mark.parametrize(
    ("new_tokens", "read", "refused", "named"),
    [
        # (passes that are over, tokens that the next one reads)
        (8, [], (0, -1), "1 to 12 more tokens, got -1"),
        (8, [], (0, 13), "1 to 12 more tokens, got 13"),
        (8, [], (0, 1 << 70), "1 to 12 more tokens"),
        (8, [(1, 12)], (2, 1), "1 to 0 more tokens, got 1"),  # the context is full
        # This party may not have noted yet that the first one is over.
        (8, [(0, 1)], (0, 1), "before the pass before the last was over"),
        (1, [], (1, 1), "may have 1 tokens"),
        (1, [(1, 0)], (1, 0), "after it had ended"),
    ],
)
def test_a_client_reads_no_more_than_it_may(
    new_tokens: int, read: list[tuple[int, int]], refused: tuple[int, int], named: str
) -> None:
    found = passes(new_tokens=new_tokens)
    for computed, rows in read:
        found.computed = computed
        found.add(rows)
    found.computed, rows = refused
    assert_refused(lambda: found.add(rows), named, error=PartyError)


def test_a_plain_answer_reads_each_of_its_tokens_but_the_last() -> None:
    reads = read_alone(3)
    assert [reads(5), reads(6), reads(7)] == [[5], [6], []]
