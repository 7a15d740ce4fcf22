"""Computes attention with a temperature per row, and the entropy of every row, in one pass."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from aero.ops import _gradients, reference
from aero.ops._autograd import folded, native_gradients, register
from aero.ops._boundary import (
    Backend,
    call_native,
    cast_for_autocast,
    require_finite,
    require_tensors,
    statistics_dtype,
    use_native,
)


def attention_entropy(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    backend: Backend = "native",
) -> tuple[Tensor, Tensor, Tensor]:
    """Attention that also returns the entropy of every row, without forming the [T, S] scores.

    `P = softmax(s)` over the visible keys with `s = scale * q k^T / t`, `out = P v`,
    `entropy_i = -sum_j P_ij ln P_ij` (Eq. 10 and 11 of the AERO paper, before the mean over rows
    and without the epsilon in Eq. 10's logarithm: 0 ln 0 is 0 here), `logsumexp_i = ln sum_j
    exp(s_ij)`. Memory grows linearly with T and S. Every result may be used or not.

    The memory of `out` is laid out as [B, T, H, D] contiguous, and so are the gradients of q, k and
    v that are not contiguous themselves: models that pass transposed views, and transpose `out`
    back, copy nothing. The gradient of a contiguous tensor is contiguous.

    A row that sees a NaN score is NaN in all results. Products `q k^T` and scores are float32
    (float64 for float64 q) and may reach 5e37 in size (1e307; on CUDA 1e32). A row that sees a
    larger one is NaN, or takes those below for keys that are not seen. Keys and values that the
    mask hides must be finite.

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
        q: [B, H, T, D] in float32, bfloat16, float16 or float64; D from 1 to 256.
        k: [B, G, S, D], dtype of q; H must be a multiple of G (grouped heads).
        v: [B, G, S, D], dtype of q.
        temperature: 0-D, [1], [H], [H, T] or [B, H, T]; any sign, not zero; infinite
            ones make all scores 0. None means 1.
        mask: boolean, broadcastable to [B, H, T, S], true where the query sees the key.
        is_causal: query i sees keys j <= i + S - T (the newest query sees all); combined with
            `mask` by and.
        scale: multiplies the scores, a finite number; default 1 / sqrt(D).
        backend: "native", or "reference" for plain PyTorch, which takes any device and forms the
            scores.

    Returns:
        out: [B, H, T, D], dtype of q.
        entropy: [B, H, T] in nats, from 0 to ln(visible keys); float32 (float64 for float64 q).
        logsumexp: [B, H, T], dtype of entropy.
        A row that sees no key has out 0, entropy 0, logsumexp -inf and zero gradients, and adds
        nothing to others, also where inf or NaN comes back to it. Where NaN comes back to a row
        that sees keys, the gradients of keys that it does not see may be NaN too.

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
    """
    require_tensors("attention_entropy", q=q, k=k, v=v, temperature=temperature, mask=mask)
    q, k, v = cast_for_autocast(q, k, v)
    if temperature is not None and temperature.dtype != (dtype := statistics_dtype(q.dtype)):
        temperature = temperature.to(dtype)
    if not use_native(
        "attention_entropy", backend, q=q, k=k, v=v, temperature=temperature, mask=mask
    ):
        require_finite("attention_entropy", "scale", scale)
        return reference.attention_entropy(
            q, k, v, temperature=temperature, mask=mask, is_causal=is_causal, scale=scale
        )
    out, entropy, logsumexp, _ = call_native(
        "attention_entropy", q, k, v, temperature, mask, is_causal, scale
    )
    return out, entropy, logsumexp


def _empty_heads(like: Tensor) -> Tensor:
    batch, heads, rows, head_dim = like.shape
    return like.new_empty(batch, rows, heads, head_dim).transpose(1, 2)


def _empty_gradient(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape) if tensor.is_contiguous() else _empty_heads(tensor)


def _fake(
    q: Tensor, k: Tensor, v: Tensor, temperature: Any, mask: Any, is_causal: bool, scale: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = q.shape
    dtype = statistics_dtype(q.dtype)
    entropy, logsumexp = (q.new_empty(batch, heads, queries, dtype=dtype) for _ in range(2))
    # Three values per row for the backward pass: with logsumexp alone the gradients lose digits.
    statistics = q.new_empty(batch, heads, 3, queries, dtype=dtype)
    return _empty_heads(q), entropy, logsumexp, statistics


def _fake_backward(
    dout: Any,
    dentropy: Any,
    dlogsumexp: Any,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    mask: Any,
    out: Tensor,
    statistics: Tensor,
    is_causal: bool,
    scale: Any,
    needs_q: bool,
    needs_k: bool,
    needs_v: bool,
    needs_temperature: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        _empty_gradient(q) if needs_q else q.new_empty(0),
        _empty_gradient(k) if needs_k else q.new_empty(0),
        _empty_gradient(v) if needs_v else q.new_empty(0),
        statistics.new_empty(
            temperature.shape if needs_temperature and temperature is not None else 0
        ),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, temperature, mask, ctx.is_causal, ctx.scale = inputs
    out, _, _, statistics = output
    ctx.save_for_backward(q, k, v, temperature, mask, out, statistics)
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, dout: Tensor | None, dentropy: Tensor | None, dlogsumexp: Tensor | None, _: None
) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[:4]
    gradients = native_gradients(
        "attention_entropy",
        dout,
        dentropy,
        dlogsumexp,
        *ctx.saved_tensors,
        ctx.is_causal,
        ctx.scale,
        *needs,
    )
    return (
        *(g if need else None for g, need in zip(gradients, needs, strict=True)),
        None,
        None,
        None,
    )


def _plain(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor | None, ...]:
    return *reference.attention_entropy(
        q, k, v, temperature=temperature, mask=mask, is_causal=is_causal, scale=scale
    ), None


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
