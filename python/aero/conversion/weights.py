"""The weights of a network taken out of it, and put into another one.

To conversions weights are matrices [in, out] in float64, as in the formulas.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from aero.architecture import ArchitectureSpec
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn import CausalSelfAttention
from aero.nn.linear import in_mode
from aero.nn.parts import BLOCK_PARTS

# Parameters and buffers that a network starts with by itself where a conversion adds them.
_OWN_STARTS = frozenset(
    {
        "alpha",
        "beta",
        "value",  # of temperatures
        "entropy_threshold",
        "strength_bias",
        "negative_slope",
        "running_mean_square",
        "num_updates",
    }
)


# The weight of a linear layer, and the tensors of its weight or spectral norm by name.
_Normalized = tuple[Tensor, dict[str, Tensor]]


class Weights:
    """The weights of a network, without weight or spectral norm and with joined projections.

    Attributes:
        tensors: by name in `AeroForCausalLM`.
    """

    def __init__(self, tensors: dict[str, Tensor], normalized: dict[str, _Normalized]) -> None:
        self.tensors = tensors
        self._normalized = normalized

    def state_behind(self, path: str, weight: Tensor) -> dict[str, Tensor]:
        """What the norm of a linear layer's weight held, if no step has changed the weight."""
        before, state = self._normalized.get(path, (None, {}))
        return state if before is not None and torch.equal(before, weight) else {}

    def has(self, path: str) -> bool:
        """Returns whether there is a weight of this path."""
        return f"{path}.weight" in self.tensors

    def matrix(self, path: str) -> Tensor:
        """The weight of a linear layer or fused FFN, [in, out], float64."""
        weight = self.tensors[f"{path}.weight"].double()
        return weight if path.endswith(".mlp") else weight.t()

    def set_matrix(self, path: str, matrix: Tensor) -> None:
        """Sets a weight from [in, out], rounding it once."""
        weight = matrix if path.endswith(".mlp") else matrix.t()
        self.set(f"{path}.weight", weight)

    def vector(self, name: str) -> Tensor:
        """A bias, gain or scale, float64."""
        return self.tensors[name].double()

    def set(self, name: str, values: Tensor) -> None:
        """Sets a tensor, in the dtype of the token embeddings."""
        self.tensors[name] = values.to(self.tensors["transformer.wte.weight"].dtype).contiguous()

    def drop(self, prefix: str) -> None:
        """Removes the tensor of this name and all that lie below it."""
        for name in [n for n in self.tensors if n == prefix or n.startswith(f"{prefix}.")]:
            del self.tensors[name]


def readers(weights: Weights, layer: int) -> list[tuple[str, str]]:
    """The linear layers of a block that read the stream, each with the norm before it."""
    prefix = f"transformer.h.{layer}"
    shaped = [(f"{prefix}.attn.{name}", f"{prefix}.ln_1") for name in ("q_attn", "k_attn")]
    possible = [
        (f"{prefix}.attn.c_attn", f"{prefix}.ln_1"),
        *shaped,
        (f"{prefix}.mlp.c_fc", f"{prefix}.ln_2"),
        (f"{prefix}.mlp", f"{prefix}.ln_2"),
    ]
    return [(path, norm) for path, norm in possible if weights.has(path)]


def feed_forward_output(weights: Weights, layer: int) -> str | None:
    """Path of the FFN's layer that writes to the stream; None for a pruned FFN."""
    prefix = f"transformer.h.{layer}.mlp"
    paths = (path for path in (f"{prefix}.c_proj", prefix) if weights.has(path))
    return next(paths, None)


def untie(weights: Weights) -> None:
    """Makes the head a matrix of its own, if it is tied."""
    weights.tensors.setdefault("lm_head.weight", weights.tensors["transformer.wte.weight"].clone())


