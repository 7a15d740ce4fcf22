"""Folding of foldable norms into the weights that follow them."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from aero.architecture import ArchitectureSpec
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn import (
    Block,
    CausalSelfAttention,
    FeedForward,
    FoldableNorm,
    FusedFeedForward,
    plain_linear,
)


def fold_norm(model: AeroForCausalLM) -> AeroForCausalLM:
    """Removes every foldable norm by scaling the weights that read its output.

    In evaluation a foldable norm is the diagonal matrix ``diag(g / sqrt(v + eps))``, so its product
    with the next weight replaces both: ``W' = diag(g / sqrt(v + eps)) W`` for query, key and value,
    for the FFN, and for the head, which is no longer tied then. The products are rounded once, from
    float64. Weights under weight or spectral norm become plain ones.

    Args:
        model: a network with a foldable norm before its blocks or at its end; it is left unchanged.

    Returns:
        A network without these norms whose logits equal those of `model` in evaluation mode up to
        rounding; same device, dtype and mode.

    Raises:
        ValueError: the network has no foldable norm, or it has shaped attention, where the
            normalized stream itself becomes the values and no weight follows that could take the
            norm in.

    Example:
        >>> import torch
        >>> model = AeroForCausalLM(AeroConfig.from_label("SM+FN+ScFuFFN", model="tiny"))
        >>> tokens = torch.randint(256, (4, 32))
        >>> _ = model.train()(tokens)
        >>> folded = fold_norm(model.eval())
        >>> folded.config.spec.label
        'SM+ScFuFFN'
        >>> torch.allclose(folded(tokens).logits, model(tokens).logits, atol=1e-5)
        True
    """
    spec = model.config.spec
    target = _folded_spec(spec)
    source = copy.deepcopy(model)
    source.train(False)
    with torch.no_grad():
        for block in source.transformer.blocks():
            _fold_block(block)
        if isinstance(source.transformer.ln_f, FoldableNorm):
            head = source.lm_head.weight * _scale(source.transformer.ln_f)
            source.lm_head.weight = nn.Parameter(head.to(source.lm_head.weight.dtype))
            source.transformer.ln_f = None
    folded = AeroForCausalLM(_with_spec(model.config, target))
    nn.Module.to(folded, model.device, model.dtype)
    folded.load_state_dict(source.state_dict())
    folded.generation_config = source.generation_config
    folded.train(model.training)
    return folded


def _folded_spec(spec: ArchitectureSpec) -> ArchitectureSpec:
    folds_blocks = spec.norm in ("foldable_channel", "foldable_scalar")
    folds_head = spec.final_norm == "foldable"
    if not folds_blocks and not folds_head:
        raise ValueError(f"fold_norm: {spec.label} has no foldable norm")
    if folds_blocks and spec.shaped_attention:
        raise ValueError(
            f"fold_norm: the norms of {spec.label} cannot fold, since shaped attention has no "
            "value weights to take them in"
        )
    has_normalized_weights = spec.ffn in ("weight_norm", "spectral_norm")
    return spec.replace(
        norm="none" if folds_blocks else spec.norm,
        final_norm="none" if folds_head else spec.final_norm,
        tied_embeddings=spec.tied_embeddings and not folds_head,
        ffn="linear" if has_normalized_weights else spec.ffn,
        normalized_layers="ffn",
    )


def _with_spec(config: AeroConfig, spec: ArchitectureSpec) -> AeroConfig:
    changed = copy.deepcopy(config)
    changed.update_spec(spec)
    return changed


def _scale(norm: FoldableNorm) -> Tensor:
    """What the norm multiplies each channel by in evaluation, [C], float64."""
    mean_square = norm.running_mean_square.double()
    return norm.weight.double() * torch.rsqrt(mean_square + norm.eps)


def _fold_block(block: Block) -> None:
    attention, feed_forward = block.attn, block.mlp
    for path, layer in list(block.named_modules()):
        if isinstance(layer, nn.Linear) and is_parametrized(layer):
            parent, _, name = path.rpartition(".")
            setattr(block.get_submodule(parent), name, plain_linear(layer))
    if isinstance(attention, CausalSelfAttention):
        attention.join_projections()
    if isinstance(block.ln_1, FoldableNorm):
        assert isinstance(attention, CausalSelfAttention)
        _scale_inputs(attention.c_attn, block.ln_1)
        block.ln_1 = None
    if isinstance(block.ln_2, FoldableNorm):
        if isinstance(feed_forward, FeedForward):
            _scale_inputs(feed_forward.c_fc, block.ln_2)
        elif isinstance(feed_forward, FusedFeedForward):  # weight [in, out]
            feed_forward.weight.copy_(_scale(block.ln_2).unsqueeze(-1) * feed_forward.weight)
        block.ln_2 = None


def _scale_inputs(linear: nn.Linear, norm: FoldableNorm) -> None:
    """Multiplies each input's column of the weight, [out, in], by the norm's factor."""
    linear.weight.copy_(linear.weight * _scale(norm))
