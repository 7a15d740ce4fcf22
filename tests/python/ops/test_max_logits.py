"""The largest score of every row, and the key that has it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from aero.ops import attention_entropy

from . import oracle

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def scores_of(
    q: Tensor,
    k: Tensor,
    *,
    temperature: Tensor | float = 1.0,
    softcap: float = 0.0,
    bias: Tensor | float = 0.0,
    visible: Tensor,
) -> Tensor:
    """What the softmax takes, from the definition."""
    s = torch.einsum("bhtd,bhsd->bhts", q, k.repeat_interleave(q.shape[1] // k.shape[1], 1))
    s = s / math.sqrt(q.shape[-1])
    s = softcap * (s / softcap).tanh() if softcap else s
    return ((s + bias) / temperature).masked_fill(~visible, -math.inf)


def operands(queries: int, keys: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    shapes = ((2, 4, queries, 16), (2, 2, keys, 16), (2, 2, keys, 16))
    return [draw(*shape, seed=n).to(dtype) for n, shape in enumerate(shapes)]


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries", [1, 4, 70])
def test_they_are_those_of_the_scores_that_the_softmax_takes(
    queries: int, dtype: torch.dtype, backend: Any
) -> None:
    q, k, v = operands(queries, 150, dtype)
    t = 0.5 + torch.arange(4.0).square() / 4
    t[1] = -0.7
    bias = draw(4, queries, 150, seed=5)
    visible = torch.ones(queries, 150, dtype=torch.bool).tril(150 - queries)
    results = attention_entropy(
        q, k, v, temperature=t, softcap=2.0, bias=bias.to(dtype), is_causal=True,
        return_max_logits=True, backend=backend,
    )  # fmt: skip
    exact = scores_of(
        q.double(), k.double(), temperature=t.double()[:, None, None], softcap=2.0,
        bias=bias.to(dtype).double(), visible=visible,
    )  # fmt: skip
    _, _, logsumexp, max_logits, largest_key = results
    assert max_logits.dtype == logsumexp.dtype
    assert largest_key.dtype == torch.int64
    torch.testing.assert_close(max_logits.double(), exact.amax(-1), atol=1e-5, rtol=1e-5)
    named = exact.gather(-1, largest_key[..., None])[..., 0]
    torch.testing.assert_close(named, exact.amax(-1), atol=1e-5, rtol=1e-5)
    largest_weight = exact.softmax(-1).amax(-1)
    found_weight = (max_logits - logsumexp).exp().double()
    torch.testing.assert_close(found_weight, largest_weight, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [1, 3, 70])
def test_of_equal_scores_the_first_visible_key_is_named(queries: int, backend: Any) -> None:
    q, k, v = (torch.zeros(1, 2, n, 8) for n in (queries, 200, 200))
    mask = torch.arange(200) >= 77
    for sinks in (None, torch.tensor([5.0, -5.0])):
        *_, max_logits, largest_key = attention_entropy(
            q, k, v, mask=mask, sinks=sinks, return_max_logits=True, backend=backend
        )
        assert torch.equal(max_logits, torch.zeros(1, 2, queries))
        assert torch.equal(largest_key, torch.full((1, 2, queries), 77))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [2, 40])
def test_rows_without_keys_and_rows_of_nan_name_none(queries: int, backend: Any) -> None:
    q, k, v = (x.requires_grad_() for x in operands(queries, 50))
    with torch.no_grad():
        k[1, 0, 17] = math.nan
    mask = torch.ones(queries, 50, dtype=torch.bool)
    mask[0] = False
    *_, max_logits, largest_key = attention_entropy(
        q, k, v, mask=mask, return_max_logits=True, backend=backend
    )
    assert (max_logits[:, :, 0] == -math.inf).all()
    assert max_logits[1, :2, 1:].isnan().all()
    none = torch.zeros(2, 4, queries, dtype=torch.bool)
    none[:, :, 0] = none[1, :2] = True
    assert torch.equal(largest_key < 0, none)
    assert torch.equal(largest_key[none], torch.full_like(largest_key[none], -1))
    (dq,) = torch.autograd.grad(max_logits[:, :, 0].sum() * math.nan, q)
    assert (dq[0, :, 0] == 0).all()  # the other entry has NaN where the mask hides it


@pytest.mark.parametrize("queries", [3, 30])
def test_a_score_of_the_least_number_is_one(queries: int) -> None:
    """As masks of models have it: a row of nothing else has its first key."""
    q, k, v = operands(queries, 50, torch.float32)
    bias = torch.full((queries, 50), torch.finfo(torch.float32).min)
    for backend in ("native", "reference"):
        *_, largest_key = attention_entropy(
            q, k, v, bias=bias, return_max_logits=True, backend=backend
        )
        assert torch.equal(largest_key, torch.zeros(2, 4, queries, dtype=torch.int64)), backend


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [2, 40])
def test_their_gradients_are_those_of_single_scores(queries: int, backend: Any) -> None:
    """Alone and beside the others, through cap, bias, slopes, sinks and temperature."""
    q, k, v = operands(queries, 60)
    t = 0.5 + 0.1 * torch.arange(4.0, dtype=torch.float64)
    bias, slopes, sinks = draw(4, queries, 60, seed=7), 0.02 * draw(4, seed=8), draw(4, seed=9)
    leaves = [x.requires_grad_() for x in (q, k, v, t, bias, slopes, sinks)]
    *others, max_logits, _ = attention_entropy(
        q, k, v, temperature=t, softcap=1.5, bias=bias, alibi_slopes=slopes, sinks=sinks,
        is_causal=True, return_max_logits=True, backend=backend,
    )  # fmt: skip
    exact = oracle.attention_entropy(
        q, k, v, temperature=t, softcap=1.5, bias=bias, alibi_slopes=slopes, sinks=sinks,
        is_causal=True,
    )  # fmt: skip
    ahead = torch.arange(60) - torch.arange(queries)[:, None] - 60 + queries
    scores = scores_of(
        q, k, temperature=t[:, None, None], softcap=1.5,
        bias=bias - slopes[:, None, None] * ahead.abs(), visible=ahead <= 0,
    )  # fmt: skip
    for weights in ((0.0, 0.0, 0.0), (0.3, -0.2, 0.7)):

        def total(
            given: tuple[Tensor, ...] | list[Tensor], largest: Tensor,
            weights: tuple[float, ...] = weights,
        ) -> Tensor:  # fmt: skip
            parts = [w * x.sin().sum() for w, x in zip(weights, given, strict=True)]
            return torch.stack([*parts, largest.cos().sum()]).sum()

        got = torch.autograd.grad(total(others, max_logits), leaves, retain_graph=True)
        want = torch.autograd.grad(total(exact, scores.amax(-1)), leaves, retain_graph=True)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("queries", [2, 40])
def test_a_sink_far_above_all_scores_does_not_change_the_gradient_of_the_temperature(
    queries: int, dtype: torch.dtype, backend: Any
) -> None:
    """Scores are then thousands of nats below the row's maximum."""
    q, k, v = operands(queries, 60, dtype)
    t = torch.full((4,), 1e-4, dtype=dtype, requires_grad=True)
    sinks = torch.tensor([1.0, 20.0, -1.0, -20.0], dtype=dtype)
    *_, max_logits, _ = attention_entropy(
        q, k, v, temperature=t, sinks=sinks, return_max_logits=True, backend=backend
    )
    (got,) = torch.autograd.grad(max_logits.sum(), t)
    # Of max_j s_j / t.
    torch.testing.assert_close(got, -max_logits.detach().sum((0, 2)) / t, rtol=1e-4, atol=0)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [2, 40])