def take_apart(model: AeroForCausalLM) -> Weights:
    """The weights of a network; weight and spectral norm are multiplied out."""
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    normalized: dict[str, _Normalized] = {}
    with in_mode(model):  # else spectral norm would move its vectors when its weight is read
        for path, layer in model.named_modules():
            if isinstance(layer, nn.Linear) and is_parametrized(layer):
                state = {name: tensors.pop(name) for name in _names_behind(path, layer)}
                tensors[f"{path}.weight"] = weight = layer.weight.detach()
                normalized[path] = (weight, state)
    for path, attention in model.named_modules():
        if isinstance(attention, CausalSelfAttention) and attention.separate_projections:
            for kind in ("weight", "bias"):
                parts = [tensors.pop(f"{path}.{name}_attn.{kind}") for name in "qkv"]
                tensors[f"{path}.c_attn.{kind}"] = torch.cat(parts)
    if model.config.spec.tied_embeddings:
        del tensors["lm_head.weight"]
    return Weights(tensors, normalized)


def _names_behind(path: str, layer: Any) -> set[str]:
    """What a weight or spectral norm of a layer has in the network's state dict."""
    return {f"{path}.parametrizations.{name}" for name in layer.parametrizations.state_dict()}


def with_spec(
    config: AeroConfig, spec: ArchitectureSpec, *, pruned_layers: list[int] | None = None
) -> AeroConfig:
    """A configuration for another architecture.

    Args:
        config: the source of everything else; left unchanged.
        spec: the architecture.
        pruned_layers: layers without FFN where they change; default: as in `config`.
    """
    layers = config.layers_without_ffn if pruned_layers is None else sorted(pruned_layers)
    deepest = list(range(spec.num_layers - len(layers), spec.num_layers))
    changed = copy.deepcopy(config)
    changed.update_spec(spec.replace(num_pruned_ffns=len(layers)))
    changed.pruned_ffn_layers = None if layers == deepest else layers
    return changed


@torch.no_grad()
def put_together(config: AeroConfig, weights: Weights, like: AeroForCausalLM) -> AeroForCausalLM:
    """A new network; device, dtype, mode and generation settings are those of `like`."""
    with torch.random.fork_rng(devices=[]):  # the weights of the start are replaced
        network = AeroForCausalLM(config)
    start_additions_neutral(network)
    nn.Module.to(network, like.device, like.dtype)
    nn.Module.eval(network)
    tensors = dict(weights.tensors)
    if config.spec.tied_embeddings:
        tensors["lm_head.weight"] = tensors["transformer.wte.weight"]
    for path, attention in network.named_modules():
        if isinstance(attention, CausalSelfAttention) and attention.separate_projections:
            for kind in ("weight", "bias"):
                parts = tensors.pop(f"{path}.c_attn.{kind}").chunk(3)
                tensors |= {f"{path}.{n}_attn.{kind}": p for n, p in zip("qkv", parts, strict=True)}
    for path, layer in network.named_modules():
        if isinstance(layer, nn.Linear) and is_parametrized(layer):
            weight = tensors.pop(f"{path}.weight")
            state = weights.state_behind(path, weight)
            if state.keys() == _names_behind(path, layer):
                tensors |= state  # its spectral norm would be another one after more iterations
            else:
                _set_normalized(layer, weight)
    if network.strength_bias is None:
        tensors.pop("strength_bias", None)
    missing, unexpected = network.load_state_dict(tensors, strict=False)
    lost = [name for name in missing if not _starts_by_itself(name)]
    if lost or unexpected:
        raise AssertionError(f"conversion: {lost} have no value, {unexpected} no place")
    network.generation_config = copy.deepcopy(like.generation_config)
    network.train(like.training)
    return network


def start_additions_neutral(network: AeroForCausalLM) -> None:
    """Lets the parts that a step adds change nothing; a network from scratch starts otherwise."""
    for block in network.transformer.blocks():
        for part in block.parts().values():
            part.reset_parameters()


def _starts_by_itself(name: str) -> bool:
    parts = name.split(".")
    is_neutral = parts[-1] == "weight" and parts[-2] in ("ln_1", "ln_2", "ln_f", *BLOCK_PARTS)
    return parts[-1] in _OWN_STARTS or is_neutral or "parametrizations" in parts


def _set_normalized(layer: Any, weight: Tensor) -> None:
    """Sets the weight under weight norm (then exactly) or spectral norm (then divided by sigma)."""
    layer.weight = weight.to(layer.bias.device, layer.bias.dtype)
    spectral = layer.parametrizations["weight"][0]
    if hasattr(spectral, "_u"):  # lets the power iteration converge on this weight
        spectral.train()
        for _ in range(15):
            _ = layer.weight
        spectral.eval()
