"""A conversation, or a batch of prompts, from the client's side: what the next pass reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

# The next text as tokens, of at most so many; None ends the conversation, no tokens let the answer
# go on.
Says = Callable[[int], Sequence[int] | None]


@dataclass
class Conversation:
    """Answers of at most so many tokens each, with what is said between them, in one context.

    It is what `aero.private.ask` and `generate_privately` take as `reads`: called with each token,
    it says what the next pass reads.

    Attributes:
        prompt: the first tokens.
        context_length: of the network.
        answer: most tokens of an answer.
        most: most tokens of all answers.
        stop: tokens that end an answer; they stay in the context.
        says: called after each answer.
        on_token: called with each token and how many may still come in this answer.
    """

    prompt: Sequence[int]
    context_length: int
    answer: int
    most: int
    stop: Collection[int] = ()
    says: Says = lambda room: None
    on_token: Callable[[int, int], None] = lambda token, left: None
    answers: list[list[int]] = field(default_factory=lambda: [[]])
    read: int = 0

    def __post_init__(self) -> None:
        self.read = len(self.prompt)

    @property
    def tokens(self) -> int:
        """The tokens of all answers so far."""
        return sum(map(len, self.answers))

    @property
    def free(self) -> int:
        """Tokens that the context still takes, the last answer's last one among them."""
        return self.context_length - self.read

    @property
    def left(self) -> int:
        """Tokens that may still come in this answer."""
        return min(self.answer - len(self.answers[-1]), self.most - self.tokens, self.free)

    def __call__(self, token: int) -> list[int]:
        """What the pass after this token reads; nothing ends the conversation."""
        self.answers[-1].append(token)
        left = 0 if token in self.stop else self.left
        self.on_token(token, left)
        found = [token] if left else self._next_turn(token)
        self.read += len(found)
        return found

    def _next_turn(self, token: int) -> list[int]:
        if self.free < 1 or self.tokens >= self.most:
            return []
        said = self.says(self.free - 1)
        if said is None:
            return []
        if len(said) > self.free - 1:
            raise ValueError(
                f"private: the context has room for {self.free - 1} more tokens, got {len(said)}"
            )
        self.answers.append([])
        return [token, *said]


@dataclass
class SideBySide:
    """One answer to each of several prompts, in passes over a token of each.

    It is what `generate_privately` takes as `reads`. The parties' arrays hold all sequences, so one
    whose answer has ended is computed on until the others end too; what it gives is dropped.

    Attributes:
        prompts: of equally many tokens.
        context_length: of the network.
        most: tokens of each answer at most.
        stop: tokens that end an answer.
        on_tokens: called after each pass with the tokens that came, by the prompt's number from 0,
            and how many passes there may still be.
        answers: so far, of each prompt.
    """

    prompts: Sequence[Sequence[int]]
    context_length: int
    most: int
    stop: Collection[int] = ()
    on_tokens: Callable[[dict[int, int], int], None] = lambda tokens, left: None
    answers: list[list[int]] = field(init=False)
    read: int = field(init=False)

    def __post_init__(self) -> None:
        self.answers = [[] for _ in self.prompts]
        self.read = len(self.prompts[0])
        self._passes = 0

    @property
    def free(self) -> int:
        """Tokens that the context of each still takes."""
        return self.context_length - self.read

    def __call__(self, tokens: Sequence[int]) -> list[Sequence[int]]:
        """What the pass after these tokens reads, of each prompt one; nothing ends the batch."""
        came = {i: token for i, token in enumerate(tokens) if not self._ended(i)}
        for i, token in came.items():
            self.answers[i].append(token)
        self._passes += 1
        over = all(self._ended(i) for i in range(len(self.prompts)))
        left = 0 if over else min(self.most - self._passes, self.free)
        self.on_tokens(came, left)
        if left < 1:
            return []
        self.read += 1
        return [tuple(tokens)]

    def _ended(self, i: int) -> bool:
        return bool(self.answers[i]) and self.answers[i][-1] in self.stop
