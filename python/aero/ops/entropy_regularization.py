"""Computes the penalty that keeps attention entropies near learned thresholds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from aero.ops import _gradients, reference
from aero.ops._autograd import looped, native_gradients, register
from aero.ops._boundary import (
    Backend,
    call_native,
    require_finite,
    require_number,
    require_tensors,
    use_native,
)
from aero.ops._reference_checks import check_penalty

Reduction = Literal["position_sum", "query_mean"]
MaxEntropy = Literal["log_context", "log_visible"]


def entropy_regularization(
    entropies: Tensor | Sequence[Tensor],
    thresholds: Tensor,
    *,
    margin: float = 0.1,
    max_entropy: MaxEntropy = "log_context",
    visible_keys: Tensor | None = None,
    row_mask: Tensor | None = None,
    context_length: int | None = None,
    reduction: Reduction = "position_sum",
    backend: Backend = "native",
) -> Tensor:
    """Penalty on attention entropies that leave a band around their head's threshold.

    With `E_max` the largest entropy that counts as possible and `deviation = E - threshold * E_max`
    the penalty is `deviation^2` where `|deviation| > margin * E_max`, else 0 (Sec. 4.3 of the AERO
    paper). Gradients reach entropies and thresholds; sums run in a fixed order.

    A deviation of exactly the margin costs nothing. NaN in a row that counts is NaN in the loss;
    rows that `row_mask` leaves out are not read.

    Two published reductions differ in size by far, so the regularization weight belongs to one of
    them and, with "position_sum", to the size of the micro-batch: B rows of T tokens weigh B * T
    times the weight of one token. A loop that averages over micro-batches or processes shrinks a
    sum. `aero.models.EntropyPenalty.term` is what such a loop adds to its loss: the sum over the
    tokens that the loss is divided by, times the tokens that the weight belongs to.

    Values and gradients are native under every transform of docs/reference/transforms.md. Tangents
    and second derivatives are those of the plain form.

    Args:
        entropies: [L, B, H, T] or L tensors [B, H, T], in nats, float32 or, on the CPU, float64.
        thresholds: [L, H], as a share of E_max; any real number.
        margin: half width of the free band as a share of E_max, a finite number, at least 0.
        max_entropy: "log_context" is ln(context_length) for every row (the paper), "log_visible"
            is ln(visible keys) of each row.
        visible_keys: [B, T] integers for "log_visible": how many keys each row sees; default i + 1.
            A row that sees none has E_max 0.
        row_mask: [B, T] boolean, false for rows (padding) that count in no sum and no mean.
        context_length: for "log_context"; default T.
        reduction: "position_sum" penalises every row, sums over batch and rows, and averages over
            heads and layers (the paper's listing). "query_mean" averages entropies over rows
            first, penalises that, and averages over batch, heads and layers (Algorithm 1).
        backend: "native", or "reference" for plain PyTorch, which takes any device.

    Returns:
        The loss, 0-D, dtype of entropies.

    Raises:
        ValueError: an argument does not fit.

    Example:
        >>> from aero.ops import entropy_regularization
        >>> import torch
        >>> entropies, thresholds = torch.zeros(1, 1, 1, 2), torch.full((1, 1), 0.5)
        >>> loss = entropy_regularization(entropies, thresholds, context_length=10)
        >>> round(loss.item(), 4)  # twice (0.5 ln 10)^2
        2.6509
    """
    entropies = _stacked(entropies)
    require_tensors(
        "entropy_regularization",
        entropies=entropies,
        thresholds=thresholds,
        visible_keys=visible_keys,
        row_mask=row_mask,
    )
    thresholds = thresholds.to(entropies.dtype)
    require_number("entropy_regularization", "margin", margin, has_none=False)
    _check_rule(entropies, max_entropy, visible_keys, context_length, reduction)
    if not use_native(
        "entropy_regularization",
        backend,
        entropies=entropies,
        thresholds=thresholds,
        visible_keys=visible_keys,
        row_mask=row_mask,
    ):
        require_finite("entropy_regularization", "margin", margin, least=0.0)
        check_penalty(entropies, thresholds, row_mask)
        return reference.entropy_regularization(
            entropies,
            thresholds,
            margin=margin,
            max_entropy=max_entropy,
            visible_keys=visible_keys,
            row_mask=row_mask,
            context_length=context_length,
            reduction=reduction,
        )
    largest = reference.max_entropy_of_rows(
        entropies, max_entropy=max_entropy, visible_keys=visible_keys, context_length=context_length
    )
    loss: Tensor = call_native(
        "entropy_regularization",
        entropies,
        thresholds,
        largest,
        row_mask,
        margin,
        reduction == "query_mean",
    )
    return loss


def _refuse(argument: str, expected: str, got: object) -> None:
    raise ValueError(f"entropy_regularization: {argument} must be {expected}, got {got}")


def _stacked(entropies: Tensor | Sequence[Tensor]) -> Tensor:
    if isinstance(entropies, Tensor):
        return entropies
    is_sequence = isinstance(entropies, Sequence)
    if not is_sequence or not all(isinstance(layer, Tensor) for layer in entropies):
        _refuse("entropies", "[L, B, H, T] or L tensors of one shape", type(entropies).__name__)
    shapes = [list(layer.shape) for layer in entropies]
    if not shapes or any(shape != shapes[0] for shape in shapes):
        _refuse("entropies", "[L, B, H, T] or L tensors of one shape", shapes)
    return torch.stack(tuple(entropies))


def _check_rule(
    entropies: Tensor,
    max_entropy: str,
    visible_keys: Tensor | None,
    context_length: int | None,
    reduction: str,
) -> None:
    # The arguments that end here: the operator library gets one tensor of largest entropies.
    if entropies.is_floating_point() and entropies.element_size() < 2:  # no logarithms in float8
        _refuse("entropies", "float32 or float64", str(entropies.dtype).removeprefix("torch."))
    if reduction not in ("position_sum", "query_mean"):
        _refuse("reduction", "'position_sum' or 'query_mean'", repr(reduction))
    if max_entropy not in ("log_context", "log_visible"):
        _refuse("max_entropy", "'log_context' or 'log_visible'", repr(max_entropy))
    if max_entropy == "log_visible" and context_length is not None:
        _refuse("context_length", "None with max_entropy='log_visible'", context_length)
    if context_length is not None:
        require_number("entropy_regularization", "context_length", context_length)
        if not 1 <= context_length < math.inf:
            _refuse("context_length", "at least 1", context_length)
    if visible_keys is None:
        return
    if max_entropy == "log_context":
        _refuse("visible_keys", "None with max_entropy='log_context'", "a tensor")
    if visible_keys.dtype not in (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8):
        _refuse("visible_keys", "an integer tensor", visible_keys.dtype)
    if entropies.dim() == 4:
        rows = [entropies.shape[1], entropies.shape[3]]
        if list(visible_keys.shape) != rows:
            _refuse("visible_keys", f"[B, T] = {rows}", list(visible_keys.shape))


def _fake(
    entropies: Tensor,
    thresholds: Tensor,
    max_entropy: Tensor,
    row_mask: Any,
    margin: float,
    query_mean: bool,
) -> Tensor:
    return entropies.new_empty(())


def _fake_backward(
    dloss: Tensor,
    entropies: Tensor,
    thresholds: Tensor,
    max_entropy: Tensor,
    row_mask: Any,
    margin: float,
    query_mean: bool,
) -> tuple[Tensor, Tensor]:
    return entropies.new_empty(entropies.shape), thresholds.new_empty(thresholds.shape)


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    entropies, thresholds, max_entropy, row_mask, ctx.margin, ctx.query_mean = inputs
    ctx.save_for_backward(entropies, thresholds, max_entropy, row_mask)


def _backward(ctx: Any, dloss: Tensor) -> tuple[Tensor | None, ...]:
    gradients = native_gradients(
        "entropy_regularization", dloss, *ctx.saved_tensors, ctx.margin, ctx.query_mean
    )
    return *gradients, None, None, None, None


register(
    "entropy_regularization",
    fake=_fake,
    fake_backward=_fake_backward,
    setup_context=_setup_context,
    backward=_backward,
    plain=reference.penalty,
    plain_backward=_gradients.entropy_regularization,
    batching=looped,
)
