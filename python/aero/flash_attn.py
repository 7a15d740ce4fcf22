"""FlashAttention's functions by their own names, for programs that call them; on the CPU too.

Arguments, the layout [B, T, H, D] and the alignment are those of FlashAttention 2: a query that is
i-th of T sees the keys up to ``i + S - T``. What it cannot do is an error.

Letters: B batch, T queries, S keys, H heads, G key heads (H a multiple of G), D head width.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from aero.ops import attention_entropy
from aero.ops._flash_arguments import (
    held_keys,
    lengths_of,
    refuse,
    require_sizes,
    visible_window,
)

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

_ALL = (-1, -1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor:
    """Computes attention as `flash_attn.flash_attn_func` does, with gradients.

    Args:
        q: [B, T, H, D] in float32, bfloat16, float16 or float64.
        k: [B, S, G, D].
        v: [B, S, G, D].
        dropout_p: the share of the weights that is dropped, seeded by torch's generator.
        softmax_scale: of the scores; default ``1 / sqrt(D)``.
        causal: hides the keys after ``i + S - T`` from query i; rows without keys are 0.
        window_size: how many keys before and after ``i + S - T`` query i sees; -1 for all.
        softcap: bounds the scores, ``softcap * tanh(score / softcap)``; 0 for none.
        alibi_slopes: [H] or [B, H], taken times the distance ``|i + S - T - j|`` from the scores.
        deterministic: has no effect; results are the same run to run.
        return_attn_probs: must be False: the probabilities are never formed.

    Returns:
        [B, T, H, D], dtype of q.

    Raises:
        ValueError: an argument does not fit or is not supported.

    Example:
        >>> import torch
        >>> from aero import flash_attn
        >>> q, k, v = torch.randn(3, 1, 8, 2, 16)  # [B, T, H, D] each
        >>> flash_attn.flash_attn_func(q, k, v, causal=True, window_size=(3, 0)).shape
        torch.Size([1, 8, 2, 16])
    """
    where = "flash_attn_func"
    refuse(where, return_attn_probs=return_attn_probs)
    require_sizes(where, "[B, T, H, D]", (None,) * 4, q=q, k=k, v=v)
    how = _How(where, softmax_scale, causal, window_size, softcap, dropout_p)
    return how.attend(q, k, v, alibi_slopes)[0]


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _ALL,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor:
    """Computes attention within packed sequences as `flash_attn.flash_attn_varlen_func` does.

    Args:
        q: [total T, H, D], the queries of all sequences one after another.
        k: [total S, G, D].
        v: [total S, G, D].
        cu_seqlens_q: [B + 1] integers, where each sequence begins in q, and the total T.
        cu_seqlens_k: [B + 1] integers, the same for k and v.
        max_seqlen_q: has no effect.
        max_seqlen_k: has no effect.
        dropout_p: the share of the weights that is dropped, seeded by torch's generator.
        softmax_scale: of the scores; default ``1 / sqrt(D)``.
        causal: as in `flash_attn_func`, within each sequence.
        window_size: as in `flash_attn_func`, within each sequence.
        softcap: bounds the scores, ``softcap * tanh(score / softcap)``; 0 for none.
        alibi_slopes: [H] or [B, H], taken times the distance ``|i + S - T - j|`` from the scores.
            Compiled graphs take [H]; with [B, H] they look at the lengths, outside the graph.
        deterministic: has no effect.
        return_attn_probs: must be False.
        block_table: must be None.

    Returns:
        [total T, H, D], dtype of q.

    Raises:
        ValueError: an argument does not fit or is not supported.

    Example:
        >>> import torch
        >>> from aero.flash_attn import flash_attn_varlen_func
        >>> q, k, v = torch.randn(3, 7, 2, 16)  # sequences of 3 and 4 tokens
        >>> starts = torch.tensor([0, 3, 7])
        >>> flash_attn_varlen_func(q, k, v, starts, starts, 4, 4, causal=True).shape
        torch.Size([7, 2, 16])
    """
    where = "flash_attn_varlen_func"
    refuse(where, return_attn_probs=return_attn_probs, block_table=block_table)
    require_sizes(where, "[tokens, H, D]", (None,) * 3, q=q, k=k, v=v)
    is_one_call = alibi_slopes is None or alibi_slopes.dim() < 2
    queries, keys = [], []
    # A graph cannot look at the starts; the operator does.
    if not (is_one_call and torch.compiler.is_compiling()):
        queries = lengths_of(where, "cu_seqlens_q", cu_seqlens_q, q)
        keys = lengths_of(where, "cu_seqlens_k", cu_seqlens_k, k)
        if len(queries) != len(keys) or not queries:
            raise ValueError(
                f"{where}: cu_seqlens_q and cu_seqlens_k must be of the same one or more "
                f"sequences, got {len(queries)} and {len(keys)}"
            )
    how = _How(where, softmax_scale, causal, window_size, softcap, dropout_p)
    if alibi_slopes is not None and not is_one_call:
        require_sizes(where, "[H] or [B, H]", (len(queries), q.shape[1]), alibi_slopes=alibi_slopes)
    if is_one_call:
        starts = cu_seqlens_q.to("cpu", torch.int32), cu_seqlens_k.to("cpu", torch.int32)
        return how.attend(q[None], k[None], v[None], alibi_slopes, starts)[0].squeeze(0)
    split = [torch.split(x, lengths) for x, lengths in ((q, queries), (k, keys), (v, keys))]
    parts = [
        how.attend(a[None], b[None], c[None], _of_sequence(alibi_slopes, index))[0]
        for index, (a, b, c) in enumerate(zip(*split, strict=True))
    ]
    return torch.cat(parts, dim=1).squeeze(0)


@torch.no_grad()
def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _ALL,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Writes new keys and values into a cache and attends to it, without gradients.

    As `flash_attn.flash_attn_with_kvcache`: the cache is changed in place, and the caller counts
    `cache_seqlens` on.

    Args:
        q: [B, T, H, D].
        k_cache: [B, room, G, D].
        v_cache: [B, room, G, D].
        k: [B, T', G, D], written behind the `cache_seqlens` keys that are there; None for nothing.
        v: [B, T', G, D].
        rotary_cos: must be None; rotate q and k before.
        rotary_sin: must be None.
        cache_seqlens: how many keys the cache holds, one number or [B]; None for all of its room.
        cache_batch_idx: must be None.
        cache_leftpad: must be None.
        block_table: must be None.
        softmax_scale: of the scores; default ``1 / sqrt(D)``.
        causal: as in `flash_attn_func`, with S of each sequence.
        window_size: as in `flash_attn_func`, with S of each sequence.
        softcap: bounds the scores, ``softcap * tanh(score / softcap)``; 0 for none.
        rotary_interleaved: has no effect.
        alibi_slopes: [H] or [B, H], taken times the distance ``|i + S - T - j|`` from the scores.
        num_splits: has no effect.
        return_softmax_lse: also returns the logsumexp of each row.

    Returns:
        [B, T, H, D], dtype of q; with `return_softmax_lse` also [B, H, T], float32.

    Raises:
        ValueError: an argument does not fit or is not supported, or the cache has no room.

    Example:
        >>> import torch
        >>> from aero.flash_attn import flash_attn_with_kvcache
        >>> k_cache, v_cache = torch.zeros(2, 1, 32, 2, 16)
        >>> q, k, v = torch.randn(3, 1, 1, 2, 16)
        >>> out = flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=7, causal=True)
        >>> torch.equal(k_cache[:, 7:8], k)
        True
    """
    where = "flash_attn_with_kvcache"
    refuse(where, rotary_cos=rotary_cos, rotary_sin=rotary_sin, cache_batch_idx=cache_batch_idx)
    refuse(where, cache_leftpad=cache_leftpad, block_table=block_table)
    require_sizes(where, "[B, T, H, D]", (None,) * 4, q=q)
    batch, width = q.shape[0], q.shape[3]
    require_sizes(where, "[B, room, G, D]", (batch, None, None, width), q, k_cache=k_cache)
    room, heads = k_cache.shape[1:3]
    require_sizes(where, "[B, room, G, D]", (batch, room, heads, None), q, v_cache=v_cache)
    if (k is None) != (v is None):
        raise ValueError(f"{where}: expected k and v together, got one of them")
    held = held_keys(where, cache_seqlens, k_cache, has_new=k is not None)
    how = _How(where, softmax_scale, causal, window_size, softcap)
    if alibi_slopes is not None and alibi_slopes.dim() > 1:
        require_sizes(where, "[H] or [B, H]", (batch, q.shape[2]), alibi_slopes=alibi_slopes)
    if k is not None and v is not None:  # what is refused leaves the cache as it is
        require_sizes(where, "[B, T', G, D]", (batch, None, heads, width), q, k=k)
        require_sizes(where, "[B, T', G, D]", (batch, k.shape[1], heads, v_cache.shape[3]), q, v=v)
        held = _append(where, k_cache, v_cache, k, v, held)
    if len(set(held)) <= 1:
        length = held[0] if held else 0
        out, lse = how.attend(q, k_cache[:, :length], v_cache[:, :length], alibi_slopes)
    else:  # the last query sees another key in each sequence
        parts = [
            how.attend(
                q[n : n + 1], k_cache[n : n + 1, :length], v_cache[n : n + 1, :length],
                _of_sequence(alibi_slopes, n),
            )
            for n, length in enumerate(held)
        ]  # fmt: skip
        out, lse = (torch.cat(each) for each in zip(*parts, strict=True))
    return (out, lse) if return_softmax_lse else out


