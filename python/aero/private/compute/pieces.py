"""A described network as the pieces of a private forward pass.

A piece is a function of its weights and of the stream: the embedding, each layer, the final norm
with the LM head, then the argmax. Letters: T tokens, C width, V vocabulary. Needs the private
environment.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from aero.network.description import POSITIONS, TOKENS, Network, Operation
from aero.network.folding import Folding, Step, folded_steps
from aero.private.compute.forward import LOWEST_SCORE, OPERATIONS
from aero.private.settings import PrivateSettings

Array = Any  # of JAX, or of SPU's compiler in its place
Weights = dict[str, Array]
Tensor = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """A part of the forward pass.

    Attributes:
        name: "embedding", "layer 0", ..., "head", then "argmax", "top-k" or neither.
        function: of the weights and the previous piece's result; of the embedding: the tokens [T],
            after the head: the logits.
        weights: by name, float32; the server's.
    """

    name: str
    function: Callable[[Weights, Array], Array]
    weights: dict[str, Tensor]


def network_pieces(network: Network, settings: PrivateSettings) -> list[Piece]:
    """The pieces of a forward pass, in order.

    Args:
        network: from `read_network`, or of `with_blank_weights`.
        settings: of both parties.

    Returns:
        Embedding [T] -> [T, C], layers [T, C] -> [T, C], head [T, C] -> [T, V] or, with
        `last_token_head`, [1, V], and with `argmax` the last position's token [], with
        `reveal="top-k"` its k likeliest tokens [k] and their logits [k].

    Raises:
        ValueError: more than one value goes from a piece to the next.
    """
    steps = folded_steps(network, Folding(score_scale=settings.fold_score_scale))
    pieces: list[Piece] = []
    given = TOKENS
    for layer, group in itertools.groupby(steps, key=lambda step: step.operation.layer):
        name = f"layer {layer}" if layer is not None else "head" if pieces else "embedding"
        piece, given = _piece(name, list(group), given, network, settings)
        pieces.append(piece)
    if settings.reveal == "top-k":
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
    parts: list[tuple[Operation, dict[str, str]]] = []
    known = {given, POSITIONS}
    for step in steps:
        operation, tensors = step.operation, _prepared(step, context)
        for needed in operation.inputs:
            if needed not in known:
                raise ValueError(
                    f"private: {name} reads {needed!r}; one value, the stream, may go from a layer "
                    "to the next"
                )
        known.add(operation.output)
        keys = {}
        for role, tensor in tensors.items():
            keys[role] = _key(operation, role, weights)
            weights[keys[role]] = tensor.astype(np.float32)
        parts.append((operation, keys))
    function = functools.partial(_run, parts=parts, given=given, name=name, settings=settings)
    return Piece(name, function, weights), steps[-1].operation.output


def _key(operation: Operation, role: str, taken: dict[str, Tensor]) -> str:
    """The tensor's name without its layer, and a new one where two operations share a tensor."""
    name = operation.weights.get(role, f"{operation.op}.{role}")
    name = name.removeprefix(f"layers.{operation.layer}.")
    return name if name not in taken else f"{name} as {role} of {operation.output}"


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


def _run(
    weights: Weights,
    value: Array,
    *,
    parts: list[tuple[Operation, dict[str, str]]],
    given: str,
    name: str,
    settings: PrivateSettings,
) -> Array:
    if name == "head" and settings.last_token_head:
        value = value[-1:]
    length = value.shape[0]
    values: dict[str, Array] = {given: value, POSITIONS: np.arange(length)}
    for operation, keys in parts:
        own = {role: weights[key] for role, key in keys.items()}
        inputs = (values[name] for name in operation.inputs)
        values[operation.output] = OPERATIONS[operation.op](operation, own, settings, *inputs)
    return values[parts[-1][0].output]


def forward(pieces: list[Piece], tokens: Array) -> tuple[Array, Array | None]:
    """Logits and, where there is a piece for it, the next token, in plain JAX."""
    found: dict[str, Array] = {}
    value = jnp.asarray(tokens, jnp.int32)
    for piece in pieces:
        weights = {name: jnp.asarray(tensor) for name, tensor in piece.weights.items()}
        found[piece.name] = value = piece.function(weights, value)
    return found["head"], found.get("argmax")


def next_token(_: Weights, logits: Array) -> Array:
    """The first largest of the last row of [T, V] logits."""
    return jnp.argmax(logits[-1]).astype(jnp.int32)


def likeliest(_: Weights, logits: Array, *, count: int) -> tuple[Array, Array]:
    """The largest of the last row of [T, V] logits, best first: tokens [k] and their logits [k]."""
    row = logits[-1]
    places = jnp.arange(row.shape[0])
    tokens, values = [], []
    for _number in range(min(count, row.shape[0])):
        token = jnp.argmax(row)
        chosen = places == token
        tokens.append(token.astype(jnp.int32))
        values.append(jnp.sum(jnp.where(chosen, row, 0.0)))
        row = jnp.where(chosen, LOWEST_SCORE, row)
    return jnp.stack(tokens), jnp.stack(values)


def last_row(logits: Array) -> Array:
    """[T, V] -> [1, V]."""
    return logits[-1:]
