"""The passes of a session: what each reads, and what may still come. Each party keeps count."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from aero.internals.errors import extra
from aero.private.party_errors import PartyError

with extra("private"):
    import msgspec

# What the client reads in the next pass, of the token that the last one gave; nothing: the end. Of
# several sequences each token is a tuple of them.
Reads = Callable[[Any], Sequence[Any]]


def read_alone(new_tokens: int) -> Reads:
    """Reads each token that comes, until there are so many."""
    left = itertools.count(new_tokens - 1, -1)
    return lambda token: [token] if next(left) > 0 else []


class Request(msgspec.Struct, frozen=True):
    """The run that a client asks for.

    Attributes:
        prompt_length: in tokens.
        new_tokens: how many to compute at most.
        largest_product: weights of the largest product that is computed in one piece; 0: any.
        sequences: side by side, each with its prompt of this length and its new tokens.
    """

    prompt_length: int
    new_tokens: int
    largest_product: int = 0
    sequences: int = 1

    @property
    def all_tokens(self) -> int:
        """The new tokens of all sequences."""
        return self.sequences * self.new_tokens

    def sliced(self, limit: int) -> Request:
        """Returns the same request with this as largest product."""
        return msgspec.structs.replace(self, largest_product=limit)

    def __str__(self) -> str:
        sliced = f", with products of {self.largest_product} weights" * bool(self.largest_product)
        prompts = "a prompt" if self.sequences == 1 else f"{self.sequences} prompts"
        return f"{prompts} of {self.prompt_length} tokens and {self.new_tokens} new ones{sliced}"


class Passes:
    """The passes so far, of which the request is the first.

    Args:
        context_length: of the network.
        request: of the client.

    Attributes:
        request: see above.
        rows: how many tokens each pass reads.
        most: how many passes there are at most, each of which gives a token.
        computed: how many are over at this party.
        ended: no further one comes.
    """

    def __init__(self, context_length: int, request: Request) -> None:
        self._context, self.request, self.most = context_length, request, request.new_tokens
        self.rows: list[int] = [request.prompt_length]
        self.computed, self.ended = 0, False

    def add(self, rows: int) -> None:
        """The client reads so many tokens in the next pass; 0: it ends the session.

        Raises:
            PartyError: it may not, or not yet.
        """
        if self.ended:
            raise PartyError(f"the client read {rows} tokens after it had ended the session")
        if rows == 0:
            self.ended = True
            return
        if len(self.rows) > self.computed + 1:
            raise PartyError("the client read on before the pass before the last was over")
        free = self._context - sum(self.rows)
        if not 1 <= rows <= free:
            raise PartyError(f"the client must read 1 to {free} more tokens, got {rows}")
        if len(self.rows) >= self.most:
            raise PartyError(f"the client may have {self.most} tokens in this session, not more")
        self.rows.append(rows)
