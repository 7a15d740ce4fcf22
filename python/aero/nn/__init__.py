"""Modules to compose AERO networks from: attention with entropies, feed-forwards, norms, blocks.

Example:
    >>> from aero.nn import DropInAttention
    >>> import torch
    >>> attention = DropInAttention(32, 4)
    >>> output, entropy = attention(torch.randn(2, 10, 32))  # [B, T, C]
    >>> output.shape, entropy.shape
    (torch.Size([2, 10, 32]), torch.Size([2, 4, 10]))
"""

from aero.nn.attention import (
    CausalSelfAttention,
    KeyValueCache,
    SequenceContext,
    ShapedSelfAttention,
)
from aero.nn.block import Block
from aero.nn.drop_in import DropInAttention, DropInBlock
from aero.nn.feed_forward import (
    FeedForward,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
)
from aero.nn.norm import FoldableNorm
from aero.nn.temperature import Temperature

__all__ = [
    "Block",
    "CausalSelfAttention",
    "DropInAttention",
    "DropInBlock",
    "FeedForward",
    "FoldableNorm",
    "FusedFeedForward",
    "KeyValueCache",
    "ScaledFeedForward",
    "ScaledFusedFeedForward",
    "SequenceContext",
    "ShapedSelfAttention",
    "Temperature",
]
