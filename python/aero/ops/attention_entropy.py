"""Computes attention with a temperature per row, and the entropy of every row, in one pass."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from aero.ops import _gradients, reference
from aero.ops._autograd import folded, native_gradients, register
from aero.ops._boundary import (
    Backend,
    bounds_of,
    call_native,
    cast_for_autocast,
    require_finite,
    require_floats,
    require_numbers,
    require_tensors,
    statistics_dtype,
    use_native,
)
from aero.ops._gradients import LEARNED, VARIANTS
from aero.ops._reference_checks import check_attention


def attention_entropy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    cu_seqlens: Tensor | tuple[Tensor, Tensor] | None = None,
    return_max_logits: bool = False,
    backend: Backend = "native",
) -> tuple[Tensor, ...]:
    """Attention that also returns the entropy of every row, without forming the [T, S] scores.

    `P = softmax(s)` over the visible keys with `s = scale * q k^T / t`, `out = P v`,
    `entropy_i = -sum_j P_ij ln P_ij` (Eq. 10 and 11 of the AERO paper, before the mean over rows
    and without the epsilon in Eq. 10's logarithm: 0 ln 0 is 0 here), `logsumexp_i = ln sum_j
    exp(s_ij)`. Memory grows linearly with T and S. Every result may be used or not. With
    `return_max_logits`, `max_logits_i = max_j s_ij` over the visible keys comes too, after scale
    and temperature, and `largest_key_i`, the first key that has it. So `exp(max_logits -
    logsumexp)` is the largest weight. The gradient of `max_logits` is that of the one score.

    With all variants `s_ij = (cap(scale q_i . k_j) + bias_ij - slope_h |i + S - T - j|) / t_i`
    and `cap(x) = softcap tanh(x / softcap)`: the temperature divides what cap, bias and slopes
    made. A sink is one more key in every row of its head, of score `sinks[h] / t_i` and value 0.
    It is in P, entropy and logsumexp, not in max_logits, so a row that sees no key has out 0,
    entropy 0 and the sink's score for logsumexp. A sink of 0 is the softmax off by one, one of
    -inf none. Dropout sets weights to 0 and divides the others by `1 - dropout_p` in `out` alone:
    all other results are those of the whole row. Its mask follows from one draw of torch's
    generator per batch entry, and from head, query and key: neither threads nor instruction sets
    change it. A window skips keys that no query of a tile sees, so time grows with T times its
    width. `cu_seqlens` cuts B = 1 into sequences, each of which attends to its own keys alone, as
    in a call of its own: causal rule, window, slopes and `largest_key` count within it.
    docs/reference/attention.md lists where each is; on CUDA some are an error yet.

    The memory of `out` is laid out as [B, T, H, D] contiguous, and so are the gradients of q, k and
    v that are not contiguous themselves: models that pass transposed views, and transpose `out`
    back, copy nothing. The gradient of a contiguous tensor is contiguous.

    A row that sees a NaN score is NaN in all results. Products `q k^T` and scores are float32
    (float64 for float64 q) and may reach 5e37 in size (1e307; on CUDA 1e32). A row that sees a
    larger one is NaN, or takes those below for keys that are not seen. A row of those below alone,
    as under a mask of `finfo.min`, takes them for -5.9e37, also in logsumexp, and for what they are
    in the reference. Keys and values that the mask hides must be finite.

    Under autocast q, k and v are cast to its dtype; temperature, entropy and logsumexp stay
    float32. Results are bitwise the same run to run for a fixed number of threads.

    On CUDA q, k and v are float32, bfloat16 or float16, and a temperature of zero makes its rows
    NaN: to raise an error, the host would have to wait for the device. Products of float32 keep 22
    bits of their operands there, or 11 (TF32) if `torch.set_float32_matmul_precision` or
    `torch.backends.cuda.matmul` say so when a direction is called; torch's default is the former.
    The CPU does not look at it.

    Values and gradients are native under every transform of docs/reference/transforms.md. Tangents
    and second derivatives are those of the plain form, which forms the scores.

    Args:
        q: [B, H, T, D] in float32, bfloat16, float16 or float64; D from 1 to 512, on CUDA to 256.
            Without B, [H, T, D], so are k, v and the results; other arguments are as for B = 1.
        k: [B, G, S, D], dtype of q; H must be a multiple of G (grouped heads).
        v: [B, G, S, Dv], dtype of q; Dv as D. On CUDA another width than D is a copy.
        temperature: 0-D, [1], [H], [H, T] or [B, H, T]; any sign, not zero; infinite
            ones make all scores 0. None means 1.
        mask: broadcastable to [B, H, T, S]: boolean, true where the query sees the key, or numbers
            to add to the scores, as `bias` but without a gradient.
        is_causal: query i sees keys j <= i + S - T (the newest query sees all); combined with
            `mask` by and.
        scale: multiplies the scores, a finite number; default 1 / sqrt(D).
        window: (left, right), each None for no bound: query i sees keys from i + S - T - left to
            i + S - T + right; combined with `mask` and `is_causal` by and.
        softcap: positive; None means no cap.
        bias: broadcastable to [B, H, T, S], dtype of q or of entropy; -inf hides the key. Its
            gradient takes memory of [B, H, T, S], or less where the bias has no batch: of
            [H, T, S] if the threads divide the key heads evenly.
        alibi_slopes: [H] or [B, H].
        sinks: [H] or [B, H].
        dropout_p: at least 0 and below 1.
        cu_seqlens: [N + 1] int32 on the CPU, where each of N packed sequences begins, and the last
            ends; or two of them, of queries and keys. Without `mask` and `bias`. On CUDA each
            sequence is a launch of its own.
        return_max_logits: also returns max_logits and largest_key.
        backend: "native", or "reference" for plain PyTorch, which takes any device and forms the
            scores.

    Returns:
        out: [B, H, T, Dv], dtype of q.
        entropy: [B, H, T] in nats, from 0 to ln(visible keys); float32 (float64 for float64 q).
        logsumexp: [B, H, T], dtype of entropy.
        max_logits: [B, H, T], dtype of entropy, where asked for.
        largest_key: [B, H, T], int64, where asked for; -1 in a row of NaN.
        A row that sees neither key nor sink has out 0, entropy 0, logsumexp and max_logits -inf,
        largest_key -1 and zero gradients, and adds nothing to others, also where inf or NaN comes
        back to it. Where NaN comes back to one that sees any, the gradients of keys that it does
        not see may be NaN too.

    Raises:
        ValueError: an argument does not fit, or a temperature on the CPU has no finite inverse, as
            0 and NaN have none (names head and position).

    Example:
        >>> from aero.ops import attention_entropy
        >>> import torch
        >>> q, k, v = torch.zeros(3, 1, 2, 5, 8)
        >>> out, entropy, logsumexp = attention_entropy(q, k, v)
        >>> torch.allclose(entropy, torch.tensor(5.0).log())
        True
        >>> _, entropy, _ = attention_entropy(q, k, v, is_causal=True, window=(1, 0))
        >>> torch.allclose(entropy[0, 0, 1:], torch.tensor(2.0).log())  # two keys each
        True
    """
    require_tensors(
        _NAME, q=q, k=k, v=v, temperature=temperature, mask=mask, bias=bias,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    if q.dim() == k.dim() == v.dim() == 3:
        results = attention_entropy(
            q[None], k[None], v[None], temperature=temperature, mask=mask, is_causal=is_causal,
            scale=scale, window=window, softcap=softcap, bias=bias, alibi_slopes=alibi_slopes,
            sinks=sinks, dropout_p=dropout_p, cu_seqlens=cu_seqlens,
            return_max_logits=return_max_logits, backend=backend,
        )  # fmt: skip
        return tuple(x[0] for x in results)
    require_floats(
        _NAME, bias=bias, temperature=temperature, alibi_slopes=alibi_slopes, sinks=sinks
    )
    q, k, v = cast_for_autocast(q, k, v)
    rows = statistics_dtype(q.dtype)
    if mask is not None and mask.is_floating_point():
        bias = _with_mask(bias, mask, rows)
        mask = None
    temperature, alibi_slopes, sinks = (
        x if x is None or x.dtype == rows else x.to(rows)
        for x in (temperature, alibi_slopes, sinks)
    )
    if bias is not None and bias.dtype not in (q.dtype, rows):
        bias = bias.to(rows)
    native = use_native(
        _NAME, backend, q=q, k=k, v=v, temperature=temperature, mask=mask, bias=bias,
        alibi_slopes=alibi_slopes, sinks=sinks,
    )  # fmt: skip
    left, right = (None, None) if window is None else bounds_of(_NAME, window)
    require_numbers(_NAME, scale, softcap, dropout_p)
    starts = tuple(cu_seqlens) if isinstance(cu_seqlens, (tuple, list)) else (cu_seqlens,) * 2
    if len(starts) != 2:
        raise ValueError(f"{_NAME}: cu_seqlens must be one tensor or two, got {len(starts)}")
    require_tensors(_NAME, cu_seqlens_q=starts[0], cu_seqlens_k=starts[1])
    seeds = _drawn_seeds(q, starts[0]) if dropout_p > 0 else None
    width = v.shape[-1]
    if native and q.is_cuda and q.dim() == v.dim() == 4 and width != q.shape[-1]:
        q, k, v, scale = _of_one_width(q, k, v, scale)
    arguments: tuple[Any, ...] = (
        q, k, v, temperature, mask, is_causal, scale, left, right, softcap, bias, alibi_slopes,
        sinks, seeds, dropout_p, *starts, return_max_logits,
    )  # fmt: skip
    if native:
        out, entropy, logsumexp, _, *largest = call_native(_NAME, *arguments)
        out = out if out.shape[-1] == width else out[..., :width]
        return out, entropy, logsumexp, *(largest if return_max_logits else ())
    require_finite(_NAME, "scale", scale)
    of_heads = {"alibi_slopes": alibi_slopes, "sinks": sinks}
    check_attention(q, k, v, temperature, mask, bias, of_heads, starts)
    return reference.attention_entropy(**dict(zip(_ARGUMENTS, arguments, strict=True)))


_NAME = "attention_entropy"


def _of_one_width(
    q: Tensor, k: Tensor, v: Tensor, scale: float | None
) -> tuple[Tensor, Tensor, Tensor, float]:
    """Operands with zeros added, which change no score, for kernels that take one width."""
    common = max(q.shape[-1], v.shape[-1])
    wide = (torch.nn.functional.pad(x, (0, common - x.shape[-1])) for x in (q, k, v))
    return *wide, 1 / math.sqrt(q.shape[-1]) if scale is None else scale  # type: ignore[return-value]


def _with_mask(bias: Tensor | None, mask: Tensor, rows: torch.dtype) -> Tensor:
    """A mask of numbers as a bias; the sum is of `rows`, for halves would round it."""
    if mask.requires_grad:
        raise ValueError(
            f"{_NAME}: mask must have no gradient, got one that requires it; pass it as bias"
        )
    return mask if bias is None else bias.to(rows) + mask.to(rows)


def _drawn_seeds(q: Tensor, starts: Tensor | None) -> Tensor:
    """One number of 63 bits per batch entry or packed sequence, from torch's generator."""
    count = q.shape[0] if starts is None else max(starts.numel() - 1, 0)
    return torch.randint(2**63 - 1, (count,), device=q.device)


#: Arguments of the operator, and which of them have gradients.
_ARGUMENTS = (
    "q", "k", "v", "temperature", "mask", "is_causal", "scale", *VARIANTS, "return_max_logits",
)  # fmt: skip
_DIFFERENTIABLE = [name in ("q", "k", "v", "temperature", *LEARNED) for name in _ARGUMENTS]
_SAVED = (*LEARNED, "dropout_seeds", "cu_seqlens_q", "cu_seqlens_k")


def _empty_heads(like: Tensor, width: int) -> Tensor:
    batch, heads, rows, _ = like.shape
    return like.new_empty(batch, rows, heads, width).transpose(1, 2)


def _empty_gradient(tensor: Tensor) -> Tensor:
    return (
        tensor.new_empty(tensor.shape)
        if tensor.is_contiguous()
        else _empty_heads(tensor, tensor.shape[-1])
    )


def _fake(q: Tensor, k: Tensor, v: Tensor, *others: Any) -> tuple[Tensor, ...]:
    batch, heads, queries = q.shape[:3]
    dtype = statistics_dtype(q.dtype)
    entropy, logsumexp = (q.new_empty(batch, heads, queries, dtype=dtype) for _ in range(2))
    shape = (batch, heads, queries) if others[-1] else (0,)
    # Three values per row for the backward pass: with logsumexp alone the gradients lose digits.
    statistics = q.new_empty(batch, heads, 3, queries, dtype=dtype)
    largest = q.new_empty(shape, dtype=dtype), q.new_empty(shape, dtype=torch.int64)
    return _empty_heads(q, v.shape[-1]), entropy, logsumexp, statistics, *largest


def _fake_backward(
    dout: Any,
    dentropy: Any,
    dlogsumexp: Any,
    dmax_logits: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    mask: Any,
    out: Tensor,
    statistics: Tensor,
    largest_key: Any,
    is_causal: bool,
    scale: Any,
    *rest: Any,
) -> tuple[Tensor, ...]:
    variants = dict(zip(VARIANTS, rest, strict=False))
    of_rows = (temperature, *(variants[name] for name in LEARNED))
    needs, row_needs = rest[len(VARIANTS) :][:3], rest[len(VARIANTS) :][3:]
    return (
        *(
            _empty_gradient(x) if n else q.new_empty(0)
            for x, n in zip((q, k, v), needs, strict=True)
        ),
        *(
            statistics.new_empty(x.shape if n and x is not None else 0)
            for x, n in zip(of_rows, row_needs, strict=True)
        ),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, temperature, mask, *ctx.numbers = inputs
    out, _, _, statistics, max_logits, largest_key = output
    has_largest = ctx.numbers.pop()
    variants = dict(zip(VARIANTS, ctx.numbers[2:], strict=True))
    ctx.bias_dtype = None if variants["bias"] is None else variants["bias"].dtype
    tensors = [variants[name] for name in _SAVED]
    largest = largest_key if has_largest else None
    ctx.save_for_backward(q, k, v, temperature, mask, out, statistics, largest, *tensors)
    ctx.numbers = [None if isinstance(x, Tensor) else x for x in ctx.numbers]
    ctx.mark_non_differentiable(statistics, largest_key, *(() if has_largest else (max_logits,)))
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,
    dout: Tensor | None,
    dentropy: Tensor | None,
    dlogsumexp: Tensor | None,
    _statistics: None,
    dmax_logits: Tensor | None,
    _largest_key: None,
) -> tuple[Tensor | None, ...]:
    # Behind the arguments is the set of keys of the dispatcher.
    wanted = [need for need, has in zip(ctx.needs_input_grad, _DIFFERENTIABLE, strict=False) if has]
    *saved, bias, alibi_slopes, sinks, seeds, queries, keys = ctx.saved_tensors
    is_causal, scale, left, right, softcap, *_, dropout_p, _, _ = ctx.numbers
    found = iter(native_gradients(
        _NAME, dout, dentropy, dlogsumexp, dmax_logits, *saved, is_causal, scale, left, right,
        softcap, bias, alibi_slopes, sinks, seeds, dropout_p, queries, keys, *wanted,
    ))  # fmt: skip
    gradients = [next(found) if has else None for has in _DIFFERENTIABLE]
    given = [g if need else None for g, need in zip(gradients, ctx.needs_input_grad, strict=False)]
    at = _ARGUMENTS.index("bias")
    if (dbias := given[at]) is not None:
        given[at] = dbias.to(ctx.bias_dtype)
    return tuple(given)


def _plain(*arguments: Any) -> tuple[Tensor | None, ...]:
    results = reference.attention_entropy(**dict(zip(_ARGUMENTS, arguments, strict=True)))
    return (*results[:3], None, results[3] if arguments[-1] else None, None)


register(
    "attention_entropy",
    fake=_fake,
    fake_backward=_fake_backward,
    setup_context=_setup_context,
    backward=_backward,
    plain=_plain,
    plain_backward=_gradients.attention_entropy,
    batching=folded,
)
