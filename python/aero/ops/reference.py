"""The operators in plain PyTorch: slow, obvious, differentiable any number of times, on any device.

`backend="reference"` of the public functions calls them. They keep the same contract as the native
operators; the tests hold both against an oracle of their own.

Letters: B batch, H heads, G key heads (H a multiple of G), T queries, S keys, D head width,
L layers, C model width.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from aero.ops._boundary import AUTOCAST_DEVICES
from aero.ops._boundary import statistics_dtype as statistics_dtype
from aero.ops._scores import kept_weights, seen_keys, transformed, with_sinks


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
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    return_max_logits: bool = False,
) -> tuple[Tensor, ...]:
    """See `aero.ops.attention_entropy`."""
    if cu_seqlens_q is not None and cu_seqlens_k is not None:
        others: dict[str, Any] = {
            "is_causal": is_causal,
            "scale": scale,
            "window_left": window_left,
        }
        others |= {"window_right": window_right, "softcap": softcap, "dropout_p": dropout_p}
        others |= {"alibi_slopes": alibi_slopes, "sinks": sinks}
        others |= {"return_max_logits": return_max_logits}
        return _of_sequences(
            (q, k, v), temperature, dropout_seeds, (cu_seqlens_q, cu_seqlens_k), others
        )
    computed = statistics_dtype(q.dtype)
    heads_per_key_head = q.shape[1] // max(k.shape[1], 1)
    keys, values = (x.to(computed).repeat_interleave(heads_per_key_head, dim=1) for x in (k, v))
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    with without_autocast(q.device):
        scores = scale * q.to(computed) @ keys.transpose(-2, -1)
        visible = seen_keys(scores.shape, q.device, mask, is_causal, (window_left, window_right))
        scores = transformed(scores, softcap, bias, alibi_slopes)
        largest = largest_scores(scores, temperature, visible) if return_max_logits else ()
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
        return out.to(q.dtype), entropy, logsumexp, *largest


def largest_scores(
    scores: Tensor, temperature: Tensor | None, visible: Tensor | None
) -> tuple[Tensor, Tensor]:
    """The largest score of each row [B, H, T] after the temperature, and the first key of it.

    -inf and -1 for a row that sees no key, NaN and -1 for one that sees NaN.
    """
    seen = scores != -math.inf
    visible = seen if visible is None else seen & visible
    if temperature is not None:
        # Through a hidden -inf the temperature would get 0 times infinity.
        shown = torch.where(visible, scores, 0)
        scores = shown / temperature_of_rows(temperature.to(scores.dtype))
    hidden = scores.new_full((*scores.shape[:-1], 1), -math.inf)
    shown = torch.cat((torch.where(visible, scores, -math.inf), hidden), -1)
    highest = shown.detach().amax(-1, keepdim=True)
    # A score that is -inf for its size is seen nonetheless.
    has_it = (shown.detach() == highest) & torch.nn.functional.pad(visible, (0, 1))
    found = has_it.any(-1)
    first = has_it.to(torch.uint8).argmax(-1)
    values = shown.gather(-1, torch.where(found, first, scores.shape[-1])[..., None])
    values = torch.where(highest.isnan(), highest, values).squeeze(-1)
    return values, torch.where(found, first, -1)


def _of_sequences(
    qkv: tuple[Tensor, Tensor, Tensor],
    temperature: Tensor | None,
    seeds: Tensor | None,
    starts: tuple[Tensor, Tensor],
    others: dict[str, Any],
) -> tuple[Tensor, ...]:
    """Each packed sequence by itself."""
    q, k, v = qkv
    of_queries, of_keys = (x.tolist() for x in starts)
    results = []
    for n, (first, last) in enumerate(itertools.pairwise(of_queries)):
        rows, keys = slice(first, last), slice(of_keys[n], of_keys[n + 1])
        t = temperature
        results.append(
            attention_entropy(
                q[:, :, rows],
                k[:, :, keys],
                v[:, :, keys],
                temperature=t if t is None or t.dim() < 2 else t[..., rows],
                dropout_seeds=None if seeds is None else seeds[n : n + 1],
                **others,
            )
        )
    if not results:
        nothing = q.new_zeros(q.shape[:3], dtype=statistics_dtype(q.dtype))
        largest = (nothing.clone(), nothing.long()) if others["return_max_logits"] else ()
        return q.new_zeros(*q.shape[:3], v.shape[-1]), nothing, nothing.clone(), *largest
    return tuple(torch.cat(parts, 2) for parts in zip(*results, strict=True))


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


def temperature_of_rows(temperature: Tensor) -> Tensor:
    """The temperature in a shape that broadcasts against [B, H, T, S]."""
    if temperature.dim() == 1 and temperature.shape[0] != 1:
        temperature = temperature[:, None]
    return temperature[..., None] if temperature.dim() > 1 else temperature


def _penalty(entropy: Tensor, threshold: Tensor, largest: Tensor, margin: float) -> Tensor:
    deviation = entropy - threshold * largest
    return torch.where(deviation.abs() > margin * largest, deviation.square(), 0)
