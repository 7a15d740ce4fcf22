"""The products that the owner of a network computes before a private run, at no cost.

The constants that a private run would pay a product or a truncation for go into the weights:
embedding scale, diagonal norms, the factors of scaled feed-forwards, temperatures per head. The
network computes the same function and is described in the same words.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.export.numpy_forward import Network

Array = NDArray[np.float64]
Part = dict[str, Any]

# The stored stream is the true one divided by what the feed-forwards of all layers multiplied it
# with. Within this range that costs the fixed-point numbers less than 4 of their 18 fraction bits.
_STREAM_SCALES = (1 / 16, 16.0)


def with_blank_weights(description: Part) -> Network:
    """A network of zeros: all that the other party knows of it."""
    shapes = {name: tuple(tensor["shape"]) for name, tensor in description["tensors"].items()}
    # One element each, seen as a whole tensor.
    return Network(description, {k: np.broadcast_to(0.0, shape) for k, shape in shapes.items()})


def fold_constants(network: Network, *, fold_score_scale: bool = False) -> Network:
    """The same function from fewer operations on secrets.

    The parts left of a layer: norms (`layer_norm`, `dynamic_tanh`, `dynamic_erf`, or `diagonal`
    where the values of skipless attention need it), matrices, scores with one scale, an activation.
    The choices depend on the description only, so that both parties come to the same network.

    Args:
        network: from `read_network`, or of `with_blank_weights`.
        fold_score_scale: also the factor 1/sqrt(D) of the scores.
    """
    return _Folding(network, fold_score_scale).result()


class _Folding:
    def __init__(self, network: Network, fold_score_scale: bool) -> None:
        self.network, self.description = network, network.description
        self.fold_score_scale = fold_score_scale
        self.tensors: dict[str, Array] = {}
        self.stream_scale = 1.0  # the true stream / the stored one

    def result(self) -> Network:
        described = self.description
        embedding = self.network.tensor(described["token_embedding"])
        head = described["head"]
        weight = self.network.tensor(head["weight"])
        found = {
            **described,
            "token_embedding": self._keep(
                "token_embedding", described["embedding_scale"] * embedding
            ),
            "embedding_scale": 1.0,
            "position_embedding": self._copy(described["position_embedding"]),
            "layers": [self._layer(layer) for layer in described["layers"]],
        }
        final_norm, rows = self._norm(described["final_norm"])
        weight = weight.T if head["transposed"] else weight
        head = {
            "weight": self._keep("head.weight", _scale_rows(rows, weight)),
            "transposed": False,
            "bias": self._copy(head["bias"]),
        }
        return Network({**found, "final_norm": final_norm, "head": head}, self.tensors)

    def _layer(self, layer: Part) -> Part:
        mlp = layer["feed_forward"]
        norm_1, rows_1 = self._norm(layer["norm_1"])
        skipless = layer["residual"] == "skipless"
        if skipless and layer["norm_1"] is not None:  # its output is also the values
            norm_1, rows_1 = self._whole_norm(layer["norm_1"]), np.ones(())
            values = 1.0
        else:
            values = self.stream_scale
        norm_2, rows_2 = (norm_1, rows_1) if skipless else self._norm(layer["norm_2"])
        factor = 1.0
        if skipless:
            out = values
        else:
            factor = 1.0 if mlp is None else float(mlp["stream_factor"])
            low, high = _STREAM_SCALES
            out = self.stream_scale * factor
            if not low <= abs(out) <= high:
                out = self.stream_scale
            else:
                factor = 1.0
        # A sequential block's attention is added before the stream is multiplied.
        attention_out = self.stream_scale if layer["residual"] == "sequential" else out
        attention = self._attention(layer["attention"], rows_1, 1 / attention_out)
        self.stream_scale = out
        return {
            **layer,
            "norm_1": norm_1,
            "attention": attention,
            "norm_2": None if skipless else norm_2,
            "feed_forward": None if mlp is None else self._feed_forward(mlp, rows_2, factor),
        }

    def _norm(self, norm: Part | None) -> tuple[Part | None, Array]:
        """The norm of the stored stream, and the factors of the rows of the next matrix."""
        if norm is None:
            return None, np.asarray(self.stream_scale)
        if norm["kind"] == "diagonal":
            return None, self.network.tensor(norm["scale"]) * self.stream_scale
        return self._whole_norm(norm), np.ones(())

    def _whole_norm(self, norm: Part) -> Part:
        scale = self.stream_scale
        if norm["kind"] == "diagonal":
            kept = self._keep(norm["scale"], self.network.tensor(norm["scale"]) * scale)
            return {**norm, "scale": kept}
        if norm["kind"] != "layer_norm":  # f(a s x)
            parts = {part: self._copy(norm[part]) for part in ("weight", "bias", "shift")}
            alpha = self._keep(norm["alpha"], self.network.tensor(norm["alpha"]) * scale)
            return {**norm, **parts, "alpha": alpha}
        # LN of s x with epsilon is sign(s) times LN of x with epsilon / s^2.
        weight = np.sign(scale) * self.network.tensor(norm["weight"])
        return {
            **norm,
            "weight": self._keep(norm["weight"], weight),
            "bias": self._copy(norm["bias"]),
            "epsilon": norm["epsilon"] / scale**2,
        }

    def _attention(self, attention: Part, rows: Array, out: float) -> Part:
        found = dict(attention)
        query_scale: Array = np.ones(())
        if self.fold_score_scale:
            query_scale = np.asarray(attention["score_scale"])
            found["score_scale"] = 1.0
        temperature = attention["inverse_temperature"]
        if temperature is not None and self.description["spec"]["temperature"] == "head_position":
            found["inverse_temperature"] = self._copy(temperature)
        elif temperature is not None:  # the same at every position
            per_head = self.network.tensor(temperature)[:, 0]
            query_scale = query_scale * np.repeat(per_head, attention["head_dim"])
            found["inverse_temperature"] = None
        found["query"] = self._affine(attention["query"], rows, query_scale)
        found["key"] = self._affine(attention["key"], rows, np.ones(()))
        if attention["value"] is not None:
            found["value"] = self._affine(attention["value"], rows, np.ones(()))
            found["output"] = self._affine(attention["output"], np.ones(()), np.asarray(out))
        if attention["shape_factors"] is not None:
            factors = attention["shape_factors"]
            found["shape_factors"] = {key: self._copy(name) for key, name in factors.items()}
        return found

    def _feed_forward(self, mlp: Part, rows: Array, stream_factor: float) -> Part:
        out = np.asarray(mlp["output_factor"] / self.stream_scale)
        ones = np.ones(())
        first, *rest = mlp["matrices"]
        matrices = [self._affine(first, rows, ones if rest else out)]
        matrices += [self._affine(matrix, ones, out) for matrix in rest]
        return {
            **mlp,
            "matrices": matrices,
            "stream_factor": stream_factor,
            "output_factor": 1.0,
        }

    def _affine(self, matrix: Part, rows: Array, columns: Array) -> Part:
        weight = _scale_rows(rows, self.network.tensor(matrix["weight"])) * columns
        bias = matrix["bias"]
        if bias is not None:
            bias = self._keep(bias, self.network.tensor(bias) * columns)
        return {"weight": self._keep(matrix["weight"], weight), "bias": bias}

    def _copy(self, name: str | None) -> str | None:
        return None if name is None else self._keep(name, self.network.tensor(name))

    def _keep(self, name: str, tensor: Array) -> str:
        self.tensors[name] = tensor
        return name


def _scale_rows(rows: Array, weight: Array) -> Array:
    scaled: Array = rows[..., None] * weight
    return scaled
