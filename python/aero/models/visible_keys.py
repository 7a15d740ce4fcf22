"""Which keys a row of attention sees: padding, masks and packed sequences.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def visible_keys(
    attention_mask: Tensor | None, position_ids: Tensor | None, entropies: Tensor
) -> Tensor | None:
    """How many keys each row sees, [B, T]; 0 in rows of padding. None without mask and positions.

    Args:
        attention_mask: [B, S], 0 for padding, or a boolean [B, 1, T, S], True where visible.
        position_ids: [B, T] or [1, T]; without a mask, a position 0 begins another sequence.
        entropies: of one layer, [B, H, T].
    """
    batch, _, length = entropies.shape
    if attention_mask is not None and attention_mask.dim() == 4:
        keys = attention_mask[:, 0].sum(dim=-1)
    elif attention_mask is not None:
        keys = (attention_mask.long().cumsum(dim=-1) * attention_mask.bool())[:, -length:]
    elif position_ids is not None and position_ids.dim() == 2:
        index = torch.arange(length, device=position_ids.device)
        first = torch.where(position_ids == 0, index, 0).cummax(dim=-1).values
        keys = index - first + 1
    else:
        return None
    return keys.expand(batch, length)


def is_packed(position_ids: Tensor | None) -> bool:
    """Whether positions start again inside a row; a compiled graph cannot look and says no."""
    if position_ids is None or position_ids.dim() != 2 or torch.compiler.is_compiling():
        return False
    return bool((position_ids[:, 1:] == 0).any())


def refuse_crossing(
    where: str, position_ids: Tensor | None, mask: Tensor | None, num_keys: int
) -> None:
    """Refuses packed sequences that would see each other.

    `transformers` keeps them apart where it gets no cache and no mask of padding.

    Args:
        where: the beginning of the error.
        position_ids: [B, T] or [1, T].
        mask: boolean [B, 1, T, S], True where visible; None for plain causal attention.
        num_keys: S; more than T where keys are cached, which says nothing about their sequences.

    Raises:
        ValueError: a row sees a key before the start of its sequence.
    """
    if position_ids is None or position_ids.shape[-1] != num_keys or not is_packed(position_ids):
        return
    if mask is not None:
        sequence = (position_ids == 0).cumsum(dim=-1)
        is_other = sequence.unsqueeze(-1) != sequence.unsqueeze(-2)
        visible = mask.any(dim=1)
        # Rows of padding, which do not see themselves, may see anything.
        is_token = visible.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        if not (visible & is_other & is_token).any():
            return
    raise ValueError(
        f"{where} got position_ids that start again, and tokens would see the sequences before "
        "theirs; pass use_cache=False and no attention_mask, or a boolean [B, 1, T, S]"
    )
