"""A described network as the pieces of a private forward pass.

A piece is a function of its weights and of the stream: the embedding, each layer, the final norm
with the LM head, then the argmax. What later tokens see of earlier ones, keys and values above all,
it takes and gives back longer. Letters: B sequences, T new tokens, C width, V vocabulary. Needs the
private environment.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from aero.network.description import GIVEN, LENGTHS, POSITIONS, TOKENS, Network, Operation
from aero.network.folding import Folding, Step, folded_steps
from aero.network.primitives import PRIMITIVES
from aero.private.compute.forward import LOWEST_SCORE, OPERATIONS
from aero.private.settings import PrivateSettings

Array = Any  # of JAX, or of SPU's compiler in its place
Weights = dict[str, Array]
Tensor = np.ndarray[Any, Any]
# Each operation, and by the role of a weight its name, or those of its slices.
Parts = tuple[tuple[Operation, dict[str, tuple[str, ...]]], ...]
# What SPU would cut into tiles of 256 MiB keeps nothing of the weights that it has opened.
_MOST_CACHED = 1 << 24


@dataclass(frozen=True)
class Rows:
    """What a piece computes of new rows; equal for layers that differ in their weights alone.

    Attributes:
        key: equal where two compute the same.
        parts: the operations, with the names of their weights.
        given: the value that they read.
        last: of each sequence the last new row alone.
        settings: of both parties.
        start: how many tokens of each sequence came in earlier passes.
        lengths: how many tokens of each sequence are its own, all without.
    """

    key: Hashable
    parts: Parts = field(compare=False)
    given: str = field(compare=False)
    last: bool
    settings: PrivateSettings = field(compare=False)
    start: int = 0
    lengths: tuple[int, ...] | None = None

    def __call__(
        self, weights: Weights, value: Array, earlier: tuple[Array, ...] = ()
    ) -> tuple[Array, tuple[Array, ...]]:
        """The new rows of the next value, and what later passes are to be given as `earlier`.

        Args:
            weights: by name.
            value: [B, T, C], of the embedding the tokens [B, T].
            earlier: from the pass before.
        """
        positions = np.arange(self.start, self.start + value.shape[1])
        if self.last:
            value, positions = value[:, -1:], positions[-1:]
        lengths = None if self.lengths is None else np.array(self.lengths)
        values: dict[str, Array] = {self.given: value, POSITIONS: positions, LENGTHS: lengths}
        kept: list[Array] = []
        for operation, keys in self.parts:
            own = {role: _own(weights, names) for role, names in keys.items()}
            inputs = [values[name] for name in operation.inputs]
            primitive = PRIMITIVES[operation.op]
            if primitive.earlier is not None:
                place, reads = primitive.earlier
                if earlier:
                    both = [earlier[len(kept)], inputs[place]]
                    inputs[place] = jnp.concatenate(both, axis=-2)
                kept.append(_tail(inputs[place], reads(operation.fields)))
            if operation.op == "rotate":
                inputs.append(positions)
            result = OPERATIONS[operation.op](operation, own, self.settings, *inputs)
            if primitive.moves_tokens:
                result = result[:, -len(positions) :]
            values[operation.output] = result
        return values[self.parts[-1][0].output], tuple(kept)


def _own(weights: Weights, names: tuple[str, ...]) -> Array:
    found = tuple(weights[name] for name in names)
    return found if len(found) > 1 else found[0]


def _tail(x: Array, rows: int | None) -> Array:
    """The last rows; all for None."""
    return x if rows is None else x[..., max(0, x.shape[-2] - rows) :, :]


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the forward pass.

    Attributes:
        name: "embedding", "layer 0", ..., "head", then "argmax", "top-k" or neither.
        function: of the weights, the previous piece's result and what is kept of earlier passes;
            of the embedding: the tokens [B, T]. After the head: of the logits alone.
        weights: by name, float32; the server's.
        cached: names of the weights of which a protocol may keep what it has opened.
    """

    name: str
    function: Rows | Callable[[Array], Array]
    weights: dict[str, Tensor]
    cached: tuple[str, ...] = ()


