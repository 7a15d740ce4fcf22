"""An AERO network as a description with plain weights (`aero.network`).

What training needs is gone: weight and spectral norms are multiplied out, running statistics are
one factor per channel, temperatures are inverted, thresholds are left out.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aero import _core
from aero.models.causal_lm import AeroForCausalLM
from aero.network.description import Network, network_of
from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ShapedSelfAttention,
)
from aero.nn.annealed_modules import annealing_progress
from aero.nn.block import INITIAL_GAIN
from aero.nn.norm import DynamicNorm

Operations = list[dict[str, Any]]
Tensors = dict[str, Tensor | None]


def described_network(model: AeroForCausalLM, *, dtype: torch.dtype | None = None) -> Network:
    """The network of evaluation mode, its weights multiplied out.

    Args:
        model: the network; of one on the meta device the tensors are zeros that take no memory, and
            the numbers of its layers those of a start.
        dtype: that the weights are rounded to: float32, or float64 of a float64 network, by
            default.

    Returns:
        Description and weights; the tensors are contiguous, in that dtype.

    Raises:
        ValueError: the network is in the middle of an annealing.
    """
    if annealing_progress(model) is not None:
        raise ValueError(
            "export_weights: the network is in the middle of an annealing; train it to the end "
            "first"
        )
    if dtype is None:
        dtype = torch.float64 if model.dtype == torch.float64 else torch.float32
    with torch.no_grad():
        found = {name: tensor for name, tensor in _tensors(model).items() if tensor is not None}
        tensors = {name: as_array(tensor, dtype) for name, tensor in found.items()}
        operations = _operations(model, tensors)
    spec = model.config.spec
    return network_of(
        operations,
        tensors,
        label=spec.label,
        spec=spec.to_dict(),
        context_length=spec.context_length,
        vocab_size=spec.vocab_size,
    )


def as_array(tensor: Tensor, dtype: torch.dtype) -> Any:
    """A copy of a tensor; of one on the meta device zeros that take no memory."""
    if tensor.is_meta:
        return np.broadcast_to(np.float32(0), tuple(tensor.shape))
    return tensor.detach().cpu().to(dtype).clone().contiguous().numpy()


def _operations(model: AeroForCausalLM, tensors: dict[str, Any]) -> Operations:
    """Those of the label, with this network's numbers, layers and weights."""
    config, spec = model.config, model.config.spec
    before, layers, after = _parts(
        _core.describe(
            spec,
            embedding_scale=float(config.embedding_scale),
            epsilon=float(config.layer_norm_epsilon),
            rotary_base=float(config.rotary_base),
            exact_gelu=config.gelu_approximation == "none",
        ).operations
    )
    found = [_with_weights(one, tensors) for one in before]
    # The label prunes the deepest layers; a network may have pruned others.
    numbered = enumerate(model.transformer.blocks())
    for has_ffn, run in itertools.groupby(numbered, key=lambda each: each[1].mlp is not None):
        blocks = list(run)
        factors = [_factors(model, block) for _, block in blocks]
        kept = layers[0 if has_ffn else -1]
        operations = [
            _with_weights(_with_factors(one, factors), tensors, layer=blocks[0][0]) for one in kept
        ]
        found.append({"repeat": len(blocks), "operations": operations})
    return [*found, *(_with_weights(one, tensors) for one in after)]


def _parts(operations: Operations) -> tuple[Operations, list[Operations], Operations]:
    """What stands before the layers, their kinds, and what stands after them."""
    places = [index for index, entry in enumerate(operations) if "repeat" in entry]
    layers = [operations[place]["operations"] for place in places]
    return operations[: places[0]], layers, operations[places[-1] + 1 :]


def _with_weights(
    operation: dict[str, Any], tensors: dict[str, Any], layer: int = 0
) -> dict[str, Any]:
    """The operation without the biases that the network does not have."""
    weights = {
        role: name
        for role, name in operation.get("weights", {}).items()
        if name.replace("{layer}", str(layer)) in tensors
    }
    found = {name: entry for name, entry in operation.items() if name != "weights"}
    return {**found, "weights": weights} if weights else found


def _factors(model: AeroForCausalLM, block: Block) -> dict[str, float]:
    """The numbers of a layer by the names of its operations."""
    found = {}
    mlp = block.mlp
    if block.gain is not None:
        found["gain"] = _number(block.gain, INITIAL_GAIN)
    alpha, beta = (getattr(mlp, factor, None) for factor in ("alpha", "beta"))
    if alpha is not None and beta is not None:
        found |= {"1/alpha": 1 / _number(alpha, 1.0), "beta": _number(beta, 1.0)}
    if isinstance(mlp, FeedForward) and mlp.activation == "leaky_relu":
        slope = mlp.negative_slope
        slope = model.transformer.negative_slope if slope is None else slope
        assert slope is not None
        found["activation"] = _number(slope, model.config.leaky_slope_init)
    return found


