"""The gradients of the native operators in plain PyTorch, for *their* derivatives.

The native backward pass computes the gradients. Where these are differentiated again, backward or
forward, torch differentiates the functions of this file, which form the [T, S] scores. Each takes
the arguments of `aero::<operator>_backward` and gives what that gives: an empty tensor where a
gradient is not wanted.

`out` and `statistics` follow from the other arguments and are formed anew, so that every path to an
input counts once.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from aero.ops import _scores, reference
from aero.ops._boundary import statistics_dtype

Gradients = tuple[Tensor, ...]

#: Arguments of aero::attention_entropy behind `scale`; none is given in plain attention.
VARIANTS = (
    "window_left", "window_right", "softcap", "bias", "alibi_slopes", "sinks", "dropout_seeds",
    "dropout_p", "cu_seqlens_q", "cu_seqlens_k",
)  # fmt: skip
#: Those that have gradients.
LEARNED = ("bias", "alibi_slopes", "sinks")
PLAIN = (*(None,) * 7, 0.0, None, None)


def temperature_softmax(
    dprobabilities: Tensor | None,
    dentropy: Tensor | None,
    dlogsumexp: Tensor | None,
    scores: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    statistics: Tensor,
    is_causal: bool,
    needs_scores: bool,
    needs_temperature: bool,
) -> Gradients:
    """The gradients of scores [B, H, T, S] and temperature.

    `dscores_j = P_j (d_j - sum_i P_i d_i + dlogsumexp - dentropy (ln P_j + entropy)) / t` with
    `d = dprobabilities`, and `dt = -sum_j dscores_j scores_j / t`. What comes back to keys that are
    not seen, or to rows that see none, goes nowhere: 0 times inf or NaN is not 0.
    """
    computed = statistics_dtype(scores.dtype)
    visible = _scores.seen_keys(scores.shape, scores.device, mask, is_causal)
    visible = scores > -math.inf if visible is None else visible & (scores > -math.inf)
    shown = torch.where(visible, scores, 0).to(computed)
    t = None if temperature is None else reference.temperature_of_rows(temperature)
    empty = ~visible.any(-1, keepdim=True)
    hidden = torch.where(empty, 0.0, -math.inf).to(computed)
    scaled = shown if t is None else shown / t
    log_p = torch.where(visible, torch.where(visible, scaled, hidden).log_softmax(-1), 0)
    p = torch.where(visible, log_p.exp(), 0)

    slope = torch.zeros_like(p)
    if dprobabilities is not None:
        d = torch.where(visible, dprobabilities.to(computed), 0)
        slope = slope + d - (p * d).sum(-1, keepdim=True)
    if dlogsumexp is not None:
        slope = slope + torch.where(empty, 0, dlogsumexp[..., None])
    if dentropy is not None:
        centred = log_p - (p * log_p).sum(-1, keepdim=True)
        slope = slope - torch.where(empty, 0, dentropy[..., None]) * centred
    dshown = torch.where(visible, p * slope, 0)
    dshown = dshown if t is None else dshown / t
    dtemperature = shown.new_zeros(0)
    if needs_temperature and t is not None and temperature is not None:
        of_rows = (-(dshown * shown).sum(-1, keepdim=True) / t).sum_to_size(_padded(t))
        dtemperature = of_rows.reshape(temperature.shape)
    return dshown.to(scores) if needs_scores else scores.new_zeros(0), dtemperature


def attention_entropy(
    dout: Tensor | None,
    dentropy: Tensor | None,
    dlogsumexp: Tensor | None,
    dmax_logits: Tensor | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    out: Tensor,
    statistics: Tensor,
    largest_key: Tensor | None,
    is_causal: bool,
    scale: float | None,
    *rest: Any,
) -> Gradients:
    """The gradients of q, k, v and temperature: the scores', passed on by the two products.

    `rest`: the variants, and which gradients are wanted.
    """
    variants, needs = dict(zip(VARIANTS, rest, strict=False)), rest[len(VARIANTS) :]
    if variants["cu_seqlens_q"] is not None:
        rows = (
            *(dout, dentropy, dlogsumexp, dmax_logits, q, k, v, temperature, out, statistics),
            largest_key,
        )
        return _of_sequences(rows, is_causal, scale, variants, needs)
    needs_q, needs_k, needs_v, needs_temperature, needs_bias, needs_slopes, needs_sinks = needs
    softcap, bias, slopes, sinks = (
        variants[name] for name in ("softcap", "bias", "alibi_slopes", "sinks")
    )
    computed = statistics_dtype(q.dtype)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    heads_per_key_head = q.shape[1] // max(k.shape[1], 1)
    with reference.without_autocast(q.device):
        queries = scale * q.to(computed)
        keys, values = (x.to(computed).repeat_interleave(heads_per_key_head, 1) for x in (k, v))
        products = queries @ keys.mT
        window = variants["window_left"], variants["window_right"]
        visible = _scores.seen_keys(products.shape, q.device, mask, is_causal, window)
        scores = _scores.transformed(products, softcap, bias, slopes)
        if sinks is not None:
            scores, visible = _scores.with_sinks(scores, visible, sinks)
        stays: Tensor | float = 1.0
        if (seeds := variants["dropout_seeds"]) is not None:
            p = variants["dropout_p"]
            stays = _scores.kept_weights(seeds, p, products.shape).to(computed) / (1 - p)
        dp = None
        if dout is not None:
            dp = _padded_keys(dout.to(computed) @ values.mT * stays, scores)
        dscores, dtemperature = temperature_softmax(
            *(dp, dentropy, dlogsumexp, scores, temperature, visible, statistics, False),
            True,
            needs_temperature,
        )
        empty = q.new_zeros(0, dtype=computed)
        if dmax_logits is not None and largest_key is not None:
            more, dt = _of_largest(dmax_logits, largest_key, scores, temperature)
            dscores = dscores + more
            dtemperature = dtemperature + dt if needs_temperature else dtemperature
        dsinks = _summed_to(dscores[..., -1].sum(-1), sinks) if needs_sinks else empty
        dscores = dscores[..., : products.shape[-1]]
        dbias = _summed_to(dscores, bias) if needs_bias else empty
        away = _scores.distances(products.shape, q.device)
        dslopes = _summed_to(-(dscores * away).sum((2, 3)), slopes) if needs_slopes else empty
        if softcap is not None:
            dscores = dscores * (1 - (products / softcap).tanh().square())

        def of_key_heads(x: Tensor, like: Tensor) -> Tensor:
            return x.reshape(*like.shape[:2], heads_per_key_head, *like.shape[2:]).sum(2).to(like)

        dq = (scale * dscores @ keys).to(q) if needs_q else q.new_zeros(0)
        dk = of_key_heads(dscores.mT @ queries, k) if needs_k else q.new_zeros(0)
        dv = torch.zeros_like(v) if needs_v else q.new_zeros(0)
        if needs_v and dout is not None:
            p, _, _ = reference.temperature_softmax(scores, temperature=temperature, mask=visible)
            p = p[..., : products.shape[-1]]
            sees_a_key = p.detach().any(-1, keepdim=True)
            dv = of_key_heads((p * stays).mT @ torch.where(sees_a_key, dout.to(computed), 0), v)
    return dq, dk, dv, dtemperature, dbias, dslopes, dsinks


def _of_sequences(
    rows: tuple[Tensor | None, ...],
    is_causal: bool,
    scale: float | None,
    variants: dict[str, Any],
    needs: tuple[bool, ...],
) -> Gradients:
    """The gradients of packed sequences, each by itself."""
    dout, dentropy, dlogsumexp, dmax_logits, q, k, v, temperature, *results, largest_key = rows
    out, statistics = results
    starts = [variants[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    has_rows = temperature is not None and temperature.dim() > 1
    found = []
    for n, (first, last) in enumerate(itertools.pairwise(starts[0])):
        at, keys = slice(first, last), slice(starts[1][n], starts[1][n + 1])

        def cut(x: Tensor | None, dim: int, part: slice) -> Any:
            return None if x is None else x.narrow(dim, part.start, part.stop - part.start)

        seeds = variants["dropout_seeds"]
        own = variants | {"cu_seqlens_q": None, "cu_seqlens_k": None}
        own |= {"dropout_seeds": None if seeds is None else seeds[n : n + 1]}
        found.append(
            attention_entropy(
                *(cut(x, 2, at) for x in (dout, dentropy, dlogsumexp, dmax_logits)),
                *(cut(x, 2, part) for x, part in ((q, at), (k, keys), (v, keys))),
                cut(temperature, -1, at) if has_rows else temperature,
                None,
                *(cut(out, 2, at), cut(statistics, 3, at), cut(largest_key, 2, at)),
                *(is_causal, scale),
                *own.values(),
                *needs,
            )
        )
    dims = (2, 2, 2, -1 if has_rows else None, None, None, None)
    return tuple(
        parts[0]
        if not parts[0].numel() and not any(p.numel() for p in parts)
        else sum(parts[1:], parts[0])
        if dim is None
        else torch.cat(parts, dim)
        for dim, parts in zip(dims, zip(*found, strict=True), strict=True)
    )


def _of_largest(
    dmax_logits: Tensor, largest_key: Tensor, scores: Tensor, temperature: Tensor | None
) -> Gradients:
    """Gradients of scores and temperature from what comes back to the largest scores."""
    has_key = (largest_key >= 0)[..., None]
    at = torch.arange(scores.shape[-1], device=scores.device) == largest_key[..., None]
    slope = torch.where(at & has_key, dmax_logits[..., None], 0)
    if temperature is None:
        return slope, scores.new_zeros(0)
    t = reference.temperature_of_rows(temperature)
    slope = slope / t
    taken = torch.where(at & has_key, scores, 0)
    of_rows = (-(slope * taken).sum(-1, keepdim=True) / t).sum_to_size(_padded(t))
    return slope, of_rows.reshape(temperature.shape)


def _padded_keys(x: Tensor, scores: Tensor) -> Tensor:
    # A sink has a score, but no value.
    return torch.nn.functional.pad(x, (0, scores.shape[-1] - x.shape[-1]))


def _summed_to(x: Tensor, like: Tensor | None) -> Tensor:
    if like is None:
        return x.new_zeros(0)
    return x.sum_to_size((1,) * (x.dim() - like.dim()) + like.shape).reshape(like.shape)


def entropy_regularization(
    dloss: Tensor,
    entropies: Tensor,
    thresholds: Tensor,
    max_entropy: Tensor,
    row_mask: Tensor | None,
    margin: float,
    query_mean: bool,
) -> Gradients:
    """The gradients of entropies [L, B, H, T] and thresholds [L, H]: `2 deviation` off the band."""
    layers, batch, heads, queries = entropies.shape
    counted = torch.ones((batch, queries), dtype=torch.bool, device=entropies.device)
    counted = counted if row_mask is None else row_mask
    entropies = torch.where(counted[:, None], entropies, 0)
    largest = max_entropy.expand(batch, queries)
    rows = counted.sum(-1).clamp(min=1)
    of_means = counted.any(-1).sum().clamp(min=1) if query_mean else 1
    if query_mean:
        entropies = entropies.sum(-1, keepdim=True) / rows[:, None, None]
        largest = torch.where(counted, largest, 0).sum(-1, keepdim=True) / rows[:, None]
    deviation = entropies - thresholds[:, None, :, None] * largest[:, None]
    outside = deviation.abs() > margin * largest[:, None]
    slope = dloss / max(layers * heads, 1) / of_means * torch.where(outside, 2 * deviation, 0)
    used = counted.any(-1, keepdim=True) if query_mean else counted
    slope = torch.where(used[:, None], slope, 0)
    dthresholds = -(slope * largest[:, None]).sum((1, 3))
    if query_mean:
        slope = torch.where(counted[:, None], slope / rows[:, None, None], 0)
    return slope, dthresholds


def scaled_ffn(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    alpha: Tensor,
    beta: Tensor,
    needs_x: bool,
    needs_parameters: bool,
) -> Gradients:
    """The gradients of x, weight, bias, alpha and beta."""
    computed = statistics_dtype(x.dtype)
    with reference.without_autocast(x.device):
        rows, drows = (y.to(computed).flatten(0, -2) for y in (x[None], dy[None]))
        w, scaled = weight.to(computed), drows / alpha
        dx = (beta * drows + scaled @ w.mT).view_as(x).to(x) if needs_x else x.new_zeros(0)
        if not needs_parameters:
            return dx, *(p.new_zeros(0) for p in (weight, bias, alpha, beta))
        seen = x[None].to(weight.dtype).to(computed).flatten(0, -2)
        linear = seen @ w + bias.to(computed)
        return (
            dx,
            (seen.mT @ scaled).to(weight),
            scaled.sum(0).to(bias),
            (-(scaled * linear).sum() / alpha).view_as(alpha),
            (drows * rows).sum().view_as(beta),
        )


def _padded(x: Tensor) -> tuple[int, ...]:
    # The shape with as many dimensions as [B, H, T, 1].
    return (*(1,) * (4 - x.dim()), *x.shape)
