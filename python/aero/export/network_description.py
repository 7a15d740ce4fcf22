"""An AERO network as plain matrices and a description of how they are joined, as files.

What training needs is gone: weight and spectral norms are multiplied out, running statistics are
one factor per channel, temperatures are inverted, thresholds are left out.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from aero.atomic_files import require_no_run, write_bytes_atomically, write_json_atomically
from aero.models import AeroForCausalLM
from aero.models.causal_lm import carry_over
from aero.nn import Block, CausalSelfAttention, FeedForward, FoldableNorm, ShapedSelfAttention
from aero.nn.annealed_modules import annealing_progress
from aero.nn.block import Norm
from aero.nn.norm import DynamicNorm

FORMAT = "aero-network"
VERSION = 1

# The conventions that a reader needs with the names; written into every file.
CONVENTIONS = {
    "matrices": "stored [in, out], row vectors: y = x W + b. Embeddings are [V, C] and [T, C].",
    "stream": (
        "x_0 = embedding_scale * E[token] + P[position]; logits = final_norm(x_L) W_head + bias. "
        "null stands for a part that is absent: a norm that is the identity, a bias of zeros, a "
        "feed-forward that adds nothing."
    ),
    "residual": (
        "sequential: y = x + A(N1(x)), x' = stream_factor * y + output_factor * F(N2(y)), or y "
        "where there is no feed-forward; parallel: x' = A(N1(x)) + stream_factor * x + "
        "output_factor * F(N2(x)), or A(N1(x)) + x; skipless: u = N1(x), x' = A(u) + "
        "output_factor * F(u)."
    ),
    "norm": (
        "layer_norm: (x - mean) / sqrt(variance + epsilon) * weight + bias over the channels; "
        "diagonal: x * scale, the gain over the root of the running mean square; dynamic_tanh: "
        "tanh(alpha x) * weight + bias; dynamic_erf: erf(alpha x + shift) * weight + bias."
    ),
    "attention": (
        "causal, in heads of head_dim consecutive channels: scores = score_scale * "
        "inverse_temperature[head, position of the query] * q k^T (already inverted: multiply), "
        "softmax over the keys up to the query's position, times the values, heads joined, times "
        "the output matrix. Without value and output: the values are the inputs and the heads' "
        "outputs are identity * v + softmax * P v - uniform * mean of the values up to the query, "
        "one factor per head."
    ),
    "rotary": (
        "on the first `channels` of each head's queries and keys: pairs (i, i + channels / 2) "
        "turn by the angle position * base^(-2 i / channels)."
    ),
    "feed_forward": (
        "F(x) = x W + b (one matrix) or act(x W_1 + b_1) W_2 + b_2; activation gelu_tanh: 0.5 x (1 "
        "+ tanh(sqrt(2 / pi) (x + 0.044715 x^3))), gelu_erf: 0.5 x (1 + erf(x / sqrt(2))), relu, "
        "leaky_relu with negative_slope, null: none."
    ),
}


class NetworkDescription:
    """Collects tensors and describes where they go.

    Args:
        model: the network.

    Raises:
        ValueError: the network is in the middle of an annealing.

    Attributes:
        tensors: by name, contiguous, on the CPU, float32 (float64 of a float64 network).
        content: of `network.json`, but for the file of the weights.
    """

    def __init__(self, model: AeroForCausalLM) -> None:
        if annealing_progress(model) is not None:
            raise ValueError(
                "export_weights: the network is in the middle of an annealing; train it to the end "
                "first"
            )
        self.tensors: dict[str, Tensor] = {}
        self._dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
        self._model = model
        with torch.no_grad():
            self.content = self._network()

    def _network(self) -> dict[str, Any]:
        model, config = self._model, self._model.config
        spec, decoder = config.spec, model.transformer
        positions = None if decoder.wpe is None else decoder.wpe.weight
        rotary = None
        if decoder.rotary_dim:
            rotary = {"channels": decoder.rotary_dim, "base": float(config.rotary_base)}
        described = {
            "format": FORMAT,
            "version": VERSION,
            "label": spec.label,
            "spec": spec.to_dict(),
            "conventions": CONVENTIONS,
            "token_embedding": self._keep("token_embedding", decoder.wte.weight),
            "embedding_scale": float(config.embedding_scale),
            "position_embedding": self._keep("position_embedding", positions),
            "rotary": rotary,
            "layers": [self._layer(index, block) for index, block in enumerate(decoder.blocks())],
            "final_norm": self._norm("final_norm", decoder.ln_f),
            "head": self._head(),
        }
        shapes = {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in self.tensors.items()
        }
        return {**described, "tensors": shapes}

    def _layer(self, index: int, block: Block) -> dict[str, Any]:
        name = f"layers.{index}"
        return {
            "residual": block.residual,
            "norm_1": self._norm(f"{name}.norm_1", block.ln_1),
            "attention": self._attention(f"{name}.attention", block.attn),
            "norm_2": self._norm(f"{name}.norm_2", block.ln_2),
            "feed_forward": self._feed_forward(f"{name}.feed_forward", block),
        }

    def _norm(self, name: str, norm: Norm | None) -> dict[str, Any] | None:
        if norm is None:
            return None
        if isinstance(norm, FoldableNorm):
            mean_square = norm.running_mean_square.double()
            scale = norm.weight.double() * torch.rsqrt(mean_square + norm.eps)
            return {"kind": "diagonal", "scale": self._keep(f"{name}.scale", scale)}
        described = self._affine(name, norm.weight, norm.bias)  # type: ignore[arg-type]
        if isinstance(norm, DynamicNorm):
            return {
                "kind": "dynamic_tanh" if norm.shift is None else "dynamic_erf",
                **described,
                "alpha": self._keep(f"{name}.alpha", norm.alpha),
                "shift": self._keep(f"{name}.shift", norm.shift),
            }
        assert isinstance(norm, nn.LayerNorm)
        return {"kind": "layer_norm", **described, "epsilon": norm.eps}

    def _attention(
        self, name: str, attention: CausalSelfAttention | ShapedSelfAttention
    ) -> dict[str, Any]:
        described: dict[str, Any] = {
            "num_heads": attention.num_heads,
            "head_dim": attention.head_dim,
            "score_scale": 1 / math.sqrt(attention.head_dim),
            "inverse_temperature": self._inverse_temperature(name, attention),
            "query": None,
            "key": None,
            "value": None,
            "output": None,
            "shape_factors": None,
        }
        for part, (weight, bias) in _projections(attention).items():
            described[part] = self._affine(f"{name}.{part}", weight, bias)
        if isinstance(attention, ShapedSelfAttention):
            factors = {"identity": "alpha", "softmax": "beta", "uniform": "gamma"}
            described["shape_factors"] = {
                factor: self._keep(f"{name}.{factor}", getattr(attention, own))
                for factor, own in factors.items()
            }
        return described

    def _inverse_temperature(
        self, name: str, attention: CausalSelfAttention | ShapedSelfAttention
    ) -> str | None:
        if attention.temperature is None:
            return None
        values: Tensor = attention.temperature().double()
        if values.dim() == 1:
            values = values.unsqueeze(-1)
        shape = (attention.num_heads, self._model.config.spec.context_length)
        return self._keep(f"{name}.inverse_temperature", values.expand(shape).reciprocal())

    def _feed_forward(self, name: str, block: Block) -> dict[str, Any] | None:
        mlp = block.mlp
        if mlp is None:
            return None
        alpha, beta = (getattr(mlp, factor, None) for factor in ("alpha", "beta"))
        factor = block.gain if block.gain is not None else alpha
        output_factor = 1.0 if factor is None else factor.double().item()
        described: dict[str, Any] = {
            "activation": None,
            "negative_slope": None,
            "stream_factor": 1.0 if beta is None else beta.double().item(),
            "output_factor": output_factor if block.gain is not None else 1 / output_factor,
        }
        if not isinstance(mlp, FeedForward):
            return {**described, "matrices": [self._affine(name, mlp.weight, mlp.bias)]}
        if mlp.activation == "leaky_relu":
            slope = mlp.negative_slope
            slope = self._model.transformer.negative_slope if slope is None else slope
            assert slope is not None
            described["negative_slope"] = slope.double().item()
        described["activation"] = _activation(mlp)
        matrices = [
            self._affine(f"{name}.{index}", layer.weight.t(), layer.bias)
            for index, layer in enumerate((mlp.c_fc, mlp.c_proj))
        ]
        return {**described, "matrices": matrices}

    def _head(self) -> dict[str, Any]:
        head, embedding = self._model.lm_head, self._model.transformer.wte
        bias = self._keep("head.bias", head.bias)
        if head.weight is embedding.weight:
            return {"weight": "token_embedding", "transposed": True, "bias": bias}
        weight = self._keep("head.weight", head.weight.t())
        return {"weight": weight, "transposed": False, "bias": bias}

    def _affine(self, name: str, weight: Tensor, bias: Tensor | None) -> dict[str, str | None]:
        return {
            "weight": self._keep(f"{name}.weight", weight),
            "bias": self._keep(f"{name}.bias", bias),
        }

    def _keep(self, name: str, tensor: Tensor | None) -> str | None:
        if tensor is None:
            return None
        self.tensors[name] = tensor.detach().cpu().to(self._dtype).clone().contiguous()
        return name


def _activation(mlp: FeedForward) -> str | None:
    if mlp.activation == "linear":
        return None
    if mlp.activation == "gelu":
        return "gelu_tanh" if mlp.gelu_approximation == "tanh" else "gelu_erf"
    return mlp.activation


def _projections(
    attention: CausalSelfAttention | ShapedSelfAttention,
) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Weight [in, out] and bias of a projection of attention."""
    parts: dict[str, Any] = {}
    if isinstance(attention, ShapedSelfAttention):
        parts = {"query": attention.q_attn, "key": attention.k_attn}
    elif attention.separate_projections:
        parts = {"query": attention.q_attn, "key": attention.k_attn, "value": attention.v_attn}
    else:
        joined = attention.c_attn
        names = ("query", "key", "value")
        biases = [None] * 3 if joined.bias is None else joined.bias.chunk(3)
        found = {
            name: (weight.t(), bias)
            for name, weight, bias in zip(names, joined.weight.chunk(3), biases, strict=True)
        }
        return {**found, "output": (attention.c_proj.weight.t(), attention.c_proj.bias)}
    if isinstance(attention, CausalSelfAttention):
        parts["output"] = attention.c_proj
    return {name: (layer.weight.t(), layer.bias) for name, layer in parts.items()}


