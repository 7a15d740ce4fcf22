"""Causal self-attention that also returns the entropy of every attention row.

Letters: B batch, T queries, S keys (cached ones included), H heads, D head width, C model width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from aero import ops
from aero.nn.gates import Gates
from aero.nn.linear import Linear
from aero.nn.packed_mask import PackedMask, attend
from aero.nn.rotary import RotaryTables, apply_rotary
from aero.nn.temperature import Temperature
from aero.nn.visible_keys import AttentionCall, recording
from aero.nn.weight_decay import Scales


class KeyValueCache(Protocol):
    """The methods of a cache that attention calls; `transformers` caches have them."""

    def update(self, keys: Tensor, values: Tensor, layer_index: int) -> tuple[Tensor, Tensor]:
        """Appends keys and values [B, H, T, D] of a layer and returns all of that layer."""


@dataclass(frozen=True)
class SequenceContext:
    """The facts about the sequences of one forward that all layers share.

    Attributes:
        mask: [B or 1, H or 1, T, S] boolean, True where a query sees a key; None means causal,
            within the window.
        token_mask: [B, T] boolean, False for padding tokens; None when there are none.
        position_ids: [B, T] or [1, T] integers; None for consecutive ones from `first_position`.
        first_position: position of the first query when `position_ids` is None.
        rotary: tables of `rotary_tables`; None without rotary positions.
        cache: keys and values of earlier calls; None without.
        negative_slope: the network's leaky ReLU slope, [1], where it has one for all layers.
        num_cached: how many keys the cache held before this call.
        gates: on parts of the network, in a training that chooses among them; None without.
        bias: added to the scores, broadcastable to [B, H, T, S]; None without.
        window: how many keys a query sees, its own included; 0: all, or what the mask says.
    """

    mask: Tensor | None = None
    token_mask: Tensor | None = None
    position_ids: Tensor | None = None
    first_position: int = 0
    rotary: RotaryTables | None = None
    cache: KeyValueCache | None = None
    negative_slope: Tensor | None = None
    num_cached: int | Tensor = 0
    gates: Gates | None = None
    bias: Tensor | None = None
    window: int = 0


def causal_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: SequenceContext,
    *,
    temperature: Tensor | None = None,
    scale: float | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Attention as a decoder calls it: causal unless a mask decides which keys are visible.

    Args:
        query: [B, H, T, D].
        key: [B, H, S, D].
        value: [B, H, S, D].
        context: its mask, bias and window. Without a mask and with S > T > 1 the keys beyond T are
            the unwritten rest of a preallocated cache.
        temperature: as in `aero.ops.attention_entropy`.
        scale: of the scores; default ``1 / sqrt(D)``.
        dropout_p: of the attention weights; the entropies are those without it.

    Returns:
        Output [B, H, T, D] and row entropies [B, H, T], nats, float32.
    """
    mask, window = context.mask, context.window
    key, value = written_keys(key, value, query.shape[2], mask)
    if recording.calls is not None:
        recording.calls.append(AttentionCall(mask, key.shape[2], window))
    attended = attend if isinstance(mask, PackedMask) else ops.attention_entropy
    output, entropy, _ = attended(
        query,
        key,
        value,
        temperature=temperature,
        mask=mask,
        is_causal=mask is None,
        scale=scale,
        dropout_p=dropout_p,
        window=(window - 1, 0) if window else None,
        bias=context.bias,
    )
    return output, entropy


