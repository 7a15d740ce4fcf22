"""What a client may read in a session, as both parties count it."""

from __future__ import annotations

import pytest

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


def test_the_context_is_filled_to_its_last_token_and_no_further() -> None:
    found = passes()
    found.computed = 1
    found.add(12)
    found.computed = 2
    with pytest.raises(PartyError, match="1 to 0 more tokens, got 1"):
        found.add(1)


@pytest.mark.parametrize("rows", [-1, 13, 1 << 70])
def test_a_pass_of_too_few_or_too_many_tokens_is_refused(rows: int) -> None:
    with pytest.raises(PartyError, match="must read 1 to 12 more tokens"):
        passes().add(rows)


def test_one_pass_may_be_announced_while_one_runs() -> None:
    found = passes()
    found.add(1)  # this party may not have noted yet that the first one is over
    with pytest.raises(PartyError, match="before the pass before the last was over"):
        found.add(1)


def test_no_token_comes_beyond_those_asked_for() -> None:
    found = passes(new_tokens=1)
    found.computed = 1
    with pytest.raises(PartyError, match="may have 1 tokens"):
        found.add(1)
    found.add(0)
    with pytest.raises(PartyError, match="after it had ended"):
        found.add(0)


def test_a_plain_answer_reads_each_of_its_tokens_but_the_last() -> None:
    reads = read_alone(3)
    assert [reads(5), reads(6), reads(7)] == [[5], [6], []]