def test_a_key_that_the_bias_hides_is_nothing_to_the_temperature(
    queries: int, backend: Any
) -> None:
    q, k, v = operands(queries, 50)
    t = (0.5 + torch.arange(4.0, dtype=torch.float64)).requires_grad_()
    bias = torch.zeros(queries, 50, dtype=torch.float64)
    bias[:, 3] = -math.inf
    *_, max_logits, _ = attention_entropy(
        q, k, v, temperature=t, bias=bias, return_max_logits=True, backend=backend
    )
    # The largest of s / t is max(s) / t, whose derivative is -max(s) / t^2.
    highest = scores_of(q, k, visible=bias == 0).amax(-1)
    (found,) = torch.autograd.grad(max_logits.sum(), t)
    torch.testing.assert_close(found, -highest.sum((0, 2)) / t.detach().square())


def largest(q: Tensor, k: Tensor, v: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    out, *_, max_logits, _ = attention_entropy(
        q, k, v, temperature=t, softcap=1.5, is_causal=True, return_max_logits=True
    )
    return out, max_logits


def test_second_derivatives_and_tangents_match_finite_differences() -> None:
    leaves = [draw(1, 2, 5, 3, seed=n).requires_grad_() for n in range(3)]
    leaves.append(torch.tensor([0.7, -1.1], dtype=torch.float64).requires_grad_())
    assert torch.autograd.gradcheck(largest, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(largest, leaves, fast_mode=True)


@pytest.mark.parametrize("mapped", [(0, 0, 0), (0, None, None)])
def test_vmap_is_a_loop(mapped: tuple[int | None, ...]) -> None:
    whole = [draw(3, 2, 2, 7, 4, seed=n) for n in range(3)]
    given = [x if dim == 0 else x[0] for x, dim in zip(whole, mapped, strict=True)]

    def function(*arguments: Tensor) -> tuple[Tensor, ...]:
        return attention_entropy(*arguments, return_max_logits=True)

    def gradient(*arguments: Tensor) -> tuple[Tensor, ...]:
        leaves = (0, 1, 2)
        return torch.func.grad(lambda *a: function(*a)[3].sin().sum(), leaves)(*arguments)

    for call in (function, gradient):
        results = torch.func.vmap(call, mapped)(*given)
        for i in range(3):
            one = [x[i] if dim == 0 else x for x, dim in zip(given, mapped, strict=True)]
            for got, want in zip(results, call(*one), strict=True):
                torch.testing.assert_close(got[i], want)


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_packed_sequences_name_keys_of_their_own(backend: Any) -> None:
    q, k, v = (x[:1].requires_grad_() for x in operands(90, 90))
    starts = torch.tensor([0, 2, 60, 60, 90], dtype=torch.int32)
    packed = attention_entropy(
        q, k, v, cu_seqlens=starts, is_causal=True, return_max_logits=True, backend=backend
    )
    parts = [
        attention_entropy(
            *(x[:, :, a:b] for x in (q, k, v)), is_causal=True, return_max_logits=True
        )
        for a, b in ((0, 2), (2, 60), (60, 90))
    ]
    apart = [torch.cat(x, 2) for x in zip(*parts, strict=True)]
    for got, want in zip(packed, apart, strict=True):
        torch.testing.assert_close(got, want)
    found = (torch.autograd.grad(x[3].sin().sum(), (q, k)) for x in (packed, apart))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)


def test_asking_for_them_changes_no_other_bit() -> None:
    for queries in (2, 70):
        q, k, v = operands(queries, 150, torch.float32)
        plain = attention_entropy(q, k, v, is_causal=True)
        more = attention_entropy(q, k, v, is_causal=True, return_max_logits=True)
        assert len(plain) == 3
        assert all(map(torch.equal, plain, more[:3]))


def test_the_compiler_returns_them_too() -> None:
    def call(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return attention_entropy(q, k, v, is_causal=True, return_max_logits=True)

    q, k, v = (x.requires_grad_() for x in operands(9, 9))
    compiled = torch.compile(call, backend="aot_eager", fullgraph=True)
    found = []
    for function in (call, compiled):
        results = function(q, k, v)
        found.append((*results, *torch.autograd.grad(results[3].sin().sum(), (q, k))))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want)
