"""The operators in plain PyTorch: slow, obvious, differentiable any number of times, on any device.

`backend="reference"` of the public functions calls them. They keep the same contract as the native
operators; the tests hold both against an oracle of their own.

Letters: B batch, H heads, G key heads (H a multiple of G), T queries, S keys, D head width,
L layers, C model width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from aero.ops._boundary import AUTOCAST_DEVICES
from aero.ops._boundary import statistics_dtype as statistics_dtype


def temperature_softmax(
    scores: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `aero.ops.temperature_softmax`."""
    computed = scores.to(statistics_dtype(scores.dtype))
    if temperature is None:
        temperature = computed.new_ones(())
    probabilities, entropy, logsumexp = _softmax_and_entropy(
        computed,
        temperature_of_rows(temperature.to(computed.dtype)),
        seen_keys(scores.shape, scores.device, mask, is_causal),
    )
    return probabilities.to(scores.dtype), entropy, logsumexp


def attention_entropy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window_left: int | None = None,
    window_right: int | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_seeds: Tensor | None = None,
    dropout_p: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """See `aero.ops.attention_entropy`."""
    computed = statistics_dtype(q.dtype)
    heads_per_key_head = q.shape[1] // max(k.shape[1], 1)
    keys, values = (x.to(computed).repeat_interleave(heads_per_key_head, dim=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with without_autocast(q.device):
        scores = scale * q.to(computed) @ keys.transpose(-2, -1)
        visible = seen_keys(scores.shape, q.device, mask, is_causal, (window_left, window_right))
        scores = transformed(scores, softcap, bias, alibi_slopes)
        if sinks is not None:
            scores, visible = with_sinks(scores, visible, sinks)
        probabilities, entropy, logsumexp = temperature_softmax(
            scores, temperature=temperature, mask=visible
        )
        if sinks is not None:
            probabilities = probabilities[..., :-1]
        # What comes back to a row that sees no key would be times 0 in the values' gradients.
        sees_a_key = probabilities.detach().any(-1, keepdim=True)
        if dropout_seeds is not None:
            stays = kept_weights(dropout_seeds, dropout_p, probabilities.shape)
            probabilities = torch.where(stays, probabilities / (1 - dropout_p), 0)
        out = torch.where(sees_a_key, probabilities @ values, 0)
        return out.to(q.dtype), entropy, logsumexp


def entropy_regularization(
    entropies: Tensor | Sequence[Tensor],
    thresholds: Tensor,
    *,
    margin: float = 0.1,
    max_entropy: str = "log_context",
    visible_keys: Tensor | None = None,
    row_mask: Tensor | None = None,
    context_length: int | None = None,
    reduction: str = "position_sum",
) -> Tensor:
    """See `aero.ops.entropy_regularization`."""
    if not isinstance(entropies, Tensor):
        entropies = torch.stack(tuple(entropies))
    largest = max_entropy_of_rows(
        entropies, max_entropy=max_entropy, visible_keys=visible_keys, context_length=context_length
    )
    query_mean = reduction == "query_mean"
    return penalty(entropies, thresholds, largest, row_mask, margin, query_mean)


def head_penalties(
    entropies: Tensor,
    thresholds: Tensor,
    *,
    margin: float,
    max_entropy: str,
    visible_keys: Tensor | None,
    row_mask: Tensor | None,
    context_length: int | None,
    reduction: str,
) -> Tensor:
    """The penalty of each head, [L, H], whose mean is `entropy_regularization`."""
    largest = max_entropy_of_rows(
        entropies, max_entropy=max_entropy, visible_keys=visible_keys, context_length=context_length
    )
    query_mean = reduction == "query_mean"
    return _by_head(entropies, thresholds, largest, row_mask, margin, query_mean)


def penalty(
    entropies: Tensor,
    thresholds: Tensor,
    largest: Tensor,
    row_mask: Tensor | None,
    margin: float,
    query_mean: bool,
) -> Tensor:
    """`entropy_regularization` for known largest entropies: 0-D to [B, T]."""
    if entropies.numel() == 0:
        return (entropies.sum() + thresholds.sum()) * 0
    return _by_head(entropies, thresholds, largest, row_mask, margin, query_mean).mean()


def _by_head(
    entropies: Tensor,
    thresholds: Tensor,
    largest: Tensor,
    row_mask: Tensor | None,
    margin: float,
    query_mean: bool,
) -> Tensor:
    _, batch, _, queries = entropies.shape
    counted = torch.ones(batch, queries, dtype=torch.bool, device=entropies.device)
    if row_mask is not None:
        counted = row_mask.expand(batch, queries)
        entropies = torch.where(counted[:, None], entropies, 0)
    largest = largest.expand(batch, queries)
    threshold = thresholds.to(entropies.dtype)[:, None, :, None]

    if not query_mean:
        penalties = _penalty(entropies, threshold, largest[:, None], margin)
        return torch.where(counted[:, None], penalties, 0).sum((1, 3))

    rows = counted.sum(-1)
    mean = entropies.sum(-1) / rows.clamp(min=1)[:, None]
    mean_largest = torch.where(counted, largest, 0).sum(-1) / rows.clamp(min=1)
    penalties = _penalty(mean, threshold.squeeze(-1), mean_largest[:, None], margin)
    used = rows > 0  # a batch entry of padding alone is in no mean
    return torch.where(used[:, None], penalties, 0).sum(1) / used.sum().clamp(min=1)


def scaled_ffn(x: Tensor, weight: Tensor, bias: Tensor, *, alpha: Tensor, beta: Tensor) -> Tensor:
    """See `aero.ops.scaled_ffn`."""
    computed = statistics_dtype(x.dtype)
    with without_autocast(x.device):
        # Where the weight is narrower than the stream, its type is that of the product's operands.
        linear = x.to(weight.dtype).to(computed) @ weight.to(computed) + bias.to(computed)
    return (beta.to(computed) * x.to(computed) + linear / alpha.to(computed)).to(x.dtype)


def max_entropy_of_rows(
    entropies: Tensor,
    *,
    max_entropy: str,
    visible_keys: Tensor | None = None,
    context_length: int | None = None,
) -> Tensor:
    """The largest entropy that counts as possible, per row: 0-D, [1, T] or [B, T], in nats.

    Args:
        entropies: [L, B, H, T]; only shape, dtype and device matter.
        max_entropy: "log_context" (the same for every row) or "log_visible" (rows differ).
        visible_keys: [B, T] integers, how many keys each row sees; default i + 1 for row i. A row
            that sees no key has 0, as one that sees one.
        context_length: for "log_context"; default T.
    """
    queries = entropies.shape[-1]
    if max_entropy == "log_context":
        context = queries if context_length is None else context_length
        return torch.full((), context, dtype=entropies.dtype, device=entropies.device).log()
    if visible_keys is None:
        visible_keys = torch.arange(1, queries + 1, device=entropies.device)[None]
    return visible_keys.clamp(min=1).to(entropies.dtype).log()


def _softmax_and_entropy(
    scores: Tensor, temperature: Tensor, visible: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    # Entropy as ln l - U / l with x = (s - max) / t: no difference of two large numbers. The
    # maximum is a constant to autograd: no result depends on it.
    seen = scores != -math.inf
    visible = seen if visible is None else seen & visible
    empty = ~visible.any(-1)
    size = temperature.abs()
    shown = torch.where(visible, scores, 0)
    signed = shown * torch.where(temperature < 0, -1, 1) + (shown - shown)  # NaN where infinite
    if scores.shape[-1] == 0:
        highest = scores.new_zeros(*scores.shape[:-1], 1)
    else:
        lowest = torch.finfo(scores.dtype).min
        highest = signed.detach().masked_fill(~visible, lowest).amax(-1, keepdim=True)
        highest = highest.masked_fill(empty[..., None], 0)
    # Of halves, whose difference does not overflow. Below x = -2000 weights are 0 anyway.
    half = torch.maximum(signed / 2 - highest / 2, -1000 * size.detach())
    x = torch.where(visible, half, 0) / size * 2
    e = torch.where(visible, x.exp(), 0)
    total = e.sum(-1).masked_fill(empty, 1)
    # Constants where nothing is seen, so that nothing that comes back goes on: 0 times NaN is NaN.
    probabilities = torch.where(visible, e / total[..., None], 0)
    entropy = (total.log() - (e * x).sum(-1) / total).masked_fill(empty, 0)
    logsumexp = (highest / size).squeeze(-1) + total.log()
    return probabilities, entropy, logsumexp.masked_fill(empty, -math.inf)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Autocast off, where the device has it."""
    if device.type not in AUTOCAST_DEVICES:
        return nullcontext()
    return torch.autocast(device.type, enabled=False)


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
        visible = torch.nn.functional.pad(visible, (0, 1), value=True)
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
    """Which weights [B, H, T, S] dropout keeps: those whose hash of 32 bits is not below p 2^32.

    The hash takes in the seed of the batch entry, head, query and key, so neither threads nor
    machines change it. `kernels/cpu/attention_transform.h` computes the same.
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


def temperature_of_rows(temperature: Tensor) -> Tensor:
    """The temperature in a shape that broadcasts against [B, H, T, S]."""
    if temperature.dim() == 1 and temperature.shape[0] != 1:
        temperature = temperature[:, None]
    return temperature[..., None] if temperature.dim() > 1 else temperature


def _penalty(entropy: Tensor, threshold: Tensor, largest: Tensor, margin: float) -> Tensor:
    deviation = entropy - threshold * largest
    return torch.where(deviation.abs() > margin * largest, deviation.square(), 0)
