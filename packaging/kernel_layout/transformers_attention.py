"""The attention operator as an attention function of `transformers`.

`attn_implementation="OWNER/aero"` has `transformers` load this kernel. It takes a kernel with these
two names for one with an attention function of its own, and gives it masks as for 'sdpa'.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from aero.ops.attention_entropy import attention_entropy

# Arguments of some models that the operator does not compute; None everywhere else.
_UNSUPPORTED = ("head_mask", "position_bias", "s_aux", "sinks", "softcap")

supports_flash_attn = True


def flash_attn_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **settings: Any,
) -> tuple[Tensor, None]:
    """Attention of one layer.

    Args:
        module: the calling layer, causal unless its `is_causal` or that setting is false.
        query: [B, H, T, D].
        key: [B, G, S, D], H a multiple of G.
        value: [B, G, S, D].
        attention_mask: [B, S], 0 for padding, or a boolean [B, 1, T, S], True where visible,
            causality included; None without padding.
        scaling: of the scores, default ``1 / sqrt(D)``.
        dropout: must be 0.
        **settings: ignored, except those listed under Raises.

    Returns:
        Output [B, T, H, D], and None: there are no weights.

    Raises:
        ValueError: dropout, an additive mask, a sliding window that a mask does not say, packed
            sequences without a mask, a soft cap, sinks, a head mask or a position bias.
    """
    where = f"aero attention: {type(module).__name__}"
    if dropout:
        raise ValueError(f"{where} asks for dropout {dropout} of attention weights; set it to 0")
    for name in _UNSUPPORTED:
        if settings.get(name) is not None:
            raise ValueError(f"{where} needs {name}, which is not supported; keep 'sdpa'")
    is_causal = settings.get("is_causal")
    if is_causal is None:
        is_causal = getattr(module, "is_causal", True)
    window, starts = settings.get("sliding_window"), settings.get("cu_seq_lens_q")
    mask = attention_mask
    if mask is None or mask.dim() == 2:
        if window is not None and key.shape[2] > window:
            raise ValueError(f"{where} has a sliding window of {window}; keep 'sdpa'")
        if starts is not None and len(starts) > 2:
            raise ValueError(f"{where} got packed sequences without a mask; keep 'sdpa'")
        mask = None if mask is None else mask[:, None, None, :].bool()
    elif mask.dtype == torch.bool:
        is_causal = False
    else:
        raise ValueError(f"{where} needs a boolean attention_mask, got {mask.dtype}")
    result = attention_entropy(query, key, value, mask=mask, is_causal=is_causal, scale=scaling)
    return result[0].transpose(1, 2), None
