"""Shapes and layouts that `attention_entropy` takes beside [B, H, T, D] of one width."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from aero.ops import attention_entropy

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention from the definition."""
    heads = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(heads, 1) for x in (k, v))
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[-1])
    seen = torch.ones(scores.shape[2:], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
    return torch.einsum("bhts,bhsd->bhtd", scores.masked_fill(~seen, -math.inf).softmax(-1), v)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 3, 70])
@pytest.mark.parametrize(("width", "value_width"), [(192, 128), (16, 40), (5, 1), (512, 512)])
def test_widths_of_values_and_heads(
    width: int, value_width: int, queries: int, dtype: torch.dtype, relative_error: Any
) -> None:
    shapes = ((1, 4, queries, width), (1, 2, 90, width), (1, 2, 90, value_width))
    given = [draw(*s, seed=n).to(dtype).requires_grad_() for n, s in enumerate(shapes)]
    exact = [x.detach().double().requires_grad_() for x in given]
    out, entropy, _ = attention_entropy(*given, is_causal=True)
    wanted = dense(*exact)
    assert out.shape == (1, 4, queries, value_width)
    assert out.stride(1) == value_width  # laid out as [B, T, H, Dv]
    weights = draw(*out.shape, seed=4).to(dtype)
    got = torch.autograd.grad((out * weights).sum() + 0 * entropy.sum(), given)
    want = torch.autograd.grad((wanted * weights.double()).sum(), exact)
    allowed = max(4 * torch.finfo(dtype).eps, 1e-12 if dtype == torch.float64 else 1e-5)
    for one, other in zip((out, *got), (wanted, *want), strict=True):
        assert relative_error(one, other) <= allowed


def test_second_derivatives_tangents_and_vmap_with_values_of_another_width() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return attention_entropy(q, k, v, is_causal=True)

    leaves = [draw(1, 2, 4, n, seed=n).requires_grad_() for n in (3, 3, 5)]
    leaves[1] = draw(1, 2, 4, 3, seed=9).requires_grad_()
    assert torch.autograd.gradcheck(call, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
    batch = [torch.stack([x, x + 1]).detach() for x in leaves]
    for got, want in zip(
        torch.func.vmap(call)(*batch),
        map(torch.stack, zip(*(call(*(x[i] for x in batch)) for i in range(2)), strict=True)),
        strict=True,
    ):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_without_a_batch_it_is_the_call_with_a_batch_of_one(backend: Any) -> None:
    q, k, v = draw(4, 9, 8), draw(2, 12, 8, seed=1), draw(2, 12, 6, seed=2)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    others: dict[str, Any] = {
        "mask": draw(9, 12, seed=3) > -1,
        "temperature": torch.full((4, 9), 0.7, dtype=torch.float64),
        "bias": draw(4, 9, 12, seed=4),
        "sinks": draw(4, seed=5),
        "return_max_logits": True,
        "backend": backend,
    }
    found = []
    for batched in (False, True):
        given = [x[None] for x in leaves] if batched else leaves
        results = [x[0] if batched else x for x in attention_entropy(*given, **others)]
        assert results[0].shape == (4, 9, 6)
        found.append((*results, *torch.autograd.grad(results[0].sin().sum(), leaves)))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_some_operands_without_a_batch_are_refused() -> None:
    with pytest.raises(ValueError, match=r"q must be \[B, H, T, D\]"):
        attention_entropy(draw(4, 9, 8), draw(1, 4, 9, 8), draw(1, 4, 9, 8))


def allocated(call: Any) -> int:
    """Bytes that torch's allocator gives out during a call."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    return sum(max(0, event.self_cpu_memory_usage) for event in record.events())


@pytest.mark.parametrize("queries", [2, 64])
def test_views_of_heads_take_the_memory_of_contiguous_ones(queries: int) -> None:
    """[B, T, H, D] as models have it, and slices of one projection: not one operand is copied."""
    packed = draw(2, 64, 3, 4, 32).float()

    def views() -> list[Tensor]:
        q, k, v = packed.unbind(2)
        return [x.transpose(1, 2) for x in (q[:, :queries], k, v)]

    def contiguous() -> list[Tensor]:
        return [x.contiguous() for x in views()]

    def both(operands: list[Tensor]) -> Any:
        leaves = [x.detach().requires_grad_() for x in operands]

        def call() -> None:
            out, entropy, _ = attention_entropy(*leaves, is_causal=True)
            torch.autograd.grad((out, entropy), leaves, (torch.ones_like(out), entropy.detach()))

        return call

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        used = [allocated(both(make())) for make in (contiguous, views)]
    finally:
        torch.set_num_threads(threads)
    assert min(used) > 0
    assert used[1] <= used[0]
