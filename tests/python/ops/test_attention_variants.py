"""What `attention_entropy` computes beside the plain form; the oracle judges it in the samples."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from tests.python.refusals import assert_refused
from torch import Tensor

from aero.ops import attention_entropy

from . import oracle


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def band(queries: int, keys: int, left: int, right: int) -> Tensor:
    ahead = torch.arange(keys) - torch.arange(queries)[:, None] - (keys - queries)
    return (-left <= ahead) & (ahead <= right)


# --- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("queries", "keys"), [(300, 300), (70, 200), (200, 70), (3, 500)])
@pytest.mark.parametrize("window", [(0, 0), (63, 0), (64, 5), (1, 130), (1000, 0)])
@pytest.mark.parametrize("threads", [1, 8])
def test_a_window_is_the_mask_of_its_band(
    queries: int, keys: int, window: tuple[int, int], threads: int
) -> None:
    q, k, v = draw(1, 4, queries, 24), draw(1, 2, keys, 24, seed=1), draw(1, 2, keys, 24, seed=2)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        found = []
        for how in ({"window": window}, {"mask": band(queries, keys, *window)}):
            results = attention_entropy(q, k, v, **how)
            found.append(
                (*results, *torch.autograd.grad(results[0].sum() + results[1].sum(), leaves))
            )
    finally:
        torch.set_num_threads(before)
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=2e-5, rtol=1e-5)


def test_a_window_without_bounds_changes_nothing() -> None:
    q, k, v = draw(3, 1, 2, 90, 16)
    for unbounded in ((None, None), (1 << 50, 1 << 50)):
        got = attention_entropy(q, k, v, window=unbounded)
        assert all(map(torch.equal, got, attention_entropy(q, k, v)))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("window", window) for window in ((-1, 0), (0, -1), (1,), (1, 2, 3))),
        *(("softcap", cap) for cap in (0.0, -1.0, math.inf, math.nan)),
        *(("dropout_p", p) for p in (-0.1, 1.0, math.nan)),
    ],
)
def test_values_that_are_none_are_refused(name: str, value: Any, backend: Any) -> None:
    q, k, v = draw(3, 1, 2, 9, 16)
    call = partial(attention_entropy, q, k, v, backend=backend, **{name: value})
    assert_refused(call, f"attention_entropy: {name} must be", "got")


# --- scores -------------------------------------------------------------------------------------


def test_the_cap_bounds_scores_before_the_temperature_divides_them() -> None:
    q, k = torch.full((1, 1, 1, 1), 1000.0), torch.tensor([[[[1.0], [-1.0]]]])
    t = torch.tensor(0.5)
    _, _, logsumexp = attention_entropy(q, k, k, softcap=3.0, temperature=t)
    assert math.isclose(logsumexp.item(), math.log(math.exp(6) + math.exp(-6)), rel_tol=1e-6)


@pytest.mark.parametrize("queries", [3, 40])
def test_a_bias_of_minus_infinity_hides_as_a_mask_does(queries: int) -> None:
    q, k, v = draw(1, 2, queries, 16), draw(1, 2, 50, 16, seed=1), draw(1, 2, 50, 16, seed=2)
    mask = draw(queries, 50, seed=3) > 0
    mask[1] = False
    bias = torch.zeros(queries, 50).masked_fill(~mask, -math.inf)
    t = torch.tensor([-0.5, 0.5])
    hidden = attention_entropy(q, k, v, mask=mask, temperature=t)
    for how in ({"bias": bias}, {"mask": bias}):
        for backend in ("native", "reference"):
            got = attention_entropy(q, k, v, temperature=t, backend=backend, **how)
            torch.testing.assert_close(got, hidden)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [3, 40])
def test_the_least_number_is_a_score_like_any_other(queries: int, backend: Any) -> None:
    """As masks of models have it: a row of nothing else is an even one, as torch's is."""
    q, k, v = draw(1, 2, queries, 16), draw(1, 2, 50, 16, seed=1), draw(1, 2, 50, 16, seed=2)
    mask = draw(queries, 50, seed=3) > 0
    mask[1] = False
    bias = torch.zeros(queries, 50).masked_fill(~mask, torch.finfo(torch.float32).min)
    out, entropy, _ = attention_entropy(q, k, v, bias=bias, backend=backend)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(entropy[:, :, 1], torch.full((1, 2), math.log(50)))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize(
    ("dtype", "of_both"),
    [(torch.bfloat16, torch.bfloat16), (torch.float16, torch.float16),
     (torch.float64, torch.float32)],
    ids=str,
)  # fmt: skip
def test_a_mask_of_numbers_and_a_bias_are_added_in_the_dtype_of_the_entropy(
    dtype: torch.dtype, of_both: torch.dtype, backend: Any
) -> None:
    q, k, v = (draw(1, 2, n, 4).to(dtype) for n in (6, 9, 9))
    bias, mask = 30 * draw(6, 9).to(of_both), 30 * draw(2, 6, 9).to(of_both)
    exact = oracle.attention_entropy(
        q.double(), k.double(), v.double(), bias=bias.double(), mask=mask.double()
    )
    results = attention_entropy(q, k, v, bias=bias, mask=mask, backend=backend)
    allowed = 1e-12 if dtype == torch.float64 else 1e-6
    for got, want in zip(results[1:], exact[1:], strict=True):
        torch.testing.assert_close(got.double(), want, rtol=allowed, atol=20 * allowed)


