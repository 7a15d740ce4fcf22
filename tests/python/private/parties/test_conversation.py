"""What the client of a conversation reads next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from aero.private.parties.conversation import Conversation, SideBySide


def talk(tokens: list[int], said: list[Any] = [], **given: Any) -> tuple[Conversation, list[Any]]:  # noqa: B006
    texts: Iterator[Any] = iter([*said, None])
    given = {"context_length": 32, "answer": 3, "most": 20, **given}
    made = Conversation([1, 2, 3], says=lambda room: next(texts), **given)
    return made, [made(token) for token in tokens]


def test_an_answer_reads_its_own_tokens_until_there_are_so_many() -> None:
    made, reads = talk([7, 8, 9])
    assert reads == [[7], [8], []]
    assert made.answers == [[7, 8, 9]] and made.tokens == 3


def test_a_stop_token_ends_an_answer_and_stays_in_the_context() -> None:
    made, reads = talk([7, 0, 5], [[4, 4]], stop={0})
    assert reads == [[7], [0, 4, 4], [5]]
    assert made.answers == [[7, 0], [5]]
    assert made.read == 3 + 1 + 3 + 1


def test_no_text_lets_the_answer_go_on() -> None:
    _, reads = talk([7, 8, 9, 10], [[]])
    assert reads == [[7], [8], [9], [10]]


def test_a_conversation_ends_with_its_context() -> None:
    made, reads = talk([7, 8, 9], context_length=5, answer=9)
    assert reads == [[7], [8], []] and made.free == 0


def test_a_conversation_ends_with_the_tokens_that_it_may_have() -> None:
    _, reads = talk([7, 8], [[4]], most=2, answer=9)
    assert reads == [[7], []]


def test_text_beyond_the_context_is_refused_and_the_room_is_told() -> None:
    rooms = []

    def says(room: int) -> list[int]:
        rooms.append(room)
        return [4] * (room + 1)

    made = Conversation([1, 2, 3], 8, answer=1, most=20, says=says)
    with pytest.raises(ValueError, match="room for 4 more tokens, got 5"):
        made(7)
    assert rooms == [4]


def test_each_token_is_told_with_what_is_left_of_its_answer() -> None:
    told: list[tuple[int, int]] = []
    talk([7, 8, 9], on_token=lambda *each: told.append(each))
    assert told == [(7, 2), (8, 1), (9, 0)]


def batch(passes: list[tuple[int, ...]], **given: Any) -> tuple[SideBySide, list[Any]]:
    given = {"context_length": 32, "most": 3, **given}
    made = SideBySide([[1, 2, 3], [4, 5, 6]], **given)
    return made, [made(tokens) for tokens in passes]


def test_each_prompt_of_a_batch_gets_as_many_tokens_as_it_may_have() -> None:
    made, reads = batch([(7, 8), (9, 10), (11, 12)])
    assert reads == [[(7, 8)], [(9, 10)], []]
    assert made.answers == [[7, 9, 11], [8, 10, 12]] and made.read == 5


def test_a_stop_token_ends_its_own_answer_and_the_last_one_the_batch() -> None:
    told: list[Any] = []
    made, reads = batch(
        [(7, 0), (9, 10), (0, 12)], stop={0}, most=9, on_tokens=lambda *each: told.append(each)
    )
    assert made.answers == [[7, 9, 0], [0]]
    assert [bool(read) for read in reads] == [True, True, False]
    # Nothing is shown of a prompt whose answer has ended.
    assert told == [({0: 7, 1: 0}, 8), ({0: 9}, 7), ({0: 0}, 0)]


def test_a_batch_ends_with_its_context() -> None:
    _, reads = batch([(7, 8), (9, 10), (11, 12)], context_length=5, most=9)
    assert reads == [[(7, 8)], [(9, 10)], []]
