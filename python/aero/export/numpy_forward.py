"""The forward pass of an exported network in NumPy: the meaning of `network.json`, in code.

Needs NumPy and safetensors, no torch. Letters: B batch, T tokens, C width, H heads, D head width,
V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import ArrayLike, NDArray

from aero.export.description_file import read_description
from aero.reading import UnreadableFileError, checked, library_errors, shown

Array = NDArray[np.float64]
Part = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Network:
    """An exported network.

    Attributes:
        description: the content of `network.json`.
        tensors: the content of `weights.safetensors`, as float64.
    """

    description: Part
    tensors: dict[str, Array]

    def tensor(self, name: str | None) -> Array:
        """A tensor by its name, 0 for a part that is absent."""
        return np.zeros(()) if name is None else self.tensors[name]


def read_network(folder: str | Path) -> Network:
    """Reads a folder of `aero.export_weights`.

    Raises:
        ValueError: a damaged file, another format or version, or weights of another export.
        OSError: the weights are missing.
    """
    folder = Path(folder)
    description = read_description(folder)
    name = str(folder / "network.json")
    file = checked(description, {"weights": dict}, name)["weights"]
    content = (folder / file["file"]).read_bytes()
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(
            f"read_network: {folder / file['file']} is not the file that network.json describes; "
            "export the network again"
        )
    with library_errors(folder / file["file"], "safetensors"):
        tensors = safetensors.numpy.load(content)
    described = {name: tensor["shape"] for name, tensor in description["tensors"].items()}
    found = {name: list(tensor.shape) for name, tensor in tensors.items()}
    if found != described:
        differing = sorted(k for k in {*found, *described} if found.get(k) != described.get(k))[0]
        raise UnreadableFileError(
            f"{name}: tensor {shown(differing)}: expected the shape of the weights' file, "
            f"{found.get(differing)}, got {described.get(differing)}"
        )
    return Network(description, {k: v.astype(np.float64) for k, v in tensors.items()})


def forward(network: Network, token_ids: ArrayLike) -> Array:
    """Logits of every position, computed in float64.

    Args:
        network: from `read_network`.
        token_ids: [B, T] integers; T at most the network's context length.

    Returns:
        [B, T, V].

    Raises:
        ValueError: tokens of another shape, too many of them, or one beyond the vocabulary.
    """
    tokens = np.asarray(token_ids)
    described, context = network.description, network.description["spec"]["context_length"]
    if tokens.ndim != 2 or tokens.shape[1] > context:
        raise ValueError(
            f"forward: token_ids must be [B, T] with T <= {context}, got {list(tokens.shape)}"
        )
    embeddings = network.tensor(described["token_embedding"])
    unknown = tokens[(tokens < 0) | (tokens >= len(embeddings))]
    if unknown.size:
        raise ValueError(
            f"forward: token_ids must be from 0 to {len(embeddings) - 1}, the vocabulary, "
            f"got {unknown[0]}"
        )
    stream = described["embedding_scale"] * embeddings[tokens]
    if described["position_embedding"] is not None:
        stream = stream + network.tensor(described["position_embedding"])[: tokens.shape[1]]
    for layer in described["layers"]:
        stream = _layer(network, layer, stream)
    head = described["head"]
    weight = network.tensor(head["weight"])
    outputs: Array = _norm(network, described["final_norm"], stream) @ (
        weight.T if head["transposed"] else weight
    )
    return outputs + network.tensor(head["bias"])


def _layer(network: Network, layer: Part, stream: Array) -> Array:
    inputs = _norm(network, layer["norm_1"], stream)
    attended = _attention(network, layer["attention"], inputs)
    mlp = layer["feed_forward"]
    if layer["residual"] == "skipless":
        if mlp is None:
            return attended
        output_factor: float = mlp["output_factor"]
        return attended + output_factor * _feed_forward(network, mlp, inputs)
    if layer["residual"] == "parallel":
        return attended + _after_feed_forward(network, layer, stream)
    return _after_feed_forward(network, layer, stream + attended)


def _after_feed_forward(network: Network, layer: Part, stream: Array) -> Array:
    mlp = layer["feed_forward"]
    if mlp is None:
        return stream
    inputs = _norm(network, layer["norm_2"], stream)
    stream_factor: float = mlp["stream_factor"]
    output_factor: float = mlp["output_factor"]
    return stream_factor * stream + output_factor * _feed_forward(network, mlp, inputs)


def _norm(network: Network, norm: Part | None, stream: Array) -> Array:
    if norm is None:
        return stream
    if norm["kind"] == "diagonal":
        scaled: Array = stream * network.tensor(norm["scale"])
        return scaled
    weight, bias = network.tensor(norm["weight"]), network.tensor(norm["bias"])
    if norm["kind"] in ("dynamic_tanh", "dynamic_erf"):
        inner = stream * network.tensor(norm["alpha"]) + network.tensor(norm["shift"])
        squashed: Array = np.tanh(inner) if norm["kind"] == "dynamic_tanh" else _erf(inner)
        return squashed * weight + bias
    centred = stream - stream.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(stream.var(axis=-1, keepdims=True) + norm["epsilon"])
    normed: Array = centred / deviation * weight
    return normed + bias


_erf = np.vectorize(math.erf, otypes=[np.float64])


def _attention(network: Network, attention: Part, inputs: Array) -> Array:
    num_heads, length = attention["num_heads"], inputs.shape[1]
    query, key, value = (
        _split_heads(_affine(network, attention[part], inputs), num_heads)
        for part in ("query", "key", "value")
    )
    if network.description["rotary"] is not None:
        query, key = (_rotate(x, **network.description["rotary"]) for x in (query, key))
    scores = attention["score_scale"] * query @ key.swapaxes(-1, -2)  # [B, H, T, T]
    if attention["inverse_temperature"] is not None:
        factors = network.tensor(attention["inverse_temperature"])[:, :length]
        scores = scores * factors[:, :, None]
    visible = np.tri(length, dtype=bool)
    scores = np.where(visible, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attended = weights / weights.sum(axis=-1, keepdims=True) @ value
    if attention["shape_factors"] is not None:
        identity, softmax, uniform = (
            network.tensor(attention["shape_factors"][factor])[:, None, None]
            for factor in ("identity", "softmax", "uniform")
        )
        means = visible / visible.sum(axis=-1, keepdims=True) @ value
        attended = identity * value + softmax * attended - uniform * means
    joined = attended.swapaxes(1, 2).reshape(*inputs.shape[:2], -1)
    return _affine(network, attention["output"], joined)


def _feed_forward(network: Network, mlp: Part, inputs: Array) -> Array:
    hidden = _affine(network, mlp["matrices"][0], inputs)
    if len(mlp["matrices"]) == 1:
        return hidden
    return _affine(network, mlp["matrices"][1], _activation(mlp, hidden))


def _activation(mlp: Part, x: Array) -> Array:
    kind = mlp["activation"]
    if kind is None:
        return x
    if kind == "relu":
        return np.maximum(x, 0.0)
    if kind == "leaky_relu":
        leaky: Array = np.where(x > 0, x, mlp["negative_slope"] * x)
        return leaky
    if kind == "gelu_tanh":
        gelu: Array = 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return gelu
    if kind == "gelu_erf":
        exact: Array = 0.5 * x * (1 + _erf(x / math.sqrt(2)))
        return exact
    raise ValueError(f"forward: unknown activation {kind!r}")


def _affine(network: Network, matrix: Part | None, inputs: Array) -> Array:
    """``inputs W + b``; the inputs themselves where there is no matrix."""
    if matrix is None:
        return inputs
    product: Array = inputs @ network.tensor(matrix["weight"])
    return product + network.tensor(matrix["bias"])


def _split_heads(projected: Array, num_heads: int) -> Array:
    """[B, T, H * D] -> [B, H, T, D]."""
    return projected.reshape(*projected.shape[:2], num_heads, -1).swapaxes(1, 2)


def _rotate(heads: Array, channels: int, base: float) -> Array:
    """Turns the channel pairs (i, i + channels / 2) of [B, H, T, D]."""
    half = channels // 2
    frequencies = base ** (-np.arange(0, channels, 2) / channels)
    angles = np.arange(heads.shape[2])[:, None] * frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = heads[..., :half], heads[..., half:channels]
    turned = (first * cos - second * sin, second * cos + first * sin, heads[..., channels:])
    return np.concatenate(turned, axis=-1)
