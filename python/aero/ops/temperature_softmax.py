"""Computes the softmax of given scores with a temperature per row, and every row's entropy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from aero.ops import _gradients, reference
from aero.ops._autograd import folded, native_gradients, register
from aero.ops._boundary import Backend, call_native, require_tensors, statistics_dtype, use_native
from aero.ops._reference_checks import check_softmax


def temperature_softmax(
    scores: Tensor,
    *,
    temperature: Tensor | None = None,
    mask: Tensor | None = None,
    is_causal: bool = False,
    backend: Backend = "native",
) -> tuple[Tensor, Tensor, Tensor]:
    """Softmax over the last dimension that also returns the entropy of every row.

    `P = softmax(s)` over the visible keys with `s = scores / t`, `entropy_i = -sum_j P_ij ln P_ij`
    (Eq. 10 and 11 of the AERO paper, before the mean over rows and without the epsilon in Eq. 10's
    logarithm: 0 ln 0 is 0 here) and `logsumexp_i = ln sum_j exp(s_ij)`. Every result may be used or
    not.

    Reads every visible score once and writes every probability once; the backward pass reads scores
    and gradients once and writes gradients once.

    A score of -inf is a key that is not seen, whatever the sign of the temperature; every finite
    score counts, the lowest of its dtype too. A row that sees a score of NaN or +inf is NaN:
    entropy, logsumexp, probabilities and gradients of the keys it sees.

    Autocast leaves the scores' dtype alone; arithmetic and statistics are float32 in any case.
    Results are bitwise the same run to run.

    On CUDA scores are float32, bfloat16 or float16, and a temperature of zero makes its rows NaN:
    to raise an error, the host would have to wait for the device.

    Values and gradients are native under every transform of docs/reference/transforms.md. Tangents
    and second derivatives are those of the plain form.

    Args:
        scores: [B, H, T, S] in float32, bfloat16, float16 or float64.
        temperature: 0-D, [1], [H], [H, T] or [B, H, T]; any sign, not zero; infinite
            ones make all scores 0. None means 1.
        mask: boolean, broadcastable to [B, H, T, S], true where the query sees the key.
        is_causal: query i sees keys j <= i + S - T; combined with `mask` by and.
        backend: "native", or "reference" for plain PyTorch, which takes any device.

    Returns:
        probabilities: [B, H, T, S], dtype of scores.
        entropy: [B, H, T] in nats, float32 (float64 for float64 scores).
        logsumexp: [B, H, T], dtype of entropy.
        A row that sees no key has probabilities 0, entropy 0, logsumexp -inf and zero gradients,
        also where inf or NaN comes back to it; so has a key that is not seen.

    Raises:
        ValueError: an argument does not fit, or a temperature on the CPU has no finite inverse, as
            0 and NaN have none (names head and position).

    Example:
        >>> from aero.ops import temperature_softmax
        >>> import torch
        >>> probabilities, entropy, logsumexp = temperature_softmax(torch.zeros(1, 1, 1, 4))
        >>> probabilities[0, 0, 0].tolist()
        [0.25, 0.25, 0.25, 0.25]
    """
    require_tensors("temperature_softmax", scores=scores, temperature=temperature, mask=mask)
    if temperature is not None:
        temperature = temperature.to(statistics_dtype(scores.dtype))
    if not use_native(
        "temperature_softmax", backend, scores=scores, temperature=temperature, mask=mask
    ):
        check_softmax(scores, temperature, mask)
        return reference.temperature_softmax(
            scores, temperature=temperature, mask=mask, is_causal=is_causal
        )
    probabilities, entropy, logsumexp, _ = call_native(
        "temperature_softmax", scores, temperature, mask, is_causal
    )
    return probabilities, entropy, logsumexp


def _fake(
    scores: Tensor, temperature: Any, mask: Any, is_causal: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = scores.shape
    dtype = statistics_dtype(scores.dtype)
    entropy, logsumexp = (scores.new_empty(batch, heads, queries, dtype=dtype) for _ in range(2))
    # Three values per row for the backward pass: rounded probabilities would cost the entropy's
    # gradient its digits.
    statistics = scores.new_empty(batch, heads, 3, queries, dtype=dtype)
    return scores.new_empty(scores.shape), entropy, logsumexp, statistics


def _fake_backward(
    dprobabilities: Any,
    dentropy: Any,
    dlogsumexp: Any,
    scores: Tensor,
    temperature: Tensor | None,
    mask: Any,
    statistics: Tensor,
    is_causal: bool,
    needs_scores: bool,
    needs_temperature: bool,
) -> tuple[Tensor, Tensor]:
    return (
        scores.new_empty(scores.shape if needs_scores else 0),
        statistics.new_empty(
            temperature.shape if needs_temperature and temperature is not None else 0
        ),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    scores, temperature, mask, ctx.is_causal = inputs
    statistics = output[3]
    ctx.save_for_backward(scores, temperature, mask, statistics)
    ctx.mark_non_differentiable(statistics)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any,
    dprobabilities: Tensor | None,
    dentropy: Tensor | None,
    dlogsumexp: Tensor | None,
    _: None,
) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[:2]
    gradients = native_gradients(
        "temperature_softmax",
        dprobabilities,
        dentropy,
        dlogsumexp,
        *ctx.saved_tensors,
        ctx.is_causal,
        *needs,
    )
    return *(g if need else None for g, need in zip(gradients, needs, strict=True)), None, None


def _plain(
    scores: Tensor, temperature: Tensor | None, mask: Tensor | None, is_causal: bool
) -> tuple[Tensor | None, ...]:
    return *reference.temperature_softmax(
        scores, temperature=temperature, mask=mask, is_causal=is_causal
    ), None


register(
    "temperature_softmax",
    fake=_fake,
    fake_backward=_fake_backward,
    setup_context=_setup_context,
    backward=_backward,
    plain=_plain,
    plain_backward=_gradients.temperature_softmax,
    batching=folded,
)
