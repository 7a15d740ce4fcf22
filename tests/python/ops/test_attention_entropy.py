"""Closed forms, layouts, memory and extreme temperatures of attention_entropy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from aero.ops import attention_entropy

from . import oracle

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def draw(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=dtype)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
def test_entropy_of_uniform_attention_is_log_of_the_visible_keys(dtype: torch.dtype) -> None:
    q, k, v = torch.zeros(3, 1, 2, 37, 16, dtype=dtype)
    _, entropy, logsumexp = attention_entropy(q, k, v, is_causal=True)
    expected = torch.arange(1, 38).log().expand(1, 2, 37)
    torch.testing.assert_close(entropy, expected.to(entropy.dtype), rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(logsumexp, entropy, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("queries", [2, 37])
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_a_scale_of_zero_is_a_scale(backend: str, queries: int, dtype: torch.dtype) -> None:
    """All scores are 0: attention is the mean, and only values get gradients."""
    q, k, v = (draw(1, 2, n, 16).to(dtype).requires_grad_() for n in (queries, 37, 37))
    out, entropy, logsumexp = attention_entropy(q, k, v, scale=0.0, backend=backend)  # type: ignore[arg-type]
    for rows in (entropy, logsumexp):
        torch.testing.assert_close(rows, torch.full_like(rows, math.log(37)))
    mean = v.detach().double().mean(2, keepdim=True).expand(out.shape)
    assert (out - mean).abs().max() < 1e-2
    dq, dk, dv = torch.autograd.grad((out.sum(), entropy.sum()), (q, k, v))
    assert not dq.any() and not dk.any()
    torch.testing.assert_close(dv, torch.full_like(dv, queries / 37), rtol=1e-2, atol=0)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_entropy_of_one_hot_attention_is_zero_and_out_is_that_value(dtype: torch.dtype) -> None:
    eye = torch.eye(16, dtype=dtype).expand(1, 1, 16, 16)
    v = draw(1, 1, 16, 16).to(dtype)
    out, entropy, logsumexp = attention_entropy(100 * eye, 100 * eye, v, scale=1.0)
    assert torch.equal(entropy, torch.zeros(1, 1, 16))
    assert torch.equal(out, v)
    assert torch.equal(logsumexp, torch.full((1, 1, 16), 1e4))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("t", [1e-3, 0.01, 1.0, 100.0, -0.5])
def test_entropy_lies_between_zero_and_log_of_the_visible_keys(
    dtype: torch.dtype, t: float
) -> None:
    q, k, v = draw(3, 1, 2, 97, 32).to(dtype)
    _, entropy, _ = attention_entropy(q, k, v, temperature=torch.tensor(t), is_causal=True)
    assert (entropy >= 0).all()
    assert (entropy <= torch.arange(1, 98).log() * (1 + 1e-6) + 1e-7).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_tiny_temperatures_keep_entropy_and_their_gradient(
    dtype: torch.dtype, relative_error: Any
) -> None:
    """t = 0.01, the paper's start: only the scores' own rounding is left."""
    q, k, v = draw(3, 2, 3, 128, 64).to(dtype)
    t = torch.full((3, 128), 0.01, requires_grad=True)
    out, entropy, _ = attention_entropy(q, k, v, temperature=t, is_causal=True)
    cotangents = [torch.ones_like(out), torch.linspace(0, 1, 128).expand(2, 3, 128)]
    (dt,) = torch.autograd.grad([out, entropy], t, cotangents)
    tensors = {"q": q, "k": k, "v": v, "temperature": t}
    (_, exact, _), wanted = oracle.run(
        "attention_entropy", tensors, {"is_causal": True}, [*cotangents, None]
    )
    allowed = 1e-4 if dtype == torch.float32 else 1e-3
    for got, want in ((entropy, exact), (dt, wanted["temperature"])):
        assert relative_error(got, want) <= allowed


def test_agrees_with_torchs_attention_when_there_is_no_temperature() -> None:
    q, k, v = draw(3, 2, 4, 33, 24)
    out, _, _ = attention_entropy(q, k, v, is_causal=True)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(out, expected)


def test_a_key_cache_gives_the_rows_of_the_full_sequence() -> None:
    q, k, v = draw(3, 1, 2, 11, 8)
    full = attention_entropy(q, k, v, is_causal=True)
    for first in (0, 4, 10):
        rows = attention_entropy(q[:, :, first:], k, v, is_causal=True)
        for got, want in zip(rows, full, strict=True):
            torch.testing.assert_close(got, want[:, :, first:])


def test_threads_share_the_keys_of_a_single_row(relative_error: Any) -> None:
    q, (k, v), mask = draw(1, 3, 1, 40), draw(2, 1, 1, 2000, 40), draw(1, 1, 1, 2000) < 0.5
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)  # three rows, so that keys are read in parts
        shared = attention_entropy(q, k, v, mask=mask)
        again = attention_entropy(q, k, v, mask=mask)
        torch.set_num_threads(1)
        alone = attention_entropy(q, k, v, mask=mask)
    finally:
        torch.set_num_threads(threads)
    exact = oracle.attention_entropy(q.double(), k.double(), v.double(), mask=mask)
    for parts, same, whole, wanted in zip(shared, again, alone, exact, strict=True):
        assert torch.equal(parts, same)
        assert relative_error(parts, wanted) <= 2 * relative_error(whole, wanted) + 1e-7


def test_mask_and_causal_are_combined_by_and() -> None:
    q, k, v = draw(3, 2, 2, 9, 8)
    mask = torch.rand(2, 1, 9, 9, generator=torch.Generator().manual_seed(0)) < 0.7
    both = attention_entropy(q, k, v, mask=mask, is_causal=True)
    by_hand = attention_entropy(q, k, v, mask=mask.tril())
    for got, want in zip(both, by_hand, strict=True):
        torch.testing.assert_close(got, want)


def test_rows_without_a_key_are_zero_and_pass_no_gradient() -> None:
    q, k, v = (x.requires_grad_() for x in draw(3, 1, 1, 6, 4))
    t = torch.full((1, 6), 0.5, requires_grad=True)
    mask = torch.ones(6, 6, dtype=torch.bool)
    mask[2] = False
    out, entropy, logsumexp = attention_entropy(q, k, v, temperature=t, mask=mask)
    assert torch.equal(out[0, 0, 2], torch.zeros(4))
    assert entropy[0, 0, 2] == 0
    assert logsumexp[0, 0, 2] == -math.inf
    dq, dk, dv, dt = torch.autograd.grad(
        [out, entropy, logsumexp], [q, k, v, t], [out, entropy, torch.ones_like(logsumexp)]
    )
    assert all(x.isfinite().all() for x in (dq, dk, dv, dt))
    assert torch.equal(dq[0, 0, 2], torch.zeros(4))
    assert dt[0, 2] == 0


def test_models_that_pass_transposed_views_copy_nothing() -> None:
    qkv = draw(2, 7, 3, 4, 8).requires_grad_()  # [B, T, 3, H, D]
    q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
    out, _, _ = attention_entropy(q, k, v, is_causal=True)
    assert out.transpose(1, 2).is_contiguous()
    for gradient in torch.autograd.grad(out, [q, k, v], torch.ones_like(out)):
        assert gradient.transpose(1, 2).is_contiguous()


def test_rows_may_overlap_in_memory() -> None:
    """Inputs are only read: windows that share elements, and one row expanded to many."""
    memory = draw(40)
    windows = memory.as_strided((1, 2, 7, 8), (0, 5, 2, 1)).requires_grad_()
    expanded = memory[:8].expand(1, 2, 7, 8).requires_grad_()
    for q, k, v in ((windows, windows, expanded), (expanded, windows, windows)):
        results = attention_entropy(q, k, v, is_causal=True)
        # A sum's gradient is itself one number expanded.
        gradients = torch.autograd.grad(results[0].sum(), (q, k))
        tensors = {"q": q, "k": k, "v": v}
        exact, wanted = oracle.run(
            "attention_entropy",
            tensors,
            {"is_causal": True},
            [torch.ones_like(results[0]), None, None],
        )
        torch.testing.assert_close(results, exact, check_dtype=False)
        for leaf, got in zip((q, k), gradients, strict=True):
            want = sum(wanted[name] for name, tensor in tensors.items() if tensor is leaf)
            torch.testing.assert_close(got, want, check_dtype=False)


def test_leaves_keep_their_gradients_without_a_copy() -> None:
    q, k, v = (draw(2, 3, rows, 8).requires_grad_() for rows in (4, 5, 5))
    out, _, _ = attention_entropy(q, k, v)
    for leaf, gradient in zip(
        (q, k, v), torch.autograd.grad(out, [q, k, v], torch.ones_like(out)), strict=True
    ):
        assert gradient.stride() == leaf.stride()


def peak_growth_bytes(call: Any) -> int:
    """How far the process's resident memory rises above its start while `call` runs."""

    def status(key: str) -> int:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    before = status("VmRSS")
    call()
    return status("VmHWM") - before


def test_memory_grows_linearly_with_the_number_of_queries_and_keys() -> None:
    length, scores_bytes = 4096, 4096 * 4096 * 4
    q, k, v = (x.requires_grad_() for x in draw(3, 1, 1, length, 4))

    def call(backend: str) -> None:
        out, entropy, _ = attention_entropy(q, k, v, is_causal=True, backend=backend)
        torch.autograd.grad(out.sum() + entropy.sum(), [q, k, v])

    call("native")
    assert peak_growth_bytes(lambda: call("native")) < scores_bytes / 8
    assert peak_growth_bytes(lambda: call("reference")) > scores_bytes  # the measurement works
