"""The meaning of the four operators, in plain float64 PyTorch that imports nothing from `aero`.

The formulas of the docstrings, written densely and without a thought for speed; autograd gives the
gradients. The contract on odd rows holds here too: keys hidden by `mask`, by the causal
rule or by a score of -inf have no weight; a row that sees no key has results 0 (logsumexp -inf)
and passes no gradient; a row that sees a score of NaN or +inf, or whose temperature is NaN or 0,
is NaN.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width, L layers, C model width.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


def temperature_softmax(
    scores: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """scores [B, H, T, S] -> probabilities [B, H, T, S], entropy and logsumexp [B, H, T]."""
    visible = visible_keys(scores.shape, mask, is_causal) & (scores != -math.inf)
    t = of_rows(temperature, scores)
    senseless = (visible & ~(scores < math.inf)).any(-1, keepdim=True) | t.isnan() | (t == 0)
    empty = ~visible.any(-1, keepdim=True)
    scaled = torch.where(visible, scores, 0) / torch.where(empty, 1, t)
    scaled = scaled + torch.where(senseless & ~empty, math.nan, 0)
    shown = torch.where(visible, scaled, torch.where(empty, 0, -math.inf))
    if not shown.numel():  # torch's own functions refuse rows of no keys
        nothing = scores.sum(-1)
        return scores * 1, nothing, nothing.detach().masked_fill(empty[..., 0], -math.inf)
    # Relative to the largest, whose size would cost the sum its digits.
    shown, largest = shown - shown.detach().amax(-1, True), shown.detach().amax(-1)
    logs = torch.where(visible, torch.log_softmax(shown, -1), 0)
    probabilities = torch.where(visible, logs.exp(), 0)
    entropy = -(probabilities * logs).sum(-1)
    logsumexp = torch.where(empty[..., 0], -math.inf, largest + torch.logsumexp(shown, -1))
    return probabilities, entropy, logsumexp


def attention_entropy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] = (None, None),
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    factor: Tensor | None = None,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None = None,
    return_max_logits: bool = False,
) -> tuple[Tensor, ...]:
    """q [B, H, T, D], k [B, G, S, D], v [B, G, S, Dv] -> out [B, H, T, Dv], entropy and logsumexp.

    With `return_max_logits` max_logits too; `scaled_scores` judges which key has it.
    `factor` [B, H, T, S] is what dropout multiplies weights by.
    """
    options = {"scale": scale, "window": window, "softcap": softcap, "sinks": sinks}
    options |= {"is_causal": is_causal, "alibi_slopes": alibi_slopes}
    options |= {"return_max_logits": return_max_logits}
    if q.dim() == 3:
        options |= {"temperature": temperature, "mask": mask, "bias": bias, "factor": factor}
        whole = attention_entropy(q[None], k[None], v[None], cu_seqlens=cu_seqlens, **options)
        return tuple(x[0] for x in whole)
    if cu_seqlens is not None:
        return _packed(q, k, v, temperature, factor, cu_seqlens, options)
    if mask is not None and mask.is_floating_point():
        bias, mask = mask.double() + (0 if bias is None else bias), None
    (_, heads, _, head_dim), groups = q.shape, k.shape[1]
    if heads == 0:
        return q.sum(-1, True) * v.new_ones(v.shape[-1]), q.sum(-1), q.sum(-1)
    of_head = torch.arange(heads) // (heads // groups)  # head h reads key head h // (H / G)
    scores = torch.einsum("bhtd,bhsd->bhts", q, k[:, of_head])
    scores = scores * (head_dim**-0.5 if scale is None else scale)
    if softcap is not None:
        scores = softcap * (2 * torch.sigmoid(2 * scores / softcap) - 1)
    if bias is not None:
        scores = scores + bias
    positions = [
        [j - i - scores.shape[3] + scores.shape[2] for j in range(scores.shape[3])]
        for i in range(scores.shape[2])
    ]
    ahead = torch.tensor(positions, dtype=torch.float64).view(scores.shape[2:])
    if alibi_slopes is not None:
        scores = torch.stack(
            [
                torch.stack([s - m * ahead.abs() for s, m in zip(heads, slopes, strict=True)])
                for heads, slopes in zip(
                    scores, alibi_slopes.expand(len(scores), heads), strict=True
                )
            ]
        )
    left, right = (math.inf if n is None else n for n in window)
    inside = (ahead >= -left) & (ahead <= right)
    inside = inside if mask is None else mask & inside
    probabilities, entropy, logsumexp = temperature_softmax(
        scores, temperature=temperature, mask=inside, is_causal=is_causal
    )
    visible = visible_keys(scores.shape, inside, is_causal)
    largest = (_largest(scores, temperature, visible),) if return_max_logits else ()
    weights = probabilities if factor is None else probabilities * factor
    out = torch.einsum("bhts,bhsd->bhtd", weights, v[:, of_head])
    if sinks is not None:
        logit = sinks.expand(len(q), heads)[..., None] / of_rows(temperature, scores)[..., 0]
        out, entropy, logsumexp = _with_sink(out, entropy, logsumexp, logit)
    return out, entropy, logsumexp, *largest


def _largest(scores: Tensor, temperature: Tensor | None, visible: Tensor) -> Tensor:
    """[B, H, T], -inf where nothing is seen; its gradient is that of the first key that has it."""
    visible = visible & (scores != -math.inf)
    scaled = torch.where(visible, scores, 0) / of_rows(temperature, scores)
    # A last key that nobody sees, so that each row has one.
    shown = torch.nn.functional.pad(
        torch.where(visible, scaled, -math.inf), (0, 1), value=-math.inf
    )
    top = shown.detach().amax(-1, keepdim=True)
    places = torch.arange(shown.shape[-1])
    first = torch.where(shown.detach() == top, places, len(places) - 1).amin(-1, keepdim=True)
    return torch.where(top.isnan(), math.nan, shown.gather(-1, first)).squeeze(-1)


def _packed(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    factor: Tensor | None,
    cu_seqlens: Tensor | tuple[Tensor, Tensor],
    options: dict[str, Any],
) -> tuple[Tensor, ...]:
    """One call for each sequence."""
    both = cu_seqlens if isinstance(cu_seqlens, tuple) else (cu_seqlens, cu_seqlens)
    starts, found = [x.tolist() for x in both], []
    for first, last, begin, end in zip(starts[0], starts[0][1:], starts[1], starts[1][1:]):  # noqa: B905
        rows, keys = slice(first, last), slice(begin, end)
        t = temperature
        if t is not None and t.dim() > 1:
            t = t[..., rows]
        own = None if factor is None else factor[:, :, rows, keys]
        one = q[:, :, rows], k[:, :, keys], v[:, :, keys]
        found.append(attention_entropy(*one, temperature=t, factor=own, **options))
    return tuple(torch.cat(each, 2) for each in zip(*found, strict=True))


def scaled_scores(
    tensors: Mapping[str, Tensor], options: Mapping[str, Any]
) -> tuple[Tensor, Tensor, Tensor]:
    """Plain scores over temperatures [B, H, T, S], -inf where hidden; the size of their
    terms, and of those of the products alone."""
    q, k = tensors["q"].double(), tensors["k"].double()
    of_head = torch.arange(q.shape[1]) // max(q.shape[1] // max(k.shape[1], 1), 1)
    scale = options.get("scale")
    factor = q.shape[3] ** -0.5 if scale is None else scale
    keys = k[:, of_head] if q.shape[1] else k.new_zeros(*q.shape[:2], *k.shape[2:])
    scores = torch.einsum("bhtd,bhsd->bhts", q, keys) * factor
    products = torch.einsum("bhtd,bhsd->bhts", q.abs(), keys.abs())
    visible = visible_keys(scores.shape, options["mask"], options["is_causal"])
    t = tensors.get("temperature")
    rows = of_rows(None if t is None else t.detach().double(), scores)
    hidden = ~visible.expand(scores.shape)
    size = (products * abs(factor) / rows.abs()).masked_fill(hidden, 0)
    size = size + torch.finfo(torch.float32).tiny
    return (scores / rows).masked_fill(hidden, -math.inf), size, products


def _with_sink(
    out: Tensor, entropy: Tensor, logsumexp: Tensor, logit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The three with one more key of value 0, by the chain rule of entropy over two groups."""
    empty = logsumexp == -math.inf
    gap = torch.where(empty, 0, logsumexp) - logit
    # Of logarithms, as the sigmoid's own derivative loses the digits of a small rest.
    log_share = torch.nn.functional.logsigmoid(gap)
    log_rest = torch.nn.functional.logsigmoid(-gap)
    share = torch.where(empty, 0, log_share.exp())  # of the keys
    rest = torch.where(empty, 1, log_rest.exp())
    between = -(share * log_share + rest * torch.where(empty, 0, log_rest))
    return (
        share[..., None] * out,
        share * entropy + between,
        torch.where(
            (gap > 0) & ~empty, logsumexp - log_share, logit - torch.where(empty, 0, log_rest)
        ),
    )


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
    """entropies [L, B, H, T], thresholds [L, H] -> the loss, 0-D."""
    if not isinstance(entropies, Tensor):
        entropies = torch.stack(list(entropies))
    layers, batch, heads, queries = entropies.shape
    if max_entropy == "log_context":
        context = queries if context_length is None else context_length
        largest = [[math.log(max(context, 1))] * queries for _ in range(batch)]
    elif visible_keys is None:
        largest = [[math.log(i + 1) for i in range(queries)] for _ in range(batch)]
    else:
        largest = [[math.log(max(n, 1)) for n in row] for row in visible_keys.tolist()]
    counted = [
        [i for i in range(queries) if row_mask is None or row_mask[b, i]] for b in range(batch)
    ]
    rule = torch.tensor(largest, dtype=torch.float64).view(batch, queries)
    total, terms = (entropies.sum() + thresholds.sum()) * 0, 0
    for b, rows in enumerate(counted):
        if not rows:
            continue
        # [L, H, rows] or, averaged first, [L, H, 1]
        entropy, possible = entropies[:, b][:, :, rows], rule[b, rows]
        if reduction == "query_mean":
            entropy, possible = entropy.mean(-1, keepdim=True), possible.mean()
        deviation = entropy - thresholds[..., None] * possible
        free = deviation.abs() <= margin * possible
        total = total + torch.where(free, 0, deviation**2).sum()
        terms += 1
    divisor = layers * heads * (terms if reduction == "query_mean" else 1)
    return total / max(divisor, 1)


