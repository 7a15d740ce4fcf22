"""Networks in the middle of an annealing: the mixed parts, and both ends of each mix."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from aero.architecture import ArchitectureSpec
from aero.models.building import build_norm
from aero.models.configuration import AeroConfig
from aero.nn import Block, FoldableNorm
from aero.nn.annealed_modules import AnnealedFeedForward, AnnealedNorm

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

    Args:
        source: the trained network.
        target: the network after it.

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
    if source.num_pruned_ffns > 0:
        raise ValueError(f"{way}: the trained network must have all its FFNs")
    for old, new in ((source.norm, target.norm), (source.final_norm, target.final_norm)):
        if old != new and old != "layer":
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

    Args:
        config: of the decoder.
        blocks: built for its target.

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