def network_pieces(network: Network, settings: PrivateSettings) -> list[Piece]:
    """The pieces of a forward pass, in order.

    Args:
        network: from `read_network`, or of `with_blank_weights`.
        settings: of both parties.

    Returns:
        Embedding [B, T] -> [B, T, C], layers [B, T, C] -> [B, T, C], head [B, T, C] -> [B, T, V]
        or, with `last_token_head` or a pool, [B, 1, V], and with `argmax` the last position's token
        [B], with `reveal="top-k"` its k likeliest tokens [B, k] and their logits [B, k]. An argmax
        that ends the network takes their place, [B, T] or [B, 1].

    Raises:
        ValueError: more than one value goes from a piece to the next.
    """
    steps = folded_steps(network, Folding(score_scale=settings.fold_score_scale))
    chooses = steps.pop().operation if steps[-1].operation.op == "argmax" else None
    pieces: list[Piece] = []
    given = TOKENS
    for layer, group in itertools.groupby(steps, key=lambda step: step.operation.layer):
        name = f"layer {layer}" if layer is not None else "head" if pieces else "embedding"
        piece, given = _piece(name, list(group), given, network, settings)
        pieces.append(piece)
    if chooses is not None:
        own = functools.partial(OPERATIONS["argmax"], chooses, {}, settings)
        pieces.append(Piece("argmax", own, {}))
    elif settings.reveal == "top-k":
        pieces.append(Piece("top-k", functools.partial(likeliest, count=settings.top_k), {}))
    elif settings.argmax:
        pieces.append(Piece("argmax", next_token, {}))
    return pieces


def _piece(
    name: str, steps: list[Step], given: str, network: Network, settings: PrivateSettings
) -> tuple[Piece, str]:
    """A piece that reads `given`, and the value that it makes for the next."""
    context = network.description["context_length"]
    weights: dict[str, Tensor] = {}
    cached: list[str] = []
    parts: list[tuple[Operation, dict[str, tuple[str, ...]]]] = []
    known = {name: name for name in GIVEN} | {given: "given"}
    key: list[Hashable] = []
    for step in steps:
        operation, tensors = _with_mask(step.operation, steps), _prepared(step, context)
        for needed in operation.inputs:
            if needed not in known:
                raise ValueError(
                    f"private: {name} reads {needed!r}; one value, the stream, may go from a layer "
                    "to the next"
                )
        inputs = tuple(known[needed] for needed in operation.inputs)
        known[operation.output] = str(len(parts))
        keys = {}
        for role, tensor in tensors.items():
            own, axis = _key(operation, role, weights), _cut_axis(operation, role, settings)
            slices = _slices(own, tensor.astype(np.float32), axis, settings)
            keys[role] = tuple(slices)
            weights |= slices
            if axis is not None:
                cached += [name for name, x in slices.items() if x.size <= _MOST_CACHED]
        parts.append((operation, keys))
        fields = tuple(sorted(operation.fields.items()))
        key.append((operation.op, fields, inputs, tuple(sorted(keys.items()))))
    pools = any(step.operation.op == "pool" for step in steps)
    last = name == "head" and settings.last_token_head and not pools
    function = Rows(tuple(key), tuple(parts), given, last, settings)
    return Piece(name, function, weights, tuple(cached)), steps[-1].operation.output


def _with_mask(operation: Operation, steps: list[Step]) -> Operation:
    """Scores with the fields that say which of them the softmax behind them sees."""
    if operation.op != "scores":
        return operation
    after = steps[[step.operation for step in steps].index(operation) + 1 :]
    reading = (
        step.operation.fields
        for step in after
        if step.operation.op == "softmax" and step.operation.inputs[0] == operation.output
    )
    softmax = next(reading)
    seen = {name: softmax[name] for name in ("causal", "window")}
    return replace(operation, fields={**operation.fields, **seen})


