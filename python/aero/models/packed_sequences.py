"""Packed sequences, whose positions start again: what keeps them from seeing each other.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import weakref

import torch
from torch import Tensor, nn


def is_packed(position_ids: Tensor | None) -> bool:
    """True if positions start again inside a row; a compiled graph cannot look and says no."""
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


# Positions and mask of the last call that passed, and the positions' version.
_passed: tuple[list[weakref.ref[Tensor]], int] = ([], 0)


def refuse_packed_layer(
    module: nn.Module, mask: Tensor | None, num_keys: int, position_ids: Tensor | None
) -> None:
    """Refuses packed sequences that see each other; looks once per call, as GPUs wait for it."""
    global _passed
    if position_ids is None or torch.compiler.is_compiling():
        return
    call = [position_ids] if mask is None else [position_ids, mask]
    version = 0 if position_ids.is_inference() else position_ids._version
    before, at = _passed
    is_same = len(before) == len(call) and all(
        reference() is tensor for reference, tensor in zip(before, call, strict=True)
    )
    if not is_same or at != version:
        where = f"aero attention: {type(module).__name__}"
        refuse_crossing(where, position_ids, mask, num_keys)
        _passed = [weakref.ref(tensor) for tensor in call], version
