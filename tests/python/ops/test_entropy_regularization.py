"""entropy_regularization against the paper's listing and algorithm, written out once more."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aero.ops import entropy_regularization


def draw(*shape: int) -> Tensor:
    return 5 * torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def papers_listing(entropies: Tensor, thresholds: Tensor, context: int, fraction: float) -> Tensor:
    """PyTorch Implementation 1 of the paper, from the entropies on."""
    max_entropy = torch.log(torch.tensor(context))
    total = torch.zeros(())
    for layer, weights in zip(entropies, thresholds, strict=True):
        layer_loss = torch.zeros(())
        for head in range(layer.shape[1]):
            deviation = torch.abs(layer[:, head, :] - weights[head] * max_entropy)
            active = deviation > fraction * max_entropy
            penalty = torch.square(torch.where(active, deviation, torch.zeros_like(deviation)))
            layer_loss = layer_loss + penalty.sum()
        total = total + layer_loss / layer.shape[1]
    return total / len(entropies)


def algorithm_1(entropies: Tensor, thresholds: Tensor, context: int, fraction: float) -> Tensor:
    """Algorithm 1 of the paper for every batch entry, then their mean."""
    largest = math.log(context)
    deviation = entropies.mean(-1) - thresholds[:, None] * largest
    return (deviation.square() * (deviation.abs() > fraction * largest)).mean(2).mean(1).mean(0)


@pytest.mark.parametrize("margin", [0.0, 0.1, 0.2])
@pytest.mark.parametrize(
    ("reduction", "formula"), [("position_sum", papers_listing), ("query_mean", algorithm_1)]
)
def test_both_reductions_are_the_papers(reduction: str, formula: object, margin: float) -> None:
    entropies, thresholds = draw(3, 4, 5, 128), draw(3, 5) / 5
    loss = entropy_regularization(entropies, thresholds, margin=margin, reduction=reduction)
    expected = formula(entropies, thresholds, 128, margin)  # type: ignore[operator]
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_entropies_inside_the_band_cost_nothing_and_outside_their_square(reduction: str) -> None:
    largest = math.log(64)
    thresholds = torch.full((1, 1), 0.5)
    inside = torch.full((1, 1, 1, 64), (0.5 + 0.099) * largest)
    outside = torch.full((1, 1, 1, 64), (0.5 + 0.101) * largest)
    assert entropy_regularization(inside, thresholds, reduction=reduction) == 0
    loss = entropy_regularization(outside, thresholds, reduction=reduction)
    rows = 64 if reduction == "position_sum" else 1
    torch.testing.assert_close(loss.item(), rows * (0.101 * largest) ** 2, rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_entropies_exactly_on_the_margin_cost_nothing(
    reduction: str, dtype: torch.dtype, backend: str
) -> None:
    """Halves of E_max are exact, and so are sums of 64 equal numbers."""
    margin = torch.tensor(64, dtype=dtype).log() / 2
    options = {"margin": 0.5, "reduction": reduction, "backend": backend}
    for threshold, entropy in ((0.0, margin), (1.0, margin)):  # above it, and below
        entropies = entropy.expand(1, 2, 1, 64).clone().requires_grad_()
        thresholds = torch.full((1, 1), threshold, dtype=dtype, requires_grad=True)
        loss = entropy_regularization(entropies, thresholds, **options)  # type: ignore[arg-type]
        assert loss == 0
        for gradient in torch.autograd.grad(loss, [entropies, thresholds]):
            assert not gradient.any()
    beyond = (margin * (1 + 1e-5)).expand(1, 2, 1, 64)
    assert entropy_regularization(beyond, torch.zeros(1, 1, dtype=dtype), **options) > 0  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_rows_that_do_not_count_are_not_read(reduction: str, backend: str) -> None:
    entropies, thresholds = draw(2, 3, 2, 10), draw(2, 2) / 5
    row_mask = torch.rand(3, 10, generator=torch.Generator().manual_seed(1)) < 0.5
    options = {"row_mask": row_mask, "reduction": reduction, "backend": backend}
    results = []
    for hidden in (0.0, math.nan):
        leaf = entropies.masked_fill(~row_mask[:, None], hidden).requires_grad_()
        loss = entropy_regularization(leaf, thresholds, **options)  # type: ignore[arg-type]
        results.append((loss, *torch.autograd.grad(loss, leaf)))
    for with_zeros, with_nan in zip(*results, strict=True):
        assert torch.equal(with_zeros, with_nan)


def test_a_list_of_layers_is_the_stacked_tensor() -> None:
    layers = [draw(2, 3, 8).requires_grad_() for _ in range(4)]
    thresholds = draw(4, 3).requires_grad_()
    listed = entropy_regularization(layers, thresholds)
    stacked = entropy_regularization(torch.stack(layers), thresholds)
    assert torch.equal(listed, stacked)
    for layer in torch.autograd.grad(listed, layers):
        assert layer.abs().sum() > 0


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
@pytest.mark.parametrize("max_entropy", ["log_context", "log_visible"])
def test_masked_rows_count_in_no_sum_and_no_mean(reduction: str, max_entropy: str) -> None:
    """Right padding and a batch entry of padding alone: the loss is that of the rows that count."""
    entropies, thresholds = draw(2, 3, 2, 10), draw(2, 2) / 5
    row_mask = torch.zeros(3, 10, dtype=torch.bool)
    row_mask[:2, :6] = True
    options = {"reduction": reduction, "max_entropy": max_entropy}
    context = {"context_length": 10} if max_entropy == "log_context" else {}
    masked = entropy_regularization(entropies, thresholds, row_mask=row_mask, **options, **context)  # type: ignore[arg-type]
    kept = entropy_regularization(entropies[:, :2, :, :6], thresholds, **options, **context)  # type: ignore[arg-type]
    torch.testing.assert_close(masked, kept)


def test_nothing_that_counts_gives_zero_loss_and_zero_gradients() -> None:
    entropies, thresholds = draw(2, 3, 2, 4).requires_grad_(), draw(2, 2).requires_grad_()
    row_mask = torch.zeros(3, 4, dtype=torch.bool)
    for reduction in ("position_sum", "query_mean"):
        loss = entropy_regularization(entropies, thresholds, row_mask=row_mask, reduction=reduction)  # type: ignore[arg-type]
        assert loss == 0
        for gradient in torch.autograd.grad(loss, [entropies, thresholds]):
            assert torch.equal(gradient, torch.zeros_like(gradient))


def test_log_visible_defaults_to_causal_rows() -> None:
    entropies, thresholds = draw(1, 2, 3, 12), draw(1, 3) / 5
    visible = torch.arange(1, 13).expand(2, 12)
    loss = entropy_regularization(entropies, thresholds, max_entropy="log_visible")
    given = entropy_regularization(
        entropies, thresholds, max_entropy="log_visible", visible_keys=visible
    )
    assert torch.equal(loss, given)
    fewer = entropy_regularization(
        entropies, thresholds, max_entropy="log_visible", visible_keys=visible // 2
    )
    assert not torch.equal(loss, fewer)


def test_gradient_is_twice_the_deviation_and_reaches_the_thresholds() -> None:
    largest = math.log(4)
    entropies = torch.tensor([[[[0.0, largest / 2, largest]]]], requires_grad=True)
    thresholds = torch.full((1, 1), 0.5, requires_grad=True)
    loss = entropy_regularization(entropies, thresholds, context_length=4)
    dentropies, dthresholds = torch.autograd.grad(loss, [entropies, thresholds])
    torch.testing.assert_close(dentropies, torch.tensor([[[[-largest, 0.0, largest]]]]))
    torch.testing.assert_close(dthresholds, torch.zeros(1, 1))
    loss = entropy_regularization(entropies[..., 2:], thresholds, context_length=4)
    (dthresholds,) = torch.autograd.grad(loss, thresholds)
    torch.testing.assert_close(dthresholds.item(), -(largest**2), rtol=1e-6, atol=0)


def test_thresholds_may_be_stored_in_bfloat16() -> None:
    entropies, thresholds = draw(1, 2, 3, 12), torch.full((1, 3), 0.25, dtype=torch.bfloat16)
    loss = entropy_regularization(entropies, thresholds)
    assert torch.equal(loss, entropy_regularization(entropies, thresholds.float()))
