"""Builds the modules of a configuration, those in the middle of an annealing too."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from aero.architecture import ArchitectureSpec
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
from aero.nn.annealed_modules import AnnealedFeedForward, AnnealedNorm
from aero.nn.norm import DynamicNorm
from aero.nn.parts import BLOCK_PARTS, build_parts, part_fields, part_places
from aero.nn.weight_forms import normalize_weight

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
    attention.attention_dropout = float(config.attention_dropout)
    is_pruned = layer_index in config.layers_without_ffn
    feed_forward = None if is_pruned else _build_feed_forward(config)
    _normalize_weights(config, attention, feed_forward)
    has_second_norm = feed_forward is not None and not spec.shaped_attention
    has_parts = any(getattr(spec, name) != "none" for name in BLOCK_PARTS)
    block = Block(
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
        parts=build_parts(spec, layer_index, has_ffn=not is_pruned) if has_parts else None,
    )
    block.dropout = float(config.residual_dropout)
    return block


def build_norm(config: AeroConfig, kind: str) -> nn.LayerNorm | FoldableNorm | DynamicNorm | None:
    """A norm by its name in `ArchitectureSpec`; None for ``"none"``."""
    spec = config.spec
    if kind == "none":
        return None
    if kind == "layer":
        return nn.LayerNorm(spec.width, eps=config.layer_norm_epsilon)
    if kind.startswith("dynamic_"):
        return DynamicNorm(spec.width, kind=cast(Any, kind.removeprefix("dynamic_")))
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


# FFN of a target -> its activation during annealing; a fused FFN is fused at the end.
_TARGET_ACTIVATIONS = {
    "gelu": "gelu",
    "relu": "relu",
    "linear": "linear",
    "scaled": "linear",
    "fused": "linear",
    "scaled_fused": "linear",
}
_UNFUSED = {"fused": "linear", "scaled_fused": "scaled"}
_SOURCE_ACTIVATIONS = ("gelu", "relu", "linear")


@dataclass(frozen=True)
class AnnealedParts:
    """The annealed parts of a trained network.

    Attributes:
        norm: kind of the norms it comes with: `layer`, `foldable_channel`, ...
        final_norm: the same of the final one.
        ffn: the FFN it comes with, `gelu`, `relu` or `linear`.
    """

    norm: str
    final_norm: str
    ffn: str


def check_annealing(source: ArchitectureSpec, target: ArchitectureSpec) -> AnnealedParts:
    """Returns the parts that are annealed on the way from one network to another.

    Raises:
        ValueError: there is no such way.
    """
    way = f"annealing from {source.label} to {target.label}"
    if source.shaped_attention or target.shaped_attention:
        raise ValueError(f"{way}: shaped attention cannot be annealed; train it from scratch")
    if target.ffn not in _TARGET_ACTIVATIONS or source.ffn not in _SOURCE_ACTIVATIONS:
        raise ValueError(
            f"{way}: the FFN must go from {', '.join(_SOURCE_ACTIVATIONS)} to "
            f"{', '.join(_TARGET_ACTIVATIONS)}, got {source.ffn} and {target.ffn}; "
            "cut it (aero.convert) and train on"
        )
    for name in part_places(source):
        if part_fields(source, name) != part_fields(target, name) or target.num_pruned_ffns > 0:
            raise ValueError(
                f"{way}: a {name} can be added, but neither changed nor pruned; keep it, and all "
                "FFNs, in the label"
            )
    if source.num_pruned_ffns > 0:
        raise ValueError(f"{way}: the trained network must have all its FFNs")
    for old, new in ((source.norm, target.norm), (source.final_norm, target.final_norm)):
        if old != new and (old != "layer" or new.startswith("dynamic_")):
            raise ValueError(
                f"{way}: a norm can go from layer to foldable or none, got {old} to {new}"
            )
    return AnnealedParts(source.norm, source.final_norm, source.ffn)


def spec_at_the_end(target: ArchitectureSpec, parts: AnnealedParts) -> ArchitectureSpec:
    """The network that annealing reaches: the target before FFNs are fused and norms folded."""
    has_no_ffn = target.num_pruned_ffns == target.num_layers
    way_of_norms = "foldable_channel" if parts.norm != target.norm == "none" else target.norm
    return target.replace(
        norm=way_of_norms,
        final_norm=target.final_norm,
        ffn=target.ffn if has_no_ffn else _UNFUSED.get(target.ffn, target.ffn),
    )


def put_in_annealed_parts(config: AeroConfig, blocks: Iterable[Block]) -> Any:
    """Replaces norms and FFNs of a decoder's blocks by annealed ones, as `annealed_from` asks.

    Returns:
        The final norm.
    """
    parts = AnnealedParts(**cast("dict[str, str]", config.annealed_from))
    spec = spec_at_the_end(config.spec, parts)
    pruned = config.layers_without_ffn
    for index, block in enumerate(blocks):
        block.ln_1 = _norm(config, parts.norm, spec.norm)
        block.ln_2 = _norm(config, parts.norm, spec.norm)
        block.mlp = _feed_forward(config, parts, spec, is_pruned=index in pruned)
    return _norm(config, parts.final_norm, spec.final_norm)


def _norm(config: AeroConfig, source: str, target: str) -> Any:
    if source == target:
        return build_norm(config, target)
    new = None if target == "none" else build_norm(config, target)
    old = build_norm(config, source)
    assert isinstance(old, nn.LayerNorm) and (new is None or isinstance(new, FoldableNorm))
    return AnnealedNorm(old, new)


def _feed_forward(
    config: AeroConfig, parts: AnnealedParts, spec: ArchitectureSpec, *, is_pruned: bool
) -> AnnealedFeedForward:
    is_scaled = spec.ffn == "scaled" and not is_pruned
    return AnnealedFeedForward(
        spec.width,
        spec.hidden_width,
        source=cast(Any, parts.ffn),
        target=None if is_pruned else cast(Any, _TARGET_ACTIVATIONS[spec.ffn]),
        trainable=[n for n in ("alpha", "beta") if is_scaled and n in config.trainable_scales],
        gelu_approximation=cast(Any, config.gelu_approximation),
    )
