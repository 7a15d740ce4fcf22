"""A described network in NumPy: the meaning of every operation, in code.

Needs NumPy and safetensors, no torch. Letters: B batch, T tokens, C width, H heads, G key heads, D
head width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aero.network.description import (
    LENGTHS,
    POSITIONS,
    TOKENS,
    Network,
    Operation,
    unknown_operation,
)
from aero.network.primitives import READERS, functions_of

Array = NDArray[np.float64]
Weights = dict[str, Array]


def forward(network: Network, token_ids: ArrayLike, lengths: ArrayLike | None = None) -> Array:
    """Logits of every position, computed in float64.

    Args:
        network: from `read_network`.
        token_ids: [B, T] integers; T at most the network's context length.
        lengths: [B] integers, how many tokens of each sequence are its own; those behind are
            padding, which softmaxes and pools over lengths do not see. None: all.

    Returns:
        [B, T, V], or [B, V] of a network that pools; of one that ends in argmax the places alone,
        without the last axis.

    Raises:
        ValueError: tokens of another shape, too many of them, or one beyond the vocabulary; lengths
            of another shape, or beyond the tokens; an operation that has a price alone.
    """
    unknown = unknown_operation("NumPy", network.operations())
    if unknown is not None:
        raise ValueError(f"forward: {unknown} has a price alone, and no numbers")
    values = given_values(network, np.asarray(token_ids), lengths)
    for operation in network.operations():
        inputs = (values[name] for name in operation.inputs)
        values[operation.output] = OPERATIONS[operation.op](
            operation, network.weights(operation), *inputs
        )
    logits: Array = values["logits"]
    return logits


def given_values(
    network: Network, tokens: NDArray[Any], lengths: ArrayLike | None
) -> dict[str, Any]:
    """The values that are given; refuses what `forward` says."""
    context = network.description["context_length"]
    vocabulary = network.description["vocab_size"]
    if tokens.ndim != 2 or tokens.shape[1] > context:
        raise ValueError(
            f"forward: token_ids must be [B, T] with T <= {context}, got {list(tokens.shape)}"
        )
    unknown = tokens[(tokens < 0) | (tokens >= vocabulary)]
    if unknown.size:
        raise ValueError(
            f"forward: token_ids must be from 0 to {vocabulary - 1}, the vocabulary, "
            f"got {unknown[0]}"
        )
    sequences, longest = tokens.shape
    own = np.full(sequences, longest) if lengths is None else np.asarray(lengths)
    whole = own.shape == (sequences,) and np.issubdtype(own.dtype, np.integer)
    if not whole or not np.all((own >= 1) & (own <= longest)):
        raise ValueError(
            f"forward: lengths must be [{sequences}] integers from 1 to {longest}, "
            f"got {own.tolist()}"
        )
    return {TOKENS: tokens, POSITIONS: np.arange(longest)[None], LENGTHS: own}


def _embed(_: Operation, weights: Weights, rows: NDArray[Any]) -> Array:
    found: Array = weights["weight"][rows]
    return found


def _linear(operation: Operation, weights: Weights, x: Array) -> Array:
    matrix = weights["weight"]
    product: Array = x @ (matrix.T if operation["transposed"] else matrix)
    return product + weights.get("bias", 0.0)


def _split_heads(operation: Operation, _: Weights, x: Array) -> Array:
    start, heads, width = (operation[name] for name in ("start", "heads", "head_dim"))
    chosen = x[..., start : start + heads * width]
    return chosen.reshape(*x.shape[:2], heads, width).swapaxes(1, 2)


def _join_heads(_: Operation, __: Weights, x: Array) -> Array:
    return x.swapaxes(1, 2).reshape(x.shape[0], x.shape[2], -1)


def _rotate(operation: Operation, _: Weights, x: Array) -> Array:
    channels = operation["channels"]
    half = channels // 2
    frequencies = operation["base"] ** (-np.arange(0, channels, 2) / channels)
    angles = np.arange(x.shape[2])[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = x[..., :half], x[..., half:channels]
    turned = (first * cos - second * sin, second * cos + first * sin, x[..., channels:])
    return np.concatenate(turned, axis=-1)


def _scores(operation: Operation, weights: Weights, query: Array, key: Array) -> Array:
    group = operation["heads"] // operation["key_heads"]
    scores: Array = operation["scale"] * query @ np.repeat(key, group, axis=1).swapaxes(-1, -2)
    if "inverse_temperature" in weights:
        scores = scores * weights["inverse_temperature"][:, : query.shape[2], None]
    if operation["soft_cap"] > 0:
        scores = operation["soft_cap"] * np.tanh(scores / operation["soft_cap"])
    return scores


def visible(
    operation: Operation, length: int, lengths: NDArray[Any] | None = None
) -> NDArray[np.bool_]:
    """The keys that the rows of a softmax see: [T, T], or [B, 1, T, T] where lengths are given."""
    seen = np.tri(length, dtype=bool) if operation["causal"] else np.ones((length, length), bool)
    if operation["window"] > 0:
        seen &= ~np.tri(length, k=-operation["window"], dtype=bool)
    if lengths is None:
        return seen
    return seen & (np.arange(length) < lengths[:, None, None, None])


def distances(table: Any, length: int) -> NDArray[np.int64]:
    """The places [T, T] of each query and key in a table [H, 2 T - 1] of biases by distance."""
    context = (table.shape[-1] + 1) // 2
    places: NDArray[np.int64] = context - 1 + np.arange(length)[:, None] - np.arange(length)
    return places


def with_sink(scores: NDArray[Any], sink: NDArray[Any]) -> NDArray[Any]:
    """[B, H, T, S] scores with the sink of each head as one more key."""
    column = np.broadcast_to(sink[:, None, None], (*scores.shape[:-1], 1))
    return np.concatenate([scores, column], axis=-1)


def _softmax(
    operation: Operation, weights: Weights, scores: Array, lengths: NDArray[Any] | None = None
) -> Array:
    keys = scores.shape[-1]
    if "bias" in weights:
        scores = scores + weights["bias"][:, distances(weights["bias"], keys)]
    scores = np.where(visible(operation, keys, lengths), scores, -np.inf)
    if "sink" in weights:
        scores = with_sink(scores, weights["sink"])
    largest = scores.max(axis=-1, keepdims=True)
    shares: Array = np.exp(scores - np.where(largest > -np.inf, largest, 0.0))
    total = shares.sum(axis=-1, keepdims=True)
    probabilities: Array = shares / np.where(total > 0, total, 1.0)
    return probabilities[..., :keys]


def _shape(_: Operation, weights: Weights, probabilities: Array) -> Array:
    identity, softmax, uniform = (
        weights[role][:, None, None] for role in ("identity", "softmax", "uniform")
    )
    length = probabilities.shape[-1]
    means = np.tri(length) / np.arange(1, length + 1)[:, None]
    return identity * np.eye(length) + softmax * probabilities - uniform * means


def _weighted_sum(operation: Operation, _: Weights, probabilities: Array, value: Array) -> Array:
    group = operation["heads"] // operation["key_heads"]
    return probabilities @ np.repeat(value, group, axis=1)


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _norm(operation: Operation, weights: Weights, x: Array) -> Array:
    return _NORMS[operation["kind"]](operation, weights, x)


def _diagonal(_: Operation, weights: Weights, x: Array) -> Array:
    return x * weights["scale"]


def _dynamic_tanh(_: Operation, weights: Weights, x: Array) -> Array:
    return _with_gain(np.tanh(x * weights["alpha"]), weights)


def _dynamic_erf(_: Operation, weights: Weights, x: Array) -> Array:
    return _with_gain(_erf(x * weights["alpha"] + weights["shift"]), weights)


def _layer(operation: Operation, weights: Weights, x: Array) -> Array:
    return _rms(operation, weights, x - x.mean(axis=-1, keepdims=True))


def _rms(operation: Operation, weights: Weights, x: Array) -> Array:
    mean_square = (x * x).mean(axis=-1, keepdims=True)
    return _with_gain(x / np.sqrt(mean_square + operation["epsilon"]), weights)


def _with_gain(x: Array, weights: Weights) -> Array:
    return x * weights["weight"] + weights.get("bias", 0.0)


_NORMS: dict[str, Callable[[Operation, Weights, Array], Array]] = {
    "layer": _layer,
    "rms": _rms,
    "diagonal": _diagonal,
    "dynamic_tanh": _dynamic_tanh,
    "dynamic_erf": _dynamic_erf,
}


def _activation(operation: Operation, _: Weights, x: Array) -> Array:
    return _ACTIVATIONS[operation["function"]](operation, x)


def _gelu_tanh(_: Operation, x: Array) -> Array:
    tanh: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + tanh)


_ACTIVATIONS: dict[str, Callable[[Operation, Array], Array]] = {
    "relu": lambda _, x: np.maximum(x, 0.0),
    "leaky_relu": lambda operation, x: np.where(x > 0, x, operation["slope"] * x),
    "gelu_tanh": _gelu_tanh,
    "gelu_erf": lambda _, x: 0.5 * x * (1 + _erf(x / math.sqrt(2))),
    "silu": lambda _, x: x / (1 + np.exp(-x)),
    "tanh": lambda _, x: np.tanh(x),
    "sigmoid": lambda _, x: 1 / (1 + np.exp(-x)),
    "exp": lambda _, x: np.exp(x),
    "reciprocal": lambda _, x: np.reciprocal(x),
    "rsqrt": lambda _, x: 1 / np.sqrt(x),
    "relu_squared": lambda _, x: np.maximum(x, 0.0) ** 2,
}


def _multiply(_: Operation, __: Weights, x: Array, y: Array) -> Array:
    return x * y


def _add(_: Operation, __: Weights, *summands: Array) -> Array:
    total, *rest = summands
    for one in rest:
        total = total + one
    return total


def _scale(operation: Operation, _: Weights, x: Array) -> Array:
    factor: float = operation["factor"]
    return factor * x


def _shift(operation: Operation, _: Weights, x: Array) -> Array:
    shifted = np.zeros_like(x)
    shifted[:, operation["tokens"] :] = x[:, : -operation["tokens"]]
    return shifted


def _unfold(operation: Operation, _: Weights, x: Array) -> Array:
    unfolded = np.zeros((*x.shape[:2], operation["taps"], x.shape[2]), x.dtype)
    for delay in range(min(operation["taps"], x.shape[1])):
        unfolded[:, delay:, delay] = x[:, : x.shape[1] - delay]
    return unfolded.reshape(*x.shape[:2], -1)


def _pool(operation: Operation, _: Weights, x: Array, lengths: NDArray[Any] | None = None) -> Array:
    return _POOLS[operation["kind"]](x, lengths)


def first_row(x: NDArray[Any], _: NDArray[Any] | None) -> NDArray[Any]:
    """The first row of each sequence."""
    return x[:, 0]


def last_row(x: NDArray[Any], lengths: NDArray[Any] | None) -> NDArray[Any]:
    """The last row of each sequence that is its own."""
    last = x.shape[1] - 1 if lengths is None else lengths - 1
    row: NDArray[Any] = x[np.arange(len(x)), last]
    return row


def _mean_row(x: Array, lengths: NDArray[Any] | None) -> Array:
    own, count = own_rows(x, lengths)
    means: Array = own.sum(axis=1) / count
    return means


def own_rows(x: NDArray[Any], lengths: NDArray[Any] | None) -> tuple[NDArray[Any], Any]:
    """[B, T, C] with zeros for padding, and how many rows are left of each sequence, [B, 1]."""
    if lengths is None:
        return x, x.shape[1]
    own = np.arange(x.shape[1]) < lengths[:, None]
    return np.where(own[..., None], x, 0), lengths[:, None]


_POOLS = {"last": last_row, "first": first_row, "mean": _mean_row}


def _argmax(_: Operation, __: Weights, x: Array) -> NDArray[np.int64]:
    places: NDArray[np.int64] = np.argmax(x, axis=-1)
    return places


OPERATIONS = functions_of(
    globals(), READERS["NumPy"], norm=_NORMS, activation=_ACTIVATIONS, pool=_POOLS
)