def written_keys(
    key: Tensor, value: Tensor, num_queries: int, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Drops the unwritten end of a preallocated cache at its first, unmasked, call."""
    if mask is None and 1 < num_queries < key.shape[2]:
        return key[:, :, :num_queries], value[:, :, :num_queries]
    return key, value


def uniform_attention(value: Tensor, num_queries: int, mask: Tensor | None = None) -> Tensor:
    """Mean of the visible values of every query, [B, H, T, D]: attention with equal scores.

    Args:
        value: [B, H, S, D].
        num_queries: T; without a mask the last query sees all keys, the one before one fewer, ...
        mask: boolean, broadcastable to [B, H, T, S]. A query that sees nothing gets zeros.
    """
    if mask is not None:
        weights = mask.to(value.dtype)
        return weights @ value / weights.sum(dim=-1, keepdim=True).clamp(min=1)
    num_keys = value.shape[2]
    counts = torch.arange(1, num_keys + 1, device=value.device).unsqueeze(-1)
    means = value.cumsum(dim=2, dtype=torch.promote_types(value.dtype, torch.float32)) / counts
    return means[:, :, num_keys - num_queries :].to(value.dtype)


class CausalSelfAttention(Scales):
    """Multi-head attention with an optional learnable temperature.

    Args:
        width: C.
        num_heads: H.
        head_dim: D, default C / H; need not be C / H.
        temperature: None for 1.
        entropy_threshold: start of the regularization thresholds, a fraction of the maximal
            entropy, one per head; None for an attention that is not regularized.
        separate_projections: three matrices `q_attn`, `k_attn`, `v_attn` in place of one `c_attn`,
            for normalizations that act on each of them.
        layer_index: this layer's place in the cache.

    Attributes:
        attention_dropout: the share of the attention weights that training drops, 0 at first.

    Example:
        >>> from aero.nn import CausalSelfAttention, SequenceContext
        >>> import torch
        >>> output, entropy = CausalSelfAttention(16, 4)(torch.randn(2, 5, 16), SequenceContext())
        >>> output.shape, entropy.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 4, 5]))
    """

    _scale_names = ("entropy_threshold",)

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        temperature: Temperature | None = None,
        entropy_threshold: float | None = None,
        separate_projections: bool = False,
        layer_index: int = 0,
    ) -> None:
        super().__init__()
        if temperature is not None and not isinstance(temperature, Temperature):
            raise ValueError(
                "aero attention: temperature must be an aero.nn.Temperature, got "
                f"{type(temperature).__name__}"
            )
        self.num_heads = num_heads
        self.head_dim = _head_dim(width, num_heads, head_dim)
        self.layer_index = layer_index
        inner_width = num_heads * self.head_dim
        if separate_projections:
            self.q_attn = Linear(width, inner_width)
            self.k_attn = Linear(width, inner_width)
            self.v_attn = Linear(width, inner_width)
        else:
            self.c_attn = Linear(width, 3 * inner_width)
        self.separate_projections = separate_projections
        self.c_proj = Linear(inner_width, width, start="residual")
        self.temperature = temperature
        self.entropy_threshold = _thresholds(num_heads, entropy_threshold)
        self.attention_dropout = 0.0

    def forward(self, inputs: Tensor, context: SequenceContext) -> tuple[Tensor, Tensor]:
        """Returns the output, [B, T, C], and the row entropies, [B, H, T], nats, float32.

        Args:
            inputs: [B, T, C].
            context: mask, positions and cache of this call.
        """
        if self.separate_projections:
            projected = (self.q_attn(inputs), self.k_attn(inputs), self.v_attn(inputs))
        else:
            projected = self.c_attn(inputs).split(self.num_heads * self.head_dim, dim=-1)
        query, key, value = (_split_heads(part, self.num_heads) for part in projected)
        query, key, value = _place(query, key, value, context, self.layer_index)
        output, entropy = causal_attention(
            query,
            key,
            value,
            context,
            temperature=_temperatures(self.temperature, context, inputs.shape[1]),
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        if context.gates is not None:
            output = context.gates.on_heads(output)
        return self.c_proj(output.transpose(1, 2).flatten(2)), entropy


class ShapedSelfAttention(Scales):
    """Shaped attention without value and output projections (He & Hofmann, ICLR 2024).

    The values are the inputs, split into heads; the attention matrix of each head is
    ``alpha * I + beta * softmax(.) - gamma * C`` with C the uniform causal attention. Query weights
    start at zero, so that the softmax equals C and every head starts as ``alpha * I``.

    Args:
        width: C, a multiple of H.
        num_heads: H.
        head_dim: D of queries and keys, default C / H.
        temperature: None for 1.
        entropy_threshold: as in `CausalSelfAttention`.
        layer_index: this layer's place in the cache.

    Attributes:
        alpha: [H], starts at 1.
        beta: [H], starts at 1.
        gamma: [H], starts at 1.
        attention_dropout: the share of the softmax's weights that training drops, 0 at first.

    Example:
        >>> from aero.nn import SequenceContext, ShapedSelfAttention
        >>> import torch
        >>> x = torch.randn(2, 5, 16)
        >>> output, _ = ShapedSelfAttention(16, 4)(x, SequenceContext())
        >>> torch.allclose(output, x, atol=1e-5)
        True
    """

    _scale_names = ("entropy_threshold", "alpha", "beta", "gamma")

    def __init__(
        self,
        width: int,
        num_heads: int,
        head_dim: int | None = None,
        *,
        temperature: Temperature | None = None,
        entropy_threshold: float | None = None,
        layer_index: int = 0,
    ) -> None:
        super().__init__()
        if width % num_heads:
            raise ValueError(
                "ShapedSelfAttention: width must be a multiple of num_heads, since the inputs are "
                f"the values of the heads, got width {width} and num_heads {num_heads}"
            )
        self.num_heads = num_heads
        self.head_dim = _head_dim(width, num_heads, head_dim)
        self.layer_index = layer_index
        self.q_attn = Linear(width, num_heads * self.head_dim, start="zero")
        self.k_attn = Linear(width, num_heads * self.head_dim)
        nn.init.zeros_(self.q_attn.weight)
        nn.init.zeros_(self.q_attn.bias)
        self.alpha = nn.Parameter(torch.ones(num_heads))
        self.beta = nn.Parameter(torch.ones(num_heads))
        self.gamma = nn.Parameter(torch.ones(num_heads))
        self.temperature = temperature
        self.entropy_threshold = _thresholds(num_heads, entropy_threshold)
        self.attention_dropout = 0.0

    def forward(self, inputs: Tensor, context: SequenceContext) -> tuple[Tensor, Tensor]:
        """Returns the output, [B, T, C], and the softmax's row entropies, [B, H, T]."""
        num_queries = inputs.shape[1]
        own_value = _split_heads(inputs, self.num_heads)
        query, key, value = _place(
            _split_heads(self.q_attn(inputs), self.num_heads),
            _split_heads(self.k_attn(inputs), self.num_heads),
            own_value,
            context,
            self.layer_index,
        )
        key, value = written_keys(key, value, num_queries, context.mask)
        attended, entropy = causal_attention(
            query,
            key,
            value.to(query.dtype),
            context,
            temperature=_temperatures(self.temperature, context, num_queries),
            scale=1 / math.sqrt(self.head_dim),
            dropout_p=self.attention_dropout if self.training else 0.0,
        )
        alpha, beta, gamma = (x.view(-1, 1, 1) for x in (self.alpha, self.beta, self.gamma))
        uniform = uniform_attention(value, num_queries, context.mask)
        output = alpha * own_value + beta * attended - gamma * uniform
        return output.transpose(1, 2).flatten(2), entropy