@dataclass(frozen=True)
class _How:
    """What a call asks for beside its tensors."""

    where: str
    scale: float | None
    causal: bool
    window: tuple[int, int]
    softcap: float
    dropout_p: float = 0.0

    def __post_init__(self) -> None:
        visible_window(self.where, self.window, self.causal, 1, 1)
        for name, number in (("softmax_scale", self.scale or 0.0), ("softcap", self.softcap)):
            if not math.isfinite(number) or (name == "softcap" and number < 0):
                bound = " from 0" if name == "softcap" else ""
                raise ValueError(f"{self.where}: {name} must be a number{bound}, got {number}")

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        alibi_slopes: Tensor | None,
        starts: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The output [B, T, H, D] and logsumexp [B, H, T]; `starts` are of packed sequences."""
        num_queries, num_keys = q.shape[1], k.shape[1]
        left, right = visible_window(self.where, self.window, self.causal, num_queries, num_keys)
        if starts is None and left is not None and num_keys > num_queries + left:
            k, v = (x[:, num_keys - num_queries - left :] for x in (k, v))  # the seen ones
        is_causal = left is None and right == 0
        window = None if is_causal or left is right is None else (left, right)
        out, _, lse = attention_entropy(
            *(x.transpose(1, 2) for x in (q, k, v)),
            is_causal=is_causal,
            scale=self.scale,
            window=window,
            softcap=self.softcap or None,
            alibi_slopes=alibi_slopes,
            dropout_p=self.dropout_p,
            cu_seqlens=starts,
        )
        return out.transpose(1, 2), lse


def _of_sequence(slopes: Tensor | None, index: int) -> Tensor | None:
    return slopes if slopes is None or slopes.dim() < 2 else slopes[index]


def _append(
    where: str, k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, held: list[int]
) -> list[int]:
    """Writes keys and values behind those that the cache holds, and counts them."""
    new, room = k.shape[1], k_cache.shape[1]
    if max(held, default=0) + new > room:
        raise ValueError(
            f"{where}: expected room for {max(held)} + {new} keys, got a cache of {room}"
        )
    for index, length in enumerate(held):
        k_cache[index, length : length + new] = k[index]
        v_cache[index, length : length + new] = v[index]
    return [length + new for length in held]