def _cut_axis(operation: Operation, role: str, settings: PrivateSettings) -> int | None:
    """The axis along which a factor of a matrix product is cut; None of other weights."""
    if role != "weight":
        return None
    if operation.op == "embed":
        return 0 if settings.client_one_hot and operation.inputs == (TOKENS,) else None
    return 1 if operation.op == "linear" else None


def _slices(
    name: str, tensor: Tensor, axis: int | None, settings: PrivateSettings
) -> dict[str, Tensor]:
    """A weight, or its slices, by name."""
    lengths = [] if axis is None else settings.slice_lengths(tensor.shape[axis], tensor.size)
    if axis is None or len(lengths) < 2:
        return {name: tensor}
    cut = np.split(tensor, np.cumsum(lengths)[:-1], axis=axis)
    return {f"{name}, slice {number}": one for number, one in enumerate(cut)}


def _key(operation: Operation, role: str, taken: dict[str, Tensor]) -> str:
    """The tensor's name without its layer, and a new one where two operations share a tensor."""
    name = operation.weights.get(role, f"{operation.op}.{role}")
    name = name.removeprefix(f"layers.{operation.layer}.")
    free = name not in taken and f"{name}, slice 0" not in taken
    return name if free else f"{name} as {role} of {operation.output}"


def _prepared(step: Step, context: int) -> dict[str, Tensor]:
    """The weights of an operation as its function below takes them."""
    if step.operation.op != "shape":
        return dict(step.weights)
    # identity I + softmax P - uniform M: all but the softmax's part as one matrix per head. The
    # rows of M, means of the positions so far, do not depend on later ones.
    means = np.tri(context) / np.arange(1, context + 1)[:, None]
    identity, factor, uniform = (
        step.weights[role][:, None, None] for role in ("identity", "softmax", "uniform")
    )
    return {"softmax": factor, "matrix": identity * np.eye(context) - uniform * means}


def forward(
    pieces: list[Piece], tokens: Array, length: int | None = None
) -> tuple[Array, Array | None]:
    """Logits [T, V] of tokens [T] and, where a piece makes it, the next token, in plain JAX.

    Tokens behind the first `length` are padding.
    """
    found: dict[str, Array] = {}
    value = jnp.asarray(tokens, jnp.int32)[None]
    for piece in pieces:
        weights = {name: jnp.asarray(tensor) for name, tensor in piece.weights.items()}
        if isinstance(piece.function, Rows):
            lengths = None if length is None else (length,)
            value, _ = replace(piece.function, lengths=lengths)(weights, value)
        else:
            value = piece.function(value)
        found[piece.name] = value
    token = found.get("argmax")
    return found["head"][0], None if token is None else token[0]


def next_token(logits: Array) -> Array:
    """[B, T, V] -> [B]: the first largest of each last row."""
    row = _last(logits)
    return jnp.argmax(row, axis=-1).astype(jnp.int32).reshape(-1)


def _last(logits: Array) -> Array:
    """[B, T, V] -> [B, V], or [V] of one sequence: an argmax of [1, V] sends other bytes."""
    row = logits[:, -1]
    return row[0] if len(row) == 1 else row


def likeliest(logits: Array, *, count: int) -> tuple[Array, Array]:
    """The largest of the last rows of [B, T, V], best first: tokens [B, k] and their logits."""
    row = _last(logits)
    places = jnp.arange(row.shape[-1])
    tokens, values = [], []
    for _number in range(min(count, row.shape[-1])):
        token = jnp.argmax(row, axis=-1)
        chosen = places == token[..., None]
        tokens.append(token.astype(jnp.int32))
        values.append(jnp.sum(jnp.where(chosen, row, 0.0), axis=-1))
        row = jnp.where(chosen, LOWEST_SCORE, row)
    found = jnp.stack(tokens, axis=-1), jnp.stack(values, axis=-1)
    return tuple(x.reshape(len(logits), -1) for x in found)


def last_row(logits: Array) -> Array:
    """[B, T, V] -> [B, 1, V]."""
    return logits[:, -1:]