def scaled_ffn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    alpha: Tensor,
    beta: Tensor,
    product_dtype: torch.dtype = torch.float64,
) -> Tensor:
    """x [..., C] -> y [..., C]; the product sees x as numbers of `product_dtype`."""
    seen = x + (x.detach().to(product_dtype).to(x.dtype) - x.detach())
    return beta * x + (torch.einsum("...i,io->...o", seen, weight) + bias) / alpha


OPERATORS = {
    function.__name__: function
    for function in (temperature_softmax, attention_entropy, entropy_regularization, scaled_ffn)
}


def run(
    operator: str,
    tensors: Mapping[str, Tensor],
    options: Mapping[str, Any],
    cotangents: Sequence[Tensor | None] | None = None,
) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Results and gradients, all float64.

    Args:
        operator: its name.
        tensors: the arguments that have gradients, by name, of any dtype.
        options: all other arguments.
        cotangents: gradients of the results, None for one that is not used; without them the
            gradients are an empty dictionary.
    """
    leaves = {n: x.detach().double().requires_grad_() for n, x in tensors.items()}
    options = dict(options)
    if operator == "scaled_ffn":
        options["product_dtype"] = tensors["weight"].dtype
    results = OPERATORS[operator](**leaves, **options)
    results = results if isinstance(results, tuple) else (results,)
    if cotangents is None:
        return results, {}
    used = [
        (r, c.double())
        for r, c in zip(results, cotangents, strict=True)
        if c is not None and r.requires_grad
    ]
    gradients = torch.autograd.grad(
        [r for r, _ in used],
        list(leaves.values()),
        [c for _, c in used],
        allow_unused=True,
        materialize_grads=True,
    )
    return results, dict(zip(leaves, gradients, strict=True))


def visible_keys(shape: Sequence[int], mask: Tensor | None, is_causal: bool) -> Tensor:
    """[B, H, T, S], true where the query sees the key: query i the keys j <= i + S - T."""
    visible = torch.ones(tuple(shape), dtype=torch.bool)
    if is_causal:
        visible = visible.tril(shape[3] - shape[2])
    return visible if mask is None else visible & mask


def of_rows(temperature: Tensor | None, scores: Tensor) -> Tensor:
    """A temperature of any legal shape as [B, H, T, 1]."""
    batch, heads, queries, _ = scores.shape
    if temperature is None:
        return scores.new_ones(batch, heads, queries, 1)
    shape = {1: (1, -1, 1, 1), 2: (1, heads, queries, 1), 3: (batch, heads, queries, 1)}
    t = temperature.reshape(shape.get(temperature.dim(), (1, 1, 1, 1)))
    return t.expand(batch, heads, queries, 1)


def relative_error(got: Tensor, expected: Tensor) -> float:
    """||got - expected|| / ||expected|| over finite values; infinities must agree exactly.

    Where everything cancels (the gradient of k with a single key is zero) the terms that do, which
    are of size one in these tests, take the place of the result.
    """
    got, expected = got.detach().double(), expected.detach().double()
    norm = expected.norm().item()
    if not math.isfinite(norm):  # to select takes most of the time of many tests
        finite = expected.isfinite()
        assert torch.equal(got[~finite], expected[~finite])
        got, expected = got[finite], expected[finite]
        norm = expected.norm().item()
    ones_norm = max(expected.numel(), 1) ** 0.5
    return (got - expected).norm().item() / (norm if norm > 1e-6 * ones_norm else ones_norm)
