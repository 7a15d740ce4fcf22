"""Initial weights, through `transformers.initialization` so that loaded weights stay."""

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
from aero.nn.block import INITIAL_GAIN

# As many as torch makes when it attaches spectral norm.
_SPECTRAL_ITERATIONS = 15


def initialize_module(module: nn.Module, config: AeroConfig) -> None:
    """Initializes the parameters and buffers that `module` itself owns; children come first."""
    if isinstance(module, nn.Linear):
        _initialize_linear(module, config.initializer_range)
    elif isinstance(module, nn.Embedding):
        init.normal_(module.weight, std=config.initializer_range)
    elif isinstance(module, nn.LayerNorm):
        init.ones_(module.weight)
        init.zeros_(module.bias)
    elif isinstance(module, FoldableNorm):
        init.ones_(module.weight)
        init.ones_(module.running_mean_square)
        init.zeros_(module.num_updates)
        init.zeros_(module.discrepancy)
    elif isinstance(module, Temperature):
        init.constant_(module.value, module.stored(config.temperature_init))
    elif isinstance(module, (CausalSelfAttention, ShapedSelfAttention)):
        _initialize_attention(module, config)
    elif isinstance(module, (FeedForward, FusedFeedForward)):
        _initialize_feed_forward(module, config)
    elif isinstance(module, Block) and module.gain is not None:
        init.constant_(module.gain, INITIAL_GAIN)


def residual_std(config: AeroConfig) -> float:
    """Of weights that write to the residual stream, smaller for deeper networks (GPT-2)."""
    return config.initializer_range / math.sqrt(2 * config.spec.num_layers)


def _initialize_linear(linear: nn.Linear, std: float) -> None:
    if linear.bias is not None:
        init.zeros_(linear.bias)
    if not parametrize.is_parametrized(linear, "weight"):
        init.normal_(linear.weight, std=std)
        return
    originals: Any = linear.parametrizations["weight"]  # type: ignore[index]
    if hasattr(originals, "original1"):  # weight norm: V and its row norms as gains
        init.normal_(originals.original1, std=std)
        init.copy_(
            originals.original0, torch.linalg.vector_norm(originals.original1, dim=1, keepdim=True)
        )
    else:
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


def _initialize_attention(
    module: CausalSelfAttention | ShapedSelfAttention, config: AeroConfig
) -> None:
    if module.entropy_threshold is not None:
        init.constant_(module.entropy_threshold, config.threshold_init)
    if isinstance(module, CausalSelfAttention):
        _initialize_linear(module.c_proj, residual_std(config))
        return
    for factor in (module.alpha, module.beta, module.gamma):
        init.ones_(factor)
    _zero_query(module.q_attn)


def _zero_query(linear: nn.Linear) -> None:
    """Query weights of zero make every softmax uniform; a spectral norm of zero does not exist."""
    if not parametrize.is_parametrized(linear, "weight"):
        init.zeros_(linear.weight)
        return
    originals: Any = linear.parametrizations["weight"]  # type: ignore[index]
    if hasattr(originals, "original0"):
        init.zeros_(originals.original0)


def _initialize_feed_forward(module: FeedForward | FusedFeedForward, config: AeroConfig) -> None:
    if isinstance(module, FusedFeedForward):
        init.normal_(module.weight, std=residual_std(config))
        init.zeros_(module.bias)
    else:
        _initialize_linear(module.c_proj, residual_std(config))
        if module.negative_slope is not None:
            init.constant_(module.negative_slope, config.leaky_slope_init)
    for name in ("alpha", "beta"):
        scale: Tensor | None = getattr(module, name, None)
        if scale is not None:
            init.ones_(scale)
