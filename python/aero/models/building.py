"""From a configuration to modules."""

from __future__ import annotations

from typing import Any, cast

from torch import nn

from aero.models.configuration import AeroConfig
from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
    ShapedSelfAttention,
    Temperature,
)
from aero.nn.weight_normalization import normalize_weight

_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "leaky_relu_layer": "leaky_relu",
    "leaky_relu_global": "leaky_relu",
}


def build_block(config: AeroConfig, layer_index: int) -> Block:
    """One layer of the network."""
    spec = config.spec
    attention = _build_attention(config, layer_index)
    is_pruned = layer_index in config.layers_without_ffn
    feed_forward = None if is_pruned else _build_feed_forward(config)
    _normalize_weights(config, attention, feed_forward)
    has_second_norm = feed_forward is not None and not spec.shaped_attention
    return Block(
        attention,
        feed_forward,
        build_norm(config, spec.norm),
        build_norm(config, spec.norm) if has_second_norm else None,
        residual=(
            "skipless"
            if spec.shaped_attention
            else "parallel"
            if spec.parallel_residual
            else "sequential"
        ),
    )


def build_norm(config: AeroConfig, kind: str) -> nn.LayerNorm | FoldableNorm | None:
    """A norm by its name in `ArchitectureSpec`; None for ``"none"``."""
    spec = config.spec
    if kind == "none":
        return None
    if kind == "layer":
        return nn.LayerNorm(spec.width, eps=config.layer_norm_epsilon)
    return FoldableNorm(
        spec.width,
        # The final norm only says "foldable": it is of the other norms' kind.
        kind="scalar" if spec.norm == "foldable_scalar" else "channel",
        synchronized=config.norm_statistics == "synchronized",
    )


def _build_attention(
    config: AeroConfig, layer_index: int
) -> CausalSelfAttention | ShapedSelfAttention:
    spec = config.spec
    temperature = None
    if spec.temperature != "none":
        temperature = Temperature(
            spec.temperature,
            num_heads=spec.num_heads,
            context_length=spec.context_length,
            init=config.temperature_init,
            parametrization=cast(Any, config.temperature_parametrization),
        )
    common: dict[str, Any] = {
        "temperature": temperature,
        "entropy_threshold": config.threshold_init if spec.entropy_regularized else None,
        "layer_index": layer_index,
    }
    if spec.shaped_attention:
        return ShapedSelfAttention(spec.width, spec.num_heads, spec.head_dim, **common)
    return CausalSelfAttention(
        spec.width,
        spec.num_heads,
        spec.head_dim,
        separate_projections="qk" in spec.normalized_layers,
        **common,
    )


def _build_feed_forward(config: AeroConfig) -> FeedForward | FusedFeedForward:
    spec = config.spec
    is_scaled = "scaled" in spec.ffn and not spec.shaped_attention
    trainable = [name for name in ("alpha", "beta") if name in config.trainable_scales]
    if "fused" in spec.ffn:
        if is_scaled:
            return ScaledFusedFeedForward(spec.width, trainable=trainable)
        return FusedFeedForward(spec.width)
    if is_scaled:
        return ScaledFeedForward(spec.width, spec.hidden_width, trainable=trainable)
    has_own_slope = spec.ffn == "leaky_relu_layer"
    return FeedForward(
        spec.width,
        spec.hidden_width,
        cast(Any, _ACTIVATIONS.get(spec.ffn, "linear")),
        negative_slope=config.leaky_slope_init if has_own_slope else None,
        gelu_approximation=cast(Any, config.gelu_approximation),
    )


def _normalize_weights(config: AeroConfig, attention: nn.Module, mlp: nn.Module | None) -> None:
    """Applies weight or spectral norm to the layers that `normalized_layers` names."""
    spec = config.spec
    if spec.ffn not in ("weight_norm", "spectral_norm"):
        return
    attention_set, _, ffn_set = spec.normalized_layers.rpartition("+")
    if spec.normalized_layers == "qk":
        attention_set, ffn_set = "qk", ""
    if isinstance(attention, ShapedSelfAttention) and spec.ffn == "spectral_norm":
        attention.q_attn.reset_parameters()  # a spectral norm cannot start from the zero matrix
    # Shaped attention has neither v nor o.
    layers = {"q": "q_attn", "k": "k_attn", "v": "v_attn", "o": "c_proj"}
    for letter in attention_set:
        if hasattr(attention, layers[letter]):
            normalize_weight(getattr(attention, layers[letter]), spec.ffn)
    if ffn_set and isinstance(mlp, FeedForward):
        normalize_weight(mlp.c_fc, spec.ffn)
        normalize_weight(mlp.c_proj, spec.ffn)
