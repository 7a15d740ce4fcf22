"""What stands between products and weights of attention, in plain PyTorch.

Letters: B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def seen_keys(
    shape: torch.Size,
    device: torch.device,
    mask: Tensor | None,
    is_causal: bool,
    window: tuple[int | None, int | None] = (None, None),
) -> Tensor | None:
    """True where the query sees the key; None means everywhere.

    The causal diagonal ends in the last row and column: with a key cache the newest query sees all.
    A window counts from that diagonal, to the left and to the right.
    """
    left, right = window
    if is_causal:
        right = 0 if right is None else min(right, 0)
    ahead = _keys_ahead(shape, device)
    if left is not None:
        mask = ahead >= -left if mask is None else mask & (ahead >= -left)
    if right is not None:
        mask = ahead <= right if mask is None else mask & (ahead <= right)
    return mask


def transformed(
    products: Tensor, softcap: float | None, bias: Tensor | None, alibi_slopes: Tensor | None
) -> Tensor:
    """Scores [B, H, T, S] before the temperature divides them."""
    scores = products
    if softcap is not None:
        scores = softcap * (scores / softcap).tanh()
    if bias is not None:
        scores = scores + bias.to(scores.dtype)
    if alibi_slopes is not None:
        slopes = alibi_slopes.to(scores.dtype)[..., None, None]
        scores = scores - slopes * distances(scores.shape, scores.device)
    return scores


def with_sinks(
    scores: Tensor, visible: Tensor | None, sinks: Tensor
) -> tuple[Tensor, Tensor | None]:
    """The same with one more key, of value 0, which all queries see."""
    sink = sinks.to(scores.dtype)[..., None, None].expand(*scores.shape[:3], 1)
    if visible is not None:
        visible = torch.nn.functional.pad(visible.expand(scores.shape), (0, 1), value=True)
    return torch.cat((scores, sink), -1), visible


def _keys_ahead(shape: torch.Size, device: torch.device) -> Tensor:
    # j - (i + S - T), [T, S]
    queries, keys = shape[-2:]
    rows = torch.arange(queries, device=device)[:, None] + (keys - queries)
    return torch.arange(keys, device=device) - rows


def distances(shape: torch.Size, device: torch.device) -> Tensor:
    """|j - (i + S - T)|, [T, S]."""
    return _keys_ahead(shape, device).abs()


def kept_weights(seeds: Tensor, probability: float, shape: torch.Size) -> Tensor:
    """The weights [B, H, T, S] that dropout keeps: their hash of 32 bits is at least p 2^32.

    The hash takes in the seed of the batch entry, head, query and key, so neither threads nor
    machines change it. `kernels/dropout.h` computes the same.
    """
    _, heads, queries, keys = shape

    def positions(count: int) -> Tensor:
        return torch.arange(count, device=seeds.device)

    of_heads = _mixed(seeds)[:, None] + positions(heads)
    row = _mixed(_mixed(of_heads)[..., None] + positions(queries))[..., None]
    x = _low_word(positions(keys) * 0x9E3779B9 + row)
    x = _low_word((x ^ (x >> 16)) * 0x7FEB352D)
    x = _low_word((x ^ (x >> 15) ^ _low_word(row >> 32)) * 0x846CA68B)
    return (x ^ (x >> 16)) >= int(probability * 2**32)


def _low_word(x: Tensor) -> Tensor:
    return x & 0xFFFFFFFF


def _mixed(x: Tensor) -> Tensor:
    # splitmix64 on the bits of int64, whose products wrap around.
    def shifted(x: Tensor, bits: int) -> Tensor:
        return (x >> bits) & ((1 << (64 - bits)) - 1)

    def signed(bits: int) -> int:
        return bits - (1 << 64) if bits >> 63 else bits

    x = x + signed(0x9E3779B97F4A7C15)
    x = (x ^ shifted(x, 30)) * signed(0xBF58476D1CE4E5B9)
    x = (x ^ shifted(x, 27)) * signed(0x94D049BB133111EB)
    return x ^ shifted(x, 31)
