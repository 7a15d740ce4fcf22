"""Computes the linear feed-forward layer with learnable scales and its residual."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aero.ops import _gradients, reference
from aero.ops._autograd import Function, looped, native_gradients, register
from aero.ops._boundary import (
    Backend,
    call_native,
    cast_for_autocast,
    require_tensors,
    statistics_dtype,
    use_native,
)
from aero.ops._reference_checks import check_ffn


def scaled_ffn(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    *,
    alpha: Tensor,
    beta: Tensor,
    backend: Backend = "native",
) -> Tensor:
    """The scaled fused feed-forward layer with its residual: `beta * x + (x W + b) / alpha`.

    Eq. 6 of the AERO paper with the two linear layers fused into one. The gradients of alpha and
    beta come from the gradient of W, without another pass over the activations: with `G = x^T dy`
    `dbeta = trace(G)` and `dalpha = -(<G, W> + b . sum dy) / alpha^2`.

    Under autocast weight and bias are cast to its dtype. x, the residual stream, is not, nor are
    alpha and beta: `x W` is computed in the weight's dtype, the rest in float32, and a float32
    stream keeps its digits from layer to layer.

    On CUDA x is float32, bfloat16 or float16, and an alpha of zero makes y infinite or NaN: to
    raise an error, the host would have to wait for the device. Products of float32 are those of
    TF32 if torch says so when a direction is called, as for `attention_entropy`.

    Values and gradients are native under every transform of docs/reference/transforms.md. Tangents
    and second derivatives are those of the plain form.

    Args:
        x: [..., C] in float32, bfloat16, float16 or float64.
        weight: [C, C] = [in, out], dtype of x, or bfloat16 or float16 next to a float32 x.
        bias: [C], dtype of weight.
        alpha: 0-D or [1], not zero.
        beta: 0-D or [1].
        backend: "native", or "reference" for plain PyTorch, which takes any device.

    Returns:
        y: [..., C] contiguous, dtype of x.

    Raises:
        ValueError: an argument does not fit, or an alpha on the CPU has no finite inverse, as 0 and
            NaN have none.

    Example:
        >>> from aero.ops import scaled_ffn
        >>> import torch
        >>> one = torch.ones(1)
        >>> scaled_ffn(torch.ones(1, 2), torch.eye(2), torch.zeros(2), alpha=2 * one, beta=one)
        tensor([[1.5000, 1.5000]])
    """
    require_tensors("scaled_ffn", x=x, weight=weight, bias=bias, alpha=alpha, beta=beta)
    weight, bias = cast_for_autocast(weight, bias)
    alpha, beta = (scale.to(statistics_dtype(x.dtype)) for scale in (alpha, beta))
    if not use_native("scaled_ffn", backend, x=x, weight=weight, bias=bias, alpha=alpha, beta=beta):
        check_ffn(x, weight, bias, {"alpha": alpha, "beta": beta})
        return reference.scaled_ffn(x, weight, bias, alpha=alpha, beta=beta)
    y: Tensor = call_native("scaled_ffn", x, weight, bias, alpha, beta)
    return y


def _fake(x: Tensor, weight: Tensor, bias: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return x.new_empty(x.shape)


def _fake_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    alpha: Tensor,
    beta: Tensor,
    needs_x: bool,
    needs_parameters: bool,
) -> tuple[Tensor, ...]:
    return (
        x.new_empty(x.shape if needs_x else 0),
        *(p.new_empty(p.shape if needs_parameters else 0) for p in (weight, bias, alpha, beta)),
    )


def _setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[:5]
    gradients = native_gradients("scaled_ffn", dy, *ctx.saved_tensors, needs[0], any(needs[1:]))
    return tuple(g if need else None for g, need in zip(gradients, needs, strict=True))


def _plain(x: Tensor, weight: Tensor, bias: Tensor, alpha: Tensor, beta: Tensor) -> Tensor:
    return reference.scaled_ffn(x, weight, bias, alpha=alpha, beta=beta)


def _batching(operator: str) -> Function:
    loop = looped(operator)

    def rule(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        x_dim, *others = in_dims
        if operator == "scaled_ffn" and x_dim is not None and all(dim is None for dim in others):
            x, *layer = arguments  # one layer for all: one matrix product
            return torch.ops.aero.scaled_ffn.default(x.movedim(x_dim, 0), *layer), 0
        looped_results: tuple[Any, Any] = loop(info, in_dims, *arguments)
        return looped_results

    return rule


register(
    "scaled_ffn",
    fake=_fake,
    fake_backward=_fake_backward,
    setup_context=_setup_context,
    backward=_backward,
    plain=_plain,
    plain_backward=_gradients.scaled_ffn,
    batching=_batching,
)
