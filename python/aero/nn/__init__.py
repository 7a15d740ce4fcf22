"""Modules to compose AERO networks from: attention with entropies, feed-forwards, norms, blocks.

Example:
    >>> import torch
    >>> attention = DropInAttention(32, 4)
    >>> output, entropy = attention(torch.randn(2, 10, 32))  # [B, T, C]
    >>> output.shape, entropy.shape
    (torch.Size([2, 10, 32]), torch.Size([2, 4, 10]))
"""

from aero.nn.annealed_modules import (
    AnnealedFeedForward,
    AnnealedNorm,
    annealing_progress,
    set_annealing_progress,
)
from aero.nn.attention import (
    CausalSelfAttention,
    KeyValueCache,
    SequenceContext,
    ShapedSelfAttention,
    causal_attention,
    uniform_attention,
)
from aero.nn.block import Block
from aero.nn.drop_in import DropInAttention, DropInBlock
from aero.nn.feed_forward import (
    FeedForward,
    FusedFeedForward,
    ScaledFeedForward,
    ScaledFusedFeedForward,
)
from aero.nn.layout import TransposedLinear, set_weight_layout
from aero.nn.linear import Linear
from aero.nn.norm import FoldableNorm
from aero.nn.rotary import apply_rotary, rotary_tables
from aero.nn.temperature import Temperature
from aero.nn.weight_normalization import normalize_weight, plain_linear

__all__ = [
    "AnnealedFeedForward",
    "AnnealedNorm",
    "Block",
    "CausalSelfAttention",
    "DropInAttention",
    "DropInBlock",
    "FeedForward",
    "FoldableNorm",
    "FusedFeedForward",
    "KeyValueCache",
    "Linear",
    "ScaledFeedForward",
    "ScaledFusedFeedForward",
    "SequenceContext",
    "ShapedSelfAttention",
    "Temperature",
    "TransposedLinear",
    "annealing_progress",
    "apply_rotary",
    "causal_attention",
    "normalize_weight",
    "plain_linear",
    "rotary_tables",
    "set_annealing_progress",
    "set_weight_layout",
    "uniform_attention",
]