def _number(parameter: Tensor, start: float) -> float:
    """A learned number; on the meta device, which has no values, its start."""
    known = torch.tensor(start, dtype=parameter.dtype) if parameter.is_meta else parameter
    return known.double().item()


def _with_factors(operation: dict[str, Any], factors: list[dict[str, float]]) -> dict[str, Any]:
    field = {"scale": "factor", "activation": "slope"}.get(operation["op"])
    name = operation.get("name", "")
    if field is None or name not in factors[0]:
        return dict(operation)
    numbers = [each[name] for each in factors]
    return {**operation, field: numbers if len(set(numbers)) > 1 else numbers[0]}


def _tensors(model: AeroForCausalLM) -> Tensors:
    decoder, head = model.transformer, model.lm_head
    found: Tensors = {
        "token_embedding": decoder.wte.weight,
        "position_embedding": None if decoder.wpe is None else decoder.wpe.weight,
        "head.weight": None if head.weight is decoder.wte.weight else head.weight.t(),
        "head.bias": head.bias,
        **_norm("final_norm", decoder.ln_f),
    }
    for index, block in enumerate(decoder.blocks()):
        name = f"layers.{index}"
        context = model.config.spec.context_length
        found |= _norm(f"{name}.norm_1", block.ln_1) | _norm(f"{name}.norm_2", block.ln_2)
        found |= _attention(f"{name}.attention", block.attn, context)
        found |= _feed_forward(f"{name}.feed_forward", block.mlp)
        _multiply_out(name, block, found)
    return found


def _norm(name: str, norm: nn.Module | None) -> Tensors:
    if norm is None:
        return {}
    if isinstance(norm, FoldableNorm):
        mean_square = norm.running_mean_square.double()
        return {f"{name}.scale": norm.weight.double() * torch.rsqrt(mean_square + norm.eps)}
    assert isinstance(norm, (nn.LayerNorm, DynamicNorm))
    found: Tensors = {f"{name}.weight": norm.weight, f"{name}.bias": norm.bias}
    if isinstance(norm, DynamicNorm):
        found |= {f"{name}.alpha": norm.alpha, f"{name}.shift": norm.shift}
    return found


def _attention(
    name: str, attention: CausalSelfAttention | ShapedSelfAttention, context: int
) -> Tensors:
    weights, biases = zip(*_projections(attention), strict=True)
    bias = None if biases[0] is None else torch.cat(biases)
    found: Tensors = {
        f"{name}.projection.weight": torch.cat(weights).t(),
        f"{name}.projection.bias": bias,
    }
    if attention.temperature is not None:
        values: Tensor = attention.temperature().double()
        if values.dim() == 1:
            values = values.unsqueeze(-1)
        inverse = values.expand(attention.num_heads, context).reciprocal()
        found[f"{name}.inverse_temperature"] = inverse
    if isinstance(attention, ShapedSelfAttention):
        factors = {"identity": "alpha", "softmax": "beta", "uniform": "gamma"}
        shapes = {f"{name}.{role}": getattr(attention, own) for role, own in factors.items()}
        return found | shapes
    output = attention.c_proj
    return found | {
        f"{name}.output.weight": output.weight.t(),
        f"{name}.output.bias": output.bias,
    }


def _projections(
    attention: CausalSelfAttention | ShapedSelfAttention,
) -> list[tuple[Tensor, Tensor | None]]:
    """Weights [out, in] and biases, to be joined to one projection."""
    names = ["q_attn", "k_attn"]
    if isinstance(attention, CausalSelfAttention):
        names = [*names, "v_attn"] if attention.separate_projections else ["c_attn"]
    layers: list[Any] = [getattr(attention, name) for name in names]
    return [(layer.weight, layer.bias) for layer in layers]


def _feed_forward(name: str, mlp: nn.Module | None) -> Tensors:
    if mlp is None:
        return {}
    if not isinstance(mlp, FeedForward):  # fused, [in, out]
        fused: Any = mlp
        return {f"{name}.weight": fused.weight, f"{name}.bias": fused.bias}
    found: Tensors = {}
    for index, layer in enumerate((mlp.c_fc, mlp.c_proj)):
        found[f"{name}.{index}.weight"] = layer.weight.t()
        found[f"{name}.{index}.bias"] = layer.bias
    return found


def _multiply_out(name: str, block: Block, found: Tensors) -> None:
    """Puts the parts of a layer into the products that read tokens along with those before them.

    One beside an FFN of two layers has a product of its own, of the earlier tokens.
    """
    fused = isinstance(block.mlp, FusedFeedForward)
    ffn = f"{name}.feed_forward" if fused else f"{name}.feed_forward.0"
    for key, part in block.parts().items():
        product = f"{name}.attention.projection" if part.place == "attention" else ffn
        if part.place == "beside FFN" and not fused:
            product = f"{name}.{key}"
        weight = f"{product}.weight"
        found[weight] = part.multiplied_out(found.get(weight))
