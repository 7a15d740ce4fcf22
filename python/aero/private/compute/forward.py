"""The forward pass of an exported network in JAX, in pieces, as SPU is to compute it.

A piece is a function of its weights and of the stream: the embedding, each layer, the final norm
with the LM head, the argmax. The compiled form of the lines below decides the cost of a private
run; the simulator's stack `spu-0.9.5` prices exactly these. Letters: T tokens, C width, H heads,
D head width, V vocabulary. Needs the private environment.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from aero.export.numpy_forward import Network
from aero.private.settings import EXP_CLIP, PrivateSettings

Array = Any  # of JAX, or of SPU's compiler in its place
Part = dict[str, Any]
Weights = dict[str, Array]

# Below every score; a causal row's largest is found without looking at the scores to its right.
_LOWEST_SCORE = -16384.0


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
    weights: dict[str, np.ndarray[Any, Any]]


def network_pieces(network: Network, settings: PrivateSettings) -> list[Piece]:
    """The pieces of a forward pass, in order.

    Args:
        network: after `fold_constants`.
        settings: of both parties.

    Returns:
        Embedding [T] -> [T, C], layers [T, C] -> [T, C], head [T, C] -> [T, V] or, with
        `last_token_head`, [1, V], and with `argmax` the last position's token [], with
        `reveal="top-k"` its k likeliest tokens [k] and their logits [k].
    """
    described = network.description
    embeddings = {"token": described["token_embedding"]}
    if described["position_embedding"] is not None:
        embeddings["position"] = described["position_embedding"]
    embed = functools.partial(embedding, one_hot=settings.client_one_hot)
    pieces = [Piece("embedding", embed, _tensors(network, embeddings))]
    for index, described_layer in enumerate(described["layers"]):
        pieces.append(_layer_piece(network, index, described_layer, settings))
    head = _norm_names("norm", described["final_norm"])
    head |= _affine_names("head", described["head"])
    function = functools.partial(
        _head,
        final_norm=described["final_norm"],
        last_only=settings.last_token_head,
    )
    pieces.append(Piece("head", function, _tensors(network, head)))
    if settings.reveal == "top-k":
        pieces.append(Piece("top-k", functools.partial(likeliest, count=settings.top_k), {}))
    elif settings.argmax:
        pieces.append(Piece("argmax", next_token, {}))
    return pieces


def forward(pieces: list[Piece], tokens: Array) -> tuple[Array, Array | None]:
    """Logits and, where there is a piece for it, the next token, in plain JAX."""
    found: dict[str, Array] = {}
    value = jnp.asarray(tokens, jnp.int32)
    for piece in pieces:
        weights = {name: jnp.asarray(tensor) for name, tensor in piece.weights.items()}
        found[piece.name] = value = piece.function(weights, value)
    return found["head"], found.get("argmax")


def softmax(scores: Array, settings: PrivateSettings) -> Array:
    """Causal softmax of [..., T, T] scores, by the operations of a private run."""
    visible = np.tri(scores.shape[-1], dtype=bool)
    largest = jnp.max(jnp.where(visible, scores, _LOWEST_SCORE), axis=-1, keepdims=True)
    # Choices by public masks are free. The first keeps exp's argument in its range, the second is
    # the causal mask: by a mask of -infinity exp would leave the ring.
    shifted = jnp.where(visible, scores - largest, 0.0)
    weights = jnp.where(visible, clipped_exp(shifted, settings), 0.0)
    # SPU's compiler makes one reciprocal of each row of it, with `broadcast_reciprocal`.
    return weights / jnp.sum(weights, axis=-1, keepdims=True)


def clipped_exp(x: Array, settings: PrivateSettings) -> Array:
    """exp(x) for x <= 0, and 0 below `EXP_CLIP` with `exp_clip`."""
    weights = jnp.exp(x)
    return jnp.where(x > EXP_CLIP, weights, 0.0) if settings.exp_clip else weights


def _layer_piece(network: Network, index: int, layer: Part, settings: PrivateSettings) -> Piece:
    attention, mlp = layer["attention"], layer["feed_forward"]
    names = _norm_names("norm_1", layer["norm_1"]) | _norm_names("norm_2", layer["norm_2"])
    if attention["output"] is not None:
        names |= _affine_names("output", attention["output"])
    for number, matrix in enumerate(() if mlp is None else mlp["matrices"]):
        names |= _affine_names(f"ffn_{number}", matrix)
    weights = _tensors(network, names) | _projection(network, attention)
    if attention["inverse_temperature"] is not None:
        weights |= _tensors(network, {"temperature": attention["inverse_temperature"]})
    if attention["shape_factors"] is not None:
        weights |= _shape(network, attention["shape_factors"])
    function = functools.partial(
        _layer, layer=layer, rotary=network.description["rotary"], settings=settings
    )
    return Piece(f"layer {index}", function, weights)


def _projection(network: Network, attention: Part) -> dict[str, np.ndarray[Any, Any]]:
    """One matrix for queries, keys and values: one product, one truncation."""
    parts = [attention[part] for part in ("query", "key", "value") if attention[part] is not None]
    weights = [network.tensor(part["weight"]) for part in parts]
    found = {"projection.weight": np.concatenate(weights, axis=1)}
    if any(part["bias"] is not None for part in parts):
        found["projection.bias"] = np.concatenate(
            [
                np.broadcast_to(network.tensor(part["bias"]), weight.shape[1])
                for part, weight in zip(parts, weights, strict=True)
            ]
        )
    return {name: tensor.astype(np.float32) for name, tensor in found.items()}


def _shape(network: Network, names: Part) -> dict[str, np.ndarray[Any, Any]]:
    """Of shaped attention: the factor of the softmax, and all else as one matrix per head.

    identity * v + softmax * P v - uniform * M v = (softmax * P + identity * I - uniform * M) v,
    with the means M of the positions so far: its rows do not depend on later ones.
    """
    context = network.description["spec"]["context_length"]
    means = np.tri(context) / np.arange(1, context + 1)[:, None]
    identity, factor, uniform = (
        network.tensor(names[name])[:, None, None] for name in ("identity", "softmax", "uniform")
    )
    matrix = identity * np.eye(context) - uniform * means
    return {"shape": matrix.astype(np.float32), "shape.softmax": factor.astype(np.float32)}


def embedding(weights: Weights, tokens: Array, *, one_hot: bool) -> Array:
    """Rows of the table "token" for [T] tokens, and the first T of "position" if there are."""
    table = weights["token"]
    if one_hot:
        rows = (tokens[:, None] == jnp.arange(table.shape[0])).astype(jnp.int32)
        # Integers times fixed point: the product needs no truncation.
        stream = jax.lax.dot_general(
            rows, table, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32
        )
    else:
        stream = table.at[tokens].get(mode="promise_in_bounds")
    if "position" in weights:
        stream = stream + weights["position"][: tokens.shape[0]]
    return stream


def _head(weights: Weights, stream: Array, *, final_norm: Part | None, last_only: bool) -> Array:
    rows = stream[-1:] if last_only else stream
    return _affine(weights, "head", norm(weights, "norm", rows, final_norm))


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
        row = jnp.where(chosen, _LOWEST_SCORE, row)
    return jnp.stack(tokens), jnp.stack(values)


def last_row(logits: Array) -> Array:
    """[T, V] -> [1, V]."""
    return logits[-1:]


def _layer(
    weights: Weights, stream: Array, *, layer: Part, rotary: Part | None, settings: PrivateSettings
) -> Array:
    inputs = norm(weights, "norm_1", stream, layer["norm_1"])
    attended = _attention(weights, inputs, layer["attention"], rotary, settings)
    mlp = layer["feed_forward"]
    if layer["residual"] == "skipless":
        return attended if mlp is None else attended + _feed_forward(weights, inputs, mlp)
    parallel = layer["residual"] == "parallel"
    start = stream if parallel else stream + attended
    if mlp is not None:
        normed = norm(weights, "norm_2", start, layer["norm_2"])
        factor = mlp["stream_factor"]
        kept = start if factor == 1.0 else factor * start
        start = kept + _feed_forward(weights, normed, mlp)
    return attended + start if parallel else start


def norm(weights: Weights, name: str, stream: Array, described: Part | None) -> Array:
    """A described norm of [T, C] rows, with the weights named `name`; nothing for None."""
    if described is None:
        return stream
    if described["kind"] == "diagonal":
        return stream * weights[f"{name}.scale"]
    if described["kind"] in {"dynamic_tanh", "dynamic_erf"}:
        inner = stream * weights[f"{name}.alpha"]
        if f"{name}.shift" in weights:
            inner = inner + weights[f"{name}.shift"]
        # Functions of SPU itself: its erf is right to 6e-4, its tanh to 5e-3.
        function = jnp.tanh if described["kind"] == "dynamic_tanh" else jax.lax.erf
        squashed = function(inner) * weights[f"{name}.weight"]
        return squashed + weights[f"{name}.bias"] if f"{name}.bias" in weights else squashed
    # As Flax computes it: the mean of the squares, and the gain in the reciprocal root.
    mean = jnp.mean(stream, axis=-1, keepdims=True)
    mean_square = jnp.mean(stream * stream, axis=-1, keepdims=True)
    variance = jnp.maximum(0.0, mean_square - mean * mean)
    factor = jax.lax.rsqrt(variance + described["epsilon"]) * weights[f"{name}.weight"]
    normed = (stream - mean) * factor
    return normed + weights[f"{name}.bias"] if f"{name}.bias" in weights else normed


def _attention(
    weights: Weights, inputs: Array, attention: Part, rotary: Part | None, settings: PrivateSettings
) -> Array:
    length, heads = inputs.shape[0], attention["num_heads"]
    joined = _affine(weights, "projection", inputs)
    parts = 2 if attention["value"] is None else 3
    query, key, *rest = jnp.split(joined, parts, axis=-1)
    query, key = (_split_heads(part, heads) for part in (query, key))
    value = _split_heads(rest[0] if rest else inputs, heads)
    if rotary is not None:
        query, key = (_rotate(part, **rotary) for part in (query, key))
    if attention["score_scale"] != 1.0:
        query = query * attention["score_scale"]
    if "temperature" in weights:
        query = query * weights["temperature"][:, :length, None]
    probabilities = softmax(query @ key.swapaxes(-1, -2), settings)
    if "shape" in weights:
        probabilities = weights["shape.softmax"] * probabilities
        probabilities = probabilities + weights["shape"][:, :length, :length]
    attended = (probabilities @ value).swapaxes(0, 1).reshape(length, -1)
    return attended if attention["output"] is None else _affine(weights, "output", attended)


def _feed_forward(weights: Weights, inputs: Array, mlp: Part) -> Array:
    hidden = _affine(weights, "ffn_0", inputs)
    if len(mlp["matrices"]) == 1:
        return hidden
    return _affine(weights, "ffn_1", _activation(mlp, hidden))


def _activation(mlp: Part, x: Array) -> Array:
    kind = mlp["activation"]
    if kind is None:
        return x
    if kind == "relu":
        return jnp.maximum(x, 0.0)
    if kind == "leaky_relu":
        return jnp.where(x > 0, x, mlp["negative_slope"] * x)
    if kind in {"gelu_tanh", "gelu_erf"}:
        return jax.nn.gelu(x, approximate=kind == "gelu_tanh")
    raise ValueError(f"private: unknown activation {kind!r}")


def _affine(weights: Weights, name: str, inputs: Array) -> Array:
    product = inputs @ weights[f"{name}.weight"]
    return product + weights[f"{name}.bias"] if f"{name}.bias" in weights else product


def _split_heads(projected: Array, heads: int) -> Array:
    """[T, H * D] -> [H, T, D]."""
    return projected.reshape(projected.shape[0], heads, -1).swapaxes(0, 1)


def _rotate(heads: Array, channels: int, base: float) -> Array:
    """Turns the channel pairs (i, i + channels / 2) of [H, T, D]."""
    half = channels // 2
    frequencies = base ** (-np.arange(0, channels, 2) / channels)
    angles = np.arange(heads.shape[1])[:, None] * frequencies
    cos, sin = (np.tile(f(angles), 2).astype(np.float32) for f in (np.cos, np.sin))
    turning = heads[..., :channels]
    crossed = jnp.concatenate([-turning[..., half:], turning[..., :half]], axis=-1)
    turned = turning * cos + crossed * sin
    return jnp.concatenate([turned, heads[..., channels:]], axis=-1)


def _norm_names(name: str, norm: Part | None) -> dict[str, str]:
    if norm is None:
        return {}
    parts = ("scale", "weight", "bias", "alpha", "shift")
    return {f"{name}.{part}": norm[part] for part in parts if norm.get(part) is not None}


def _affine_names(name: str, part: Part) -> dict[str, str]:
    found = {f"{name}.weight": part["weight"], f"{name}.bias": part["bias"]}
    return {key: tensor for key, tensor in found.items() if tensor is not None}


def _tensors(network: Network, names: dict[str, str]) -> dict[str, np.ndarray[Any, Any]]:
    return {name: network.tensor(tensor).astype(np.float32) for name, tensor in names.items()}