def test_a_mask_of_numbers_adds_to_the_bias_and_has_no_gradient() -> None:
    q, k, v = draw(3, 1, 2, 9, 16)
    one, other = draw(9, 9, seed=1), draw(2, 1, 9, seed=2)
    got = attention_entropy(q, k, v, mask=one, bias=other)
    torch.testing.assert_close(got, attention_entropy(q, k, v, bias=one + other))
    with pytest.raises(ValueError, match="mask must have no gradient"):
        attention_entropy(q, k, v, mask=one.requires_grad_())


def test_a_fine_bias_keeps_its_digits_beside_narrow_queries(relative_error: Any) -> None:
    q, k, v = draw(3, 1, 2, 40, 16).bfloat16()
    bias = 300 * draw(40, 40, seed=1)
    got = attention_entropy(q, k, v, bias=bias)
    exact = oracle.attention_entropy(q.double(), k.double(), v.double(), bias=bias.double())
    assert relative_error(got[2], exact[2]) < 1e-6
    rounded = attention_entropy(q, k, v, bias=bias.bfloat16())
    assert relative_error(rounded[2], exact[2]) > 1e-4


def test_slopes_count_from_the_newest_key() -> None:
    q, k, v = torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 7, 8), draw(1, 2, 7, 8)
    slopes = torch.tensor([0.5, 2.0])
    _, _, logsumexp = attention_entropy(q, k, v, alibi_slopes=slopes, is_causal=True)
    for i in range(3):
        distances = torch.arange(4 + i, -1, -1.0)
        wanted = torch.logsumexp(-slopes[:, None] * distances, -1)
        torch.testing.assert_close(logsumexp[0, :, i], wanted)


# --- sinks --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("queries", [5, 33])  # odd: bfloat16 takes queries in pairs
def test_steep_slopes_upwards_have_finite_gradients(queries: int, dtype: torch.dtype) -> None:
    q, k, v = (draw(1, 1, queries, 8, seed=seed).to(dtype).requires_grad_() for seed in range(3))
    slopes = torch.tensor([-300.0])  # each query sees the oldest key alone
    out = attention_entropy(q, k, v, is_causal=True, alibi_slopes=slopes)[0]
    out.float().sum().backward()
    assert torch.equal(out[0, 0], v[0, 0, :1].expand(queries, 8))
    assert v.grad is not None and k.grad is not None
    assert v.grad[0, 0, 0].tolist() == [float(queries)] * 8 and not v.grad[0, 0, 1:].any()
    assert k.grad.isfinite().all()


@pytest.mark.parametrize("queries", [2, 30])
def test_a_sink_of_zero_is_the_softmax_off_by_one(queries: int) -> None:
    q, k, v = (x.double() for x in (draw(1, 2, queries, 8), draw(1, 2, 30, 8), draw(1, 2, 30, 8)))
    out, _, logsumexp = attention_entropy(q, k, v, sinks=torch.zeros(2, dtype=torch.float64))
    weights = (q @ k.mT / math.sqrt(8)).exp()
    torch.testing.assert_close(out, weights @ v / (1 + weights.sum(-1, keepdim=True)))
    torch.testing.assert_close(logsumexp, (1 + weights.sum(-1)).log())


@pytest.mark.parametrize("queries", [2, 30])
def test_a_sink_of_minus_infinity_is_none(queries: int) -> None:
    q, k, v = draw(1, 2, queries, 8), draw(1, 2, 30, 8, seed=1), draw(1, 2, 30, 8, seed=2)
    mask = draw(1, 2, queries, 30, seed=3) > 0
    mask[:, :, 1] = False
    got = attention_entropy(q, k, v, sinks=torch.full((2,), -math.inf), mask=mask)
    torch.testing.assert_close(got, attention_entropy(q, k, v, mask=mask))


