"""Initial weights, through `transformers.initialization` so that loaded weights stay.

`transformers` skips modules that own no parameter or buffer themselves, so what a weight starts as
is decided where it lies: a linear layer carries it as `Linear.start`. Weight decay acts on matrices
and embeddings alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import initialization as init

from aero.models.configuration import AeroConfig
from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ShapedSelfAttention,
    Temperature,
)
from aero.nn.annealed_modules import AnnealedFeedForward, AnnealedNorm
from aero.nn.block import INITIAL_GAIN, BlockPart
from aero.nn.gates import GATED_PARTS, Gates
from aero.nn.linear import Linear
from aero.nn.norm import INITIAL_ALPHA, DynamicNorm
from aero.nn.weight_decay import scales_of

# As many as torch makes when it attaches spectral norm.
_SPECTRAL_ITERATIONS = 15


def initialize_module(module: nn.Module, config: AeroConfig) -> None:
    """Initializes the parameters and buffers that `module` itself owns."""
    if isinstance(module, Linear):
        _initialize_linear(module, config)
    elif isinstance(module, nn.Embedding):
        scaled = isinstance(module, PositionEmbedding) and config.position_start == "embeddings"
        scale = abs(config.embedding_scale) if scaled else 1.0
        init.normal_(module.weight, std=scale * config.initializer_range)
    elif isinstance(module, (nn.LayerNorm, DynamicNorm)):
        init.ones_(module.weight)
        init.zeros_(module.bias)
        if isinstance(module, DynamicNorm):
            init.constant_(module.alpha, INITIAL_ALPHA)
            if module.shift is not None:
                init.zeros_(module.shift)
    elif isinstance(module, FoldableNorm):
        init.ones_(module.weight)
        init.ones_(module.running_mean_square)
        init.zeros_(module.num_updates)
        init.zeros_(module.discrepancy)
    elif isinstance(module, Gates):
        _set_to_one(module, *GATED_PARTS)
    elif isinstance(module, Temperature):
        init.constant_(module.value, module.stored(config.temperature_init))
    elif isinstance(module, (CausalSelfAttention, ShapedSelfAttention)):
        if module.entropy_threshold is not None:
            init.constant_(module.entropy_threshold, config.threshold_init)
        _set_to_one(module, "alpha", "beta", "gamma")
    elif isinstance(module, (FeedForward, FusedFeedForward)):
        _set_to_one(module, "alpha", "beta")
        if isinstance(module, FusedFeedForward):
            init.normal_(module.weight, std=residual_std(config))
            init.zeros_(module.bias)
        elif module.negative_slope is not None:
            init.constant_(module.negative_slope, config.leaky_slope_init)
    elif isinstance(module, BlockPart):
        for name, start in module.first_parameters().items():
            init.copy_(module.get_parameter(name), start)
    elif isinstance(module, Block) and module.gain is not None:
        init.constant_(module.gain, INITIAL_GAIN)
    strength_bias: Tensor | None = getattr(module, "strength_bias", None)
    if strength_bias is not None:
        init.zeros_(strength_bias)
    if isinstance(module, (AnnealedNorm, AnnealedFeedForward)):
        init.zeros_(module.progress)


class PositionEmbedding(nn.Embedding):
    """Learned positions, which start as `AeroConfig.position_start` says."""


def residual_std(config: AeroConfig) -> float:
    """The deviation of weights that write to the residual stream, less in deeper networks."""
    return config.initializer_range / math.sqrt(2 * config.spec.num_layers)


def _set_to_one(module: nn.Module, *names: str) -> None:
    for name in names:
        factor: Tensor | None = getattr(module, name, None)
        if factor is not None:
            init.ones_(factor)


def _initialize_linear(linear: Linear, config: AeroConfig) -> None:
    std = residual_std(config) if linear.start == "residual" else config.initializer_range
    if linear.bias is not None:
        init.zeros_(linear.bias)
    if not parametrize.is_parametrized(linear, "weight"):
        if linear.start == "zero":
            init.zeros_(linear.weight)
        else:
            init.normal_(linear.weight, std=std)
        return
    originals: Any = linear.parametrizations["weight"]  # type: ignore[index]
    if hasattr(originals, "original1"):  # weight norm: V, and a gain per row
        init.normal_(originals.original1, std=std)
        gains = torch.linalg.vector_norm(originals.original1, dim=1, keepdim=True)
        init.copy_(
            originals.original0, torch.zeros_like(gains) if linear.start == "zero" else gains
        )
    else:  # spectral norm, which no zero matrix has
        init.normal_(originals.original, std=std)
        _find_singular_vectors(linear)


def _find_singular_vectors(linear: nn.Linear) -> None:
    """Lets spectral norm's power iteration converge on the new weight, unless it was loaded."""
    spectral: Any = linear.parametrizations["weight"][0]  # type: ignore[index]
    if linear.weight.is_meta or getattr(spectral._u, "_is_hf_initialized", False):
        return
    was_training = spectral.training
    spectral.train()
    for _ in range(_SPECTRAL_ITERATIONS):
        _ = linear.weight
    spectral.train(was_training)


def decay_parameter_names(model: nn.Module) -> list[str]:
    """Names of the parameters to apply weight decay to: matrices and embeddings.

    Everything else has none: biases, norms, gains, temperatures, thresholds, strengths, alpha,
    beta, gamma and leaky slopes. `Trainer` on its own would decay most of these.

    Args:
        model: any module; for models that are not AERO's the rule is "matrices and embeddings" too.

    Returns:
        Names as in ``model.named_parameters()``, in that order.

    Example:
        >>> from aero.models.initialization import decay_parameter_names
        >>> import torch
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM(t)+ScFuFFN", model="tiny"))
        >>> decayed = set(decay_parameter_names(model))
        >>> groups = [
        ...     {"params": [p for n, p in model.named_parameters() if n in decayed]},
        ...     {"params": [p for n, p in model.named_parameters() if n not in decayed],
        ...      "weight_decay": 0.0},
        ... ]
        >>> optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
        >>> "transformer.h.0.attn.temperature.value" in decayed
        False
    """
    spared = {id(scale) for module in model.modules() for _, scale in scales_of(module)}
    return [
        name
        for name, parameter in model.named_parameters()
        if parameter.dim() >= 2 and id(parameter) not in spared
    ]
