"""Rotary positions on the first channels of each head (GPT-NeoX form)."""

from __future__ import annotations

import torch
from torch import Tensor

# cos and sin, each broadcastable to [B, H, T, rotary_dim / 2]
RotaryTables = tuple[Tensor, Tensor]


def rotary_tables(position_ids: Tensor, rotary_dim: int, *, base: float = 10000.0) -> RotaryTables:
    """Cosines and sines of ``position * base**(-2 i / rotary_dim)``.

    Args:
        position_ids: [B, T] or [1, T], integers.
        rotary_dim: even number of rotated channels.
        base: of the geometric series of wavelengths.

    Returns:
        cos and sin, each [B, 1, T, rotary_dim / 2], float32.
    """
    exponents = torch.arange(0, rotary_dim, 2, device=position_ids.device) / rotary_dim
    angles = position_ids.unsqueeze(-1).float() * base**-exponents
    angles = angles.unsqueeze(1)
    return angles.cos(), angles.sin()


def apply_rotary(heads: Tensor, tables: RotaryTables) -> Tensor:
    """Rotates channel pairs (i, i + rotary_dim / 2) of `heads`, [B, H, T, D], by the angles."""
    cos, sin = (table.to(heads.dtype) for table in tables)
    half = cos.shape[-1]
    first, second, rest = heads[..., :half], heads[..., half : 2 * half], heads[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)
