"""The attention operator for any `transformers` model, under the names aero and aero_entropy.

``attn_implementation="aero"`` computes attention with the fused operator; ``"aero_entropy"`` also
returns the row entropies [B, H, T] in place of attention weights, so that a call with
``output_attentions=True`` finds them in ``outputs.attentions``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from aero.nn import causal_attention

ATTENTION_NAMES = ("aero", "aero_entropy")

# What some models hand over and this operator does not compute; None everywhere else.
_UNSUPPORTED = ("head_mask", "position_bias", "s_aux", "sinks", "sliding_window", "softcap")


def aero_entropy_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    temperature: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Attention function of `transformers` that returns entropies as its second value.

    Args:
        module: the calling layer; ``is_causal = False`` on it means every query sees every key.
        query: [B, H, T, D].
        key: [B, G, S, D], H a multiple of G.
        value: [B, G, S, D].
        attention_mask: boolean, [B, 1, T, S], True where visible; None for plain causal attention.
        scaling: of the scores, default ``1 / sqrt(D)``.
        dropout: must be 0.
        temperature: as in `aero.ops.attention_entropy`.
        **kwargs: ignored, except the features listed under Raises.

    Returns:
        Output [B, T, H, D] and row entropies [B, H, T], nats, float32.

    Raises:
        ValueError: dropout, an additive mask, a head mask, attention sinks, a sliding window or a
            soft cap was asked for.
    """
    name = type(module).__name__
    if dropout:
        raise ValueError(
            f"aero attention: {name} asks for dropout {dropout}, which the operator does not "
            "compute; set the model's attention dropout to 0 (GPT-2: attn_pdrop=0.0)"
        )
    for feature in _UNSUPPORTED:
        if kwargs.get(feature) is not None:
            raise ValueError(f"aero attention: {name} needs {feature}, which is not supported")
    if attention_mask is not None and attention_mask.dtype != torch.bool:
        raise ValueError(
            "aero attention: attention_mask must be boolean (True where visible), got "
            f"{attention_mask.dtype}"
        )
    is_causal = kwargs.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    if attention_mask is None and not is_causal:
        attention_mask = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    output, entropy = causal_attention(
        query, key, value, mask=attention_mask, temperature=temperature, scale=scaling
    )
    return output.transpose(1, 2), entropy


def aero_attention_forward(*args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """As `aero_entropy_attention_forward`, without the entropies."""
    output, _ = aero_entropy_attention_forward(*args, **kwargs)
    return output, None


def register_attention() -> None:
    """Makes both names known to `transformers`, with boolean masks (else padding is ignored)."""
    AttentionInterface.register("aero", aero_attention_forward)
    AttentionInterface.register("aero_entropy", aero_entropy_attention_forward)
    for name in ATTENTION_NAMES:
        AttentionMaskInterface.register(name, sdpa_mask)
