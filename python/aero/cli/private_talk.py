"""What `aero private chat` shows while it runs, and what is said between its answers."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, BinaryIO

from aero.cli.errors import note, say
from aero.cli.private import note_of_server, prompt_numbers

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from aero.private.compute.calls import Call
    from aero.private.measuring.conversation_cost import ConversationCost
    from aero.private.parties.conversation import Conversation, SideBySide
    from aero.private.parties.events import Event

_MOST_LINE_BYTES = 1 << 20


class Lines:
    """What the user says, line by line."""

    def __init__(self) -> None:
        self._lines: BinaryIO | None = None

    def prompt(self) -> str:
        """The first line.

        Raises:
            ValueError: there is none.
        """
        line = self.next()
        if line is None:
            raise ValueError("private: the prompt is missing: give --prompt, or a line of input")
        return line

    def next(self) -> str | None:
        """The next line without its end; None after the last."""
        if self._lines is None:
            if sys.stdin.isatty():
                note("say more; an empty line lets the answer go on, and Ctrl-D ends")
            # Not sys.stdin itself: a thread that waits for it would hold up this program's end.
            self._lines = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
        line = self._lines.readline(_MOST_LINE_BYTES)
        return line.decode(errors="replace").rstrip("\r\n") if line else None


class _Shown:
    """What passes took, as they end."""

    def __init__(
        self,
        talk: Conversation | SideBySide,
        cost: ConversationCost,
        known: Tokenizer | None,
        *,
        as_json: bool,
        agreed: bool,
    ) -> None:
        """Shows what passes took.

        Args:
            talk: what is shown.
            cost: of it.
            known: the tokenizer, if there is one.
            as_json: all of it, at the end.
            agreed: whether the user takes any price.
        """
        self._shown = talk
        self._cost, self._known, self._as_json, self._agreed = cost, known, as_json, agreed
        self._bytes, self._start = 0, time.monotonic()
        self._took: list[dict[str, float]] = []

    def piece(self, _: int, call: Call) -> None:
        """A part of a pass ran, or what comes once before all."""
        sent = call.traffic.comm_bytes
        if call.name in {"set-up", "weights"}:
            note(f"{call.name}: {sent / 1e6:.2f} MB, {call.seconds:.1f} s")
            self._start = time.monotonic()
        else:
            self._bytes += sent

    def event(self, event: Event) -> None:
        """What the party says."""
        from aero.private.parties.events import Sliced
        from aero.private.parties.job import Generated, collect

        if isinstance(event, Sliced):
            self._begin_again(event.largest_product)
        note_of_server(event)
        collect(Generated(), event, self.piece)

    def _begin_again(self, limit: int) -> None:
        """The server's memory needs slices that send more than what was agreed to.

        Raises:
            ValueError: the user is to see the price of those.
        """
        before, read = self._cost, self._shown.read
        sliced = dataclasses.replace(before.settings, largest_product=limit)
        self._cost = dataclasses.replace(before, settings=sliced)
        sizes = (self._cost.reading(read).comm_bytes, before.reading(read).comm_bytes)
        now, then = (f"{size / 1e6:,.1f} MB" for size in sizes)
        told = (
            f"the server computes products of at most {limit:,} weights, so the prompt sends {now}"
        )
        if not self._agreed:
            raise ValueError(
                f"private: {told} instead of {then}; begin again with --set largest_product={limit}"
            )
        note(told)

    def _passed(self, came: str, left: int) -> None:
        """A pass ended.

        Args:
            came: its tokens, in words.
            left: how many may still come in this answer.
        """
        now = time.monotonic()
        seconds, self._start = now - self._start, now
        sent, self._bytes = self._bytes, 0
        self._took.append({"seconds": seconds, "comm_bytes": sent})
        least = self._cost.answering(left, self._shown.read).comm_bytes
        note(
            f"{came}: {sent / 1e6:.2f} MB, {seconds:.1f} s; left: {left} tokens, "
            f"{least / 1e6:.1f} MB at most, and {self._shown.free} tokens of the context"
        )

    def _text(self, tokens: Sequence[int]) -> str:
        decode: Callable[[Sequence[int]], str] | None = self._known and self._known.decode
        return " ".join(map(str, tokens)) if decode is None else decode(tokens)


class TalkShown(_Shown):
    """Tokens as they come, with what they took and what is left; and what is said next."""

    def __init__(
        self,
        talk: Conversation,
        cost: ConversationCost,
        known: Tokenizer | None,
        lines: Lines,
        *,
        as_json: bool,
        agreed: bool,
    ) -> None:
        """Shows a conversation; `lines` are of the user, the others as of all that is shown."""
        super().__init__(talk, cost, known, as_json=as_json, agreed=agreed)
        self._talk, self._lines = talk, lines
        talk.says, talk.on_token = self._says, self._token

    def _token(self, token: int, left: int) -> None:
        self._passed(repr(self._text([token])), left)

    def _says(self, room: int) -> Sequence[int] | None:
        """What the user says next, which is asked for until it fits."""
        if not self._as_json:
            say(self._text(self._talk.answers[-1]))
        while (text := self._lines.next()) is not None:
            if not text:
                self._start = time.monotonic()
                return []
            try:
                numbers = self._numbers(text)
                if len(numbers) > room:
                    raise ValueError(
                        f"private: the context has room for {room} more tokens, got {len(numbers)}"
                    )
            except ValueError as error:
                note(str(error))
                continue
            cost = self._cost.reading(1 + len(numbers), self._talk.read)
            note(f"reading {1 + len(numbers)} tokens: {cost.comm_bytes / 1e6:.1f} MB")
            self._start = time.monotonic()
            return numbers
        return None

    def _numbers(self, text: str) -> list[int]:
        known = self._known
        given: tuple[str | None, None, str | None] = (text, None, None)
        return prompt_numbers(*(given if known is not None else (None, None, text)), known)

    def end(self) -> None:
        """The answer that nobody has gone on with, or everything as JSON."""
        talk = self._talk
        if self._as_json:
            say(json.dumps({"answers": talk.answers, "read": talk.read, "tokens": self._took}))
        elif not (talk.free >= 1 and talk.tokens < talk.most):
            say(self._text(talk.answers[-1]))


class BatchShown(_Shown):
    """The tokens of several prompts as they come; their answers when all have ended."""

    def __init__(
        self,
        batch: SideBySide,
        cost: ConversationCost,
        known: Tokenizer | None,
        *,
        as_json: bool,
        agreed: bool,
    ) -> None:
        super().__init__(batch, cost, known, as_json=as_json, agreed=agreed)
        self._batch = batch
        batch.on_tokens = self._tokens

    def _tokens(self, came: dict[int, int], left: int) -> None:
        words = (f"{i + 1}: {self._text([token])!r}" for i, token in came.items())
        self._passed(", ".join(words), left)

    def end(self) -> None:
        """The answers, in the order of the prompts."""
        answers = self._batch.answers
        if self._as_json:
            say(json.dumps({"answers": answers, "read": self._batch.read, "tokens": self._took}))
        else:
            for answer in answers:
                say(self._text(answer))