@pytest.mark.parametrize("shape", [(), (1,), (6,), (3, 1), (2, 1, 1, 1), (1, 2, 3, 6)], ids=str)
def test_sinks_stand_beside_masks_of_every_shape(shape: tuple[int, ...]) -> None:
    tensors = {n: draw(2, 2, n_rows, 4, seed=n_rows) for n, n_rows in (("q", 3), ("k", 6))}
    tensors |= {"v": draw(2, 2, 6, 4, seed=1), "sinks": draw(2)}
    mask = draw(*shape, seed=2) > -1
    exact, _ = oracle.run("attention_entropy", tensors, {"mask": mask})
    for backend in ("native", "reference"):
        found = attention_entropy(**tensors, mask=mask, backend=backend)
        for got, wanted in zip(found, exact, strict=True):
            torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=1e-5)
    doubles = [tensors[n].double().requires_grad_() for n in ("q", "k", "v", "sinks")]
    assert torch.autograd.gradgradcheck(
        lambda q, k, v, sinks: attention_entropy(q, k, v, sinks=sinks, mask=mask)[:2], doubles
    )


def test_a_row_of_a_sink_alone_has_no_entropy_and_returns_its_logit() -> None:
    q, k, v = draw(1, 2, 9, 8), draw(1, 2, 4, 8), draw(1, 2, 4, 8)
    sinks = torch.tensor([0.3, -2.0], requires_grad=True)
    out, entropy, logsumexp = attention_entropy(q, k, v, sinks=sinks, is_causal=True)
    assert torch.equal(out[:, :, :5], torch.zeros(1, 2, 5, 8))
    assert torch.equal(entropy[:, :, :5], torch.zeros(1, 2, 5))
    torch.testing.assert_close(logsumexp[0, :, :5], sinks[:, None].expand(2, 5))
    (dsinks,) = torch.autograd.grad(logsumexp[:, :, :5].sum(), sinks)
    torch.testing.assert_close(dsinks, torch.full((2,), 5.0))


# --- transforms ---------------------------------------------------------------------------------


def everything(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor, slopes: Tensor, sinks: Tensor
) -> Tensor:
    torch.manual_seed(1)
    out, entropy, logsumexp = attention_entropy(
        q, k, v, bias=bias, alibi_slopes=slopes, sinks=sinks, softcap=2.0, window=(3, 1)
    )
    return (out.sin().sum() + entropy.square().sum() + logsumexp.cos().sum()).double()


def arguments(*batch: int) -> list[Tensor]:
    shapes = [(2, 2, 5, 3), (2, 1, 7, 3), (2, 1, 7, 3), (2, 1, 7), (2,), (2, 2)]
    return [draw(*batch, *shape, seed=i).double() for i, shape in enumerate(shapes)]


def test_second_derivatives_of_all_variants_match_finite_differences() -> None:
    leaves = [x.requires_grad_() for x in arguments()]
    assert torch.autograd.gradgradcheck(everything, leaves, fast_mode=True)


@pytest.mark.parametrize("mapped", [(0,) * 6, (0, 0, 0, None, None, None), (None,) * 5 + (0,)])
def test_vmap_of_gradients_is_a_loop_over_them(mapped: tuple[int | None, ...]) -> None:
    given = [x if dim == 0 else x[0] for x, dim in zip(arguments(3), mapped, strict=True)]
    gradient = torch.func.grad(everything, argnums=tuple(range(6)))
    got = torch.func.vmap(gradient, mapped, randomness="same")(*given)
    for i in range(3):
        one = gradient(*(x[i] if dim == 0 else x for x, dim in zip(given, mapped, strict=True)))
        torch.testing.assert_close([x[i] for x in got], list(one))


def test_tangents_are_those_of_the_reference() -> None:
    given = tuple(arguments())
    directions = tuple(arguments()[::-1][::-1])
    _, tangent = torch.func.jvp(everything, given, directions)
    step = 1e-6
    ahead, behind = (
        everything(*(x + s * d for x, d in zip(given, directions, strict=True)))
        for s in (step, -step)
    )
    torch.testing.assert_close(tangent, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-6)


def test_a_compiled_call_of_all_variants_is_the_eager_one() -> None:
    leaves = [x.requires_grad_() for x in arguments()]
    compiled = torch.compile(everything, backend="aot_eager", fullgraph=False)
    got, wanted = (
        torch.autograd.grad(function(*leaves), leaves) for function in (compiled, everything)
    )
    torch.testing.assert_close(got, wanted)