def _head_dim(width: int, num_heads: int, head_dim: int | None) -> int:
    if min(width, num_heads, num_heads if head_dim is None else head_dim) < 1:
        raise ValueError(f"aero attention: sizes must be from 1, got {width, num_heads, head_dim}")
    if head_dim is None and width % num_heads:
        raise ValueError(
            f"aero attention: width must be a multiple of num_heads {num_heads}, or head_dim be "
            f"given, got {width}"
        )
    return width // num_heads if head_dim is None else head_dim


def _thresholds(num_heads: int, start: float | None) -> nn.Parameter | None:
    return None if start is None else nn.Parameter(torch.full((num_heads,), start))


def _split_heads(projected: Tensor, num_heads: int) -> Tensor:
    """[B, T, H * D] -> [B, H, T, D], a view."""
    head_dim = projected.shape[-1] // num_heads
    return projected.view(*projected.shape[:-1], num_heads, head_dim).transpose(1, 2)


def _place(
    query: Tensor, key: Tensor, value: Tensor, context: SequenceContext, layer_index: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotates queries and keys to their positions and joins the cached keys and values."""
    if context.rotary is not None:
        query, key = apply_rotary(query, context.rotary), apply_rotary(key, context.rotary)
    if context.cache is not None:
        key, value = context.cache.update(key, value, layer_index)
    return query, key, value


def _temperatures(
    temperature: Temperature | None, context: SequenceContext, num_queries: int
) -> Tensor | None:
    if temperature is None:
        return None
    values: Tensor = temperature(
        context.position_ids, first_position=context.first_position, num_positions=num_queries
    )
    return values