WEIGHTS_FILE = "weights.safetensors"
DESCRIPTION_FILE = "network.json"


def export_weights(model: nn.Module, folder: str | Path) -> Path:
    """Writes a network so that any program can compute its logits.

    ``weights.safetensors`` holds plain matrices [in, out]; ``network.json`` says how they are
    joined, layer by layer, and the meaning of every field in words (`conventions`).
    `aero.export.numpy_forward` is a reader of both in NumPy. Weight norms are multiplied out,
    foldable norms are one factor per channel from their running statistics (none left after
    `aero.fold_norm`), temperatures are inverted, one per head and position. The network is that of
    evaluation mode.

    Args:
        model: an `AeroForCausalLM`, or a GPT-2, Pythia or nanoGPT network, see
            `aero.models.causal_lm.carry_over`.
        folder: made if missing. Files in it are replaced, the description last; it holds the
            weights' SHA-256, so that a reader never joins files of two exports.

    Returns:
        The folder.

    Raises:
        ValueError: a network of another kind.
        OSError: the folder cannot be written.

    Example:
        >>> from aero import export_weights
        >>> import tempfile
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM(t)+ScFuFFN", model="tiny"))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_weights(model, folder)
        ...     sorted(file.name for file in path.iterdir())
        ['network.json', 'weights.safetensors']
    """
    described = NetworkDescription(carry_over(model))
    folder = Path(folder)
    require_no_run(folder, "export")
    folder.mkdir(parents=True, exist_ok=True)
    weights = save(described.tensors)
    write_bytes_atomically(folder / WEIGHTS_FILE, weights)
    file = {"file": WEIGHTS_FILE, "sha256": hashlib.sha256(weights).hexdigest()}
    write_json_atomically(folder / DESCRIPTION_FILE, {**described.content, "weights": file})
    return folder
