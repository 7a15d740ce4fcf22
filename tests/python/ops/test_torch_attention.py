"""Torch's own attention on the CPU, with this library's kernels in its place."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from aero.ops.torch_attention import BACKWARD, FORWARD, accelerate

from .torch_calls import OURS, attended, errors, exact, operands, ran


def padding(keys: int = 37) -> Tensor:
    """[B, 1, 1, S], the second sequence without any key."""
    return (torch.arange(keys) < torch.tensor([[keys - 5], [0]]))[:, None, None]


TAKEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "causal": ({}, {"is_causal": True}),
    "everything visible": ({"queries": 5}, {}),
    "one query": ({"queries": 1}, {}),
    "contiguous operands": ({"as_models": False}, {"is_causal": True}),
    "grouped heads": ({"key_heads": 2}, {"is_causal": True, "enable_gqa": True}),
    "one key head": ({"key_heads": 1, "queries": 3}, {"enable_gqa": True}),
    "a scale": ({}, {"is_causal": True, "scale": 0.3}),
    "a boolean mask": ({}, {"attn_mask": torch.ones(37, 37, dtype=torch.bool).tril(3)}),
    "padding and a sequence without keys": ({}, {"attn_mask": padding()}),
    "an expanded mask of 0 and -inf": (
        {"key_heads": 2},
        {
            "attn_mask": torch.zeros(2, 1, 1, 37)
            .masked_fill(~padding(), -math.inf)
            .expand(2, 4, 37, 37),
            "enable_gqa": True,
        },
    ),
    "a float mask of 0 and -inf": (
        {}, {"attn_mask": torch.full((37, 37), -math.inf).triu(1)},
    ),
    "a bias": ({}, {"attn_mask": torch.linspace(-1, 0, 37 * 37).view(37, 37)}),
    "a mask of the least number": (
        {}, {"attn_mask": torch.full((37, 37), torch.finfo(torch.float32).min).triu(1)},
    ),
    "the widest head": ({"width": 512, "heads": 1, "key_heads": 1}, {"is_causal": True}),
}  # fmt: skip


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str
)
def test_values_and_gradients_are_as_near_to_float64_as_those_of_torch(
    case: str, dtype: torch.dtype
) -> None:
    sizes, options = TAKEN[case]
    inputs = operands(**sizes, dtype=dtype)
    want, theirs = exact(inputs, **options), attended(inputs, **options)
    results: list[Tensor] = []
    with accelerate():
        assert ran(lambda: results.extend(attended(inputs, **options))) == OURS
    for own, other in zip(errors(results, want), errors(theirs, want), strict=True):
        assert own <= 2 * other + torch.finfo(dtype).eps
    for own_result, other_result in zip(results, theirs, strict=True):
        assert own_result.dtype == other_result.dtype and own_result.shape == other_result.shape


@pytest.mark.parametrize("case", ["causal", "contiguous operands", "grouped heads", "one query"])
def test_memory_is_laid_out_as_torch_promises_to_compilers(case: str) -> None:
    sizes, options = TAKEN[case]
    q, k, v = (x.detach() for x in operands(**sizes))
    is_causal = options.get("is_causal", False)
    forward = getattr(torch.ops.aten, FORWARD).default
    backward = getattr(torch.ops.aten, BACKWARD).default

    def strides(q: Tensor, k: Tensor, v: Tensor) -> list[list[int]]:
        out, logsumexp = forward(q, k, v, 0.0, is_causal)
        gradients = backward(torch.ones_like(out), q, k, v, out, logsumexp, 0.0, is_causal)
        return [
            [s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1]
            for x in (out, logsumexp, *gradients)
        ]

    with accelerate():
        assert strides(q, k, v) == strides(q.to("meta"), k.to("meta"), v.to("meta"))


NOT_TAKEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "a head too wide": ({"width": 520}, {"is_causal": True}),
    "causal with fewer queries": ({"queries": 5}, {"is_causal": True}),
    "causal with more queries": ({"keys": 5}, {"is_causal": True}),
    "no queries": ({"queries": 0}, {}),
    "no keys": ({"keys": 0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_the_kernels_do_not_take_is_computed_by_torch(case: str) -> None:
    sizes, options = NOT_TAKEN[case]
    inputs = operands(**sizes)
    torch.manual_seed(0)
    theirs = attended(inputs, **options)
    torch.manual_seed(0)
    results: list[Tensor] = []
    with accelerate():
        assert ran(lambda: results.extend(attended(inputs, **options))) == set()
    for own, other in zip(results, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)


def test_dropout_is_refused_as_torchs_kernel_refuses_it() -> None:
    q, k, v = (x.detach() for x in operands())
    with accelerate(), pytest.raises(RuntimeError, match="dropout"):
        getattr(torch.ops.aten, FORWARD)(q, k, v, 0.5)


def test_meta_and_fake_tensors_stay_torchs() -> None:
    q, k, v = (x.detach() for x in operands())
    with accelerate():
        assert F.scaled_dot_product_attention(*(x.to("meta") for x in (q, k, v))).is_meta
        with torch._subclasses.FakeTensorMode() as mode:
            fakes = [mode.from_tensor(x) for x in (q, k, v)]
            out = F.scaled_dot_product_attention(*fakes, is_causal=True)
        assert isinstance(out, torch._subclasses.FakeTensor) and out.shape == q.shape


def large_scores(size: float, sharp: bool) -> list[Tensor]:
    """q, k, v whose logsumexp is about `size`: alike, or with one key ahead of all others."""
    inputs = [x.detach() for x in operands(width=64, queries=65, keys=65)]
    if sharp:
        inputs[:2] = (x * math.sqrt(size / 3) for x in inputs[:2])
    else:
        direction = F.normalize(torch.ones(64), dim=0) * math.sqrt(8 * size)
        inputs[:2] = (x + direction for x in inputs[:2])
    return [x.requires_grad_() for x in inputs]


@pytest.mark.parametrize(("size", "sharp"), [*itertools.product([100, 1000], [False, True])])
def test_gradients_keep_their_digits_at_large_scores(size: float, sharp: bool) -> None:
    inputs = large_scores(size, sharp)
    want = exact(inputs, is_causal=True)
    theirs = errors(attended(inputs, is_causal=True), want)
    with accelerate():
        ours = errors(attended(inputs, is_causal=True), want)
    for own, other in zip(ours, theirs, strict=True):
        assert own <= 2 * other


def in_larger_memory(x: Tensor) -> Tensor:
    """A copy with something else behind it."""
    memory = x.new_full((4 * x.numel(),), 7.0)
    return memory.as_strided(x.shape, x.stride()).copy_(x)


@pytest.mark.parametrize("copy", [torch.clone, in_larger_memory])
def test_gradients_are_right_where_hooks_copy_what_is_saved(copy: Any) -> None:
    inputs = large_scores(1000, sharp=True)
    want = exact(inputs, is_causal=True)
    theirs = errors(attended(inputs, is_causal=True), want)
    with accelerate(), torch.autograd.graph.saved_tensors_hooks(copy, lambda x: x):
        ours = errors(attended(inputs, is_causal=True), want)
    rounding = 1000 * torch.finfo(torch.float32).eps  # of logsumexp, which is all that is left
    for own, other in zip(ours, theirs, strict=True):
        assert own <= 2 * other + rounding


@pytest.mark.parametrize("case", ["causal", "padding and a sequence without keys"])
def test_each_direction_goes_with_torchs_of_the_other(case: str) -> None:
    sizes, options = TAKEN[case]
    inputs = operands(**sizes)
    want = attended(inputs, **options)
    cotangent = torch.linspace(-1, 1, want[0].numel()).view_as(want[0])
    forward_ours = accelerate()
    out = F.scaled_dot_product_attention(*inputs, **options)
    forward_ours.remove()
    gradients = torch.autograd.grad(out, inputs, cotangent)
    torch.testing.assert_close([*gradients], want[1:], rtol=1e-4, atol=1e-5)
    out = F.scaled_dot_product_attention(*inputs, **options)
    with accelerate():
        gradients = torch.autograd.grad(out, inputs, cotangent)
    torch.testing.assert_close([*gradients], want[1:], rtol=1e-4, atol=1e-5)
