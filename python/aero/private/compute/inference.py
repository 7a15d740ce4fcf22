"""A network between two parties: weights put in once, then passes over what is new.

Keys and values of earlier tokens stay in SPU's runtimes as shares, so that a pass reads new tokens
alone. Letters: B sequences, T new tokens, V vocabulary. Needs the private environment. Both
parties' processes run this same code; one that does not own the weights, or the prompt, gives
shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
import spu.experimental
from numpy.typing import NDArray

from aero.network.description import Network, not_continued, operations_of
from aero.private.compute.calls import AbstractArray, Call, Parties, Party, Traffic, Value
from aero.private.compute.pieces import Rows, last_row, network_pieces

# SPU gives every thread so many elements of an operation before it takes another one (state.cc).
_ELEMENTS_PER_THREAD = 2048


@dataclass(frozen=True)
class Pass:
    """The client's result of one forward pass.

    Attributes:
        logits: [B, T, V] float32, or [B, 1, V] of the last positions only; None at the server, and
            where `PrivateSettings.reveal` keeps them secret.
        tokens: [B], the next ones, where the parties compute them and this one is the client; of a
            network that ends in argmax the last of its places.
        likeliest: with `reveal="top-k"` at the client, tokens [B, k] and their logits [B, k], best
            first.
        calls: the pieces that ran, with their cost.
    """

    logits: NDArray[np.float32] | None
    tokens: NDArray[np.int32] | None
    likeliest: tuple[NDArray[np.int32], NDArray[np.float32]] | None
    calls: tuple[Call, ...]


def set_up(parties: Parties) -> None:
    """Pays the costs of a session's first use once: keys, oblivious transfers, contexts.

    SPU does it inside the first matrix product, elementwise product, comparison and equality test,
    and for each thread inside the first operation with elements for it: their costs would vary.
    """
    matrix = parties.put("set-up", np.ones((2, 2), np.float32), Party.CLIENT)
    elements = _ELEMENTS_PER_THREAD * parties.settings.threads
    vector = parties.put("set-up", np.ones(elements, np.float32), Party.CLIENT)

    def touch(x: Any, y: Any) -> Any:
        return jnp.where((x @ x > 0) & (x == 1), x * x, x), 0.5 * y

    parties.discard(matrix, vector, *parties.run("set-up", touch, matrix, vector))


def prepared(
    parties: Parties,
    network: Network,
    after_call: Callable[[Call], None],
    *,
    knows_weights: bool = True,
) -> PrivateNetwork:
    """A network before its first pass: the session's set-up, then the weights, each told as a call.

    Arguments are those of `set_up` and `PrivateNetwork`.
    """
    set_up(parties)
    after_call(parties.calls[-1])
    before = len(parties.calls)
    network_of_parties = PrivateNetwork(parties, network, knows_weights=knows_weights)
    weights = parties.calls[before:]
    sent = sum((call.traffic for call in weights), Traffic())
    after_call(Call("weights", sum(call.seconds for call in weights), sent))
    return network_of_parties


def _keep_opened(weights: dict[str, Any]) -> dict[str, Any]:
    """Has SPU keep what a product opens of each weight under its mask, for later ones."""
    return {name: spu.experimental.make_cached_var(x) for name, x in weights.items()}


class PrivateNetwork:
    """The server's network, with the parties that compute it.

    Args:
        parties: connected.
        network: from `read_network`; at the client `with_blank_weights` of the description.
        knows_weights: whether this process has the server's weights.

    Attributes:
        piece_names: of a forward pass, in order.
    """

    def __init__(self, parties: Parties, network: Network, *, knows_weights: bool = True) -> None:
        self._parties, self.description = parties, network.description
        settings = parties.settings
        self._pieces = network_pieces(network, settings)
        self.piece_names = [piece.name for piece in self._pieces]
        self._length, self._earlier = 0, self._nothing()
        self._weights: dict[str, dict[str, Value]] = {}
        for piece in self._pieces:
            self._weights[piece.name] = {
                name: parties.put(
                    f"{piece.name}: {name}",
                    tensor if knows_weights else AbstractArray(tensor.shape, tensor.dtype),
                    Party.SERVER,
                    private=settings.private_weights,
                )
                for name, tensor in piece.weights.items()
            }
            if settings.cached_weights and piece.cached:
                factors = {name: self._weights[piece.name][name] for name in piece.cached}
                # Other names of the same shares, which SPU knows by their place in memory.
                parties.discard(parties.run(f"{piece.name}: kept", _keep_opened, factors))

    def run(
        self,
        tokens: NDArray[np.int32] | AbstractArray,
        after_piece: Callable[[Call], None] = lambda call: None,
    ) -> Pass:
        """One forward pass over new sequences; the ones before are forgotten.

        Args:
            tokens: [B, T] of the client.
            after_piece: called after each piece that has run.

        Raises:
            ValueError: no tokens, or more than the context.
        """
        self.forget()
        return self.read_on(tokens, after_piece)

    def forget(self) -> None:
        """Frees what is kept of the sequences so far."""
        for kept in self._earlier.values():
            self._parties.discard(*kept)
        self._length, self._earlier = 0, self._nothing()

    def _nothing(self) -> dict[str, tuple[Value, ...]]:
        return dict.fromkeys(self.piece_names, ())

    def read_on(
        self,
        tokens: NDArray[np.int32] | AbstractArray,
        after_piece: Callable[[Call], None] = lambda call: None,
    ) -> Pass:
        """A pass over new tokens of the same sequences, which see all that came before.

        Arguments and errors are those of `run`; more tokens are one for a network of a single pass
        too.
        """
        other = not_continued(operations_of(self.description)) if self._length else None
        if other is not None:
            raise ValueError(
                f"private: the network must end after one pass, as {other} reads all tokens, got "
                f"{tokens.shape[1]} more"
            )
        context = self.description["context_length"]
        free = context - self._length
        if len(tokens.shape) != 2 or tokens.shape[0] < 1 or not 1 <= tokens.shape[1] <= free:
            raise ValueError(
                f"private: tokens must be [B, T] with T from 1 to {free} of the context's "
                f"{context}, got {list(tokens.shape)}"
            )
        parties, calls = self._parties, []
        value = parties.put("tokens", tokens, Party.CLIENT, private=parties.settings.client_one_hot)
        opened: dict[str, Any] = {}
        for piece in self._pieces:
            name = piece.name
            if isinstance(piece.function, Rows):
                rows = replace(piece.function, start=self._length)
                given = self._weights[name], value, self._earlier[name]
                result, kept = parties.run(name, rows, *given)
                parties.discard(*self._earlier[name])
                self._earlier[name] = kept
            else:
                result = parties.run(name, piece.function, value)
            calls.append(parties.calls[-1])
            parties.discard(value)
            value = result
            opened[name] = self._opened(name, value)
            after_piece(calls[-1])
        parties.discard(value)
        self._length += tokens.shape[1]
        likeliest = opened.get("top-k")
        found = opened.get("argmax") if likeliest is None else likeliest[0][:, 0]
        if found is not None and found.ndim > 1:
            found = found[:, -1]
        return Pass(opened["head"], found, likeliest, tuple(calls))

    def _opened(self, piece: str, value: Any) -> Any:
        """The client's part of a piece's result; only here anything is revealed to it."""
        parties, reveal = self._parties, self._parties.settings.reveal
        if piece == "head" and reveal == "last-logits":
            row = parties.run("last row", last_row, value)
            opened = parties.reveal(row)
            parties.discard(row)
            return opened
        if piece == "argmax" or (piece == "head" and reveal == "all"):
            return parties.reveal(value)
        if piece == "top-k":
            both = [parties.reveal(each) for each in value]
            return None if both[0] is None else tuple(both)
        return None
