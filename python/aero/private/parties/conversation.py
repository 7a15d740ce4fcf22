"""A conversation from the client's side: what it reads next, until nobody says anything more."""

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
