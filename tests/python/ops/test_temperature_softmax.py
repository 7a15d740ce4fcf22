"""Closed forms of temperature_softmax and its tie to attention_entropy."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from aero.ops import attention_entropy, temperature_softmax

FLOATS = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("keys", [1, 2, 64, 97])
def test_entropy_of_equal_scores_is_log_of_their_number(dtype: torch.dtype, keys: int) -> None:
    probabilities, entropy, logsumexp = temperature_softmax(
        torch.full((1, 1, 2, keys), 3.0, dtype=dtype)
    )
    assert torch.equal(probabilities, torch.full((1, 1, 2, keys), 1 / keys, dtype=dtype))
    expected = torch.full((1, 1, 2), math.log(keys), dtype=entropy.dtype)
    torch.testing.assert_close(entropy, expected, rtol=1e-6, atol=1e-7)
    torch.testing.assert_close(logsumexp, 3 + expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_entropy_of_one_high_score_is_zero(dtype: torch.dtype) -> None:
    scores = torch.zeros(1, 1, 1, 9, dtype=dtype)
    scores[..., 4] = 1000
    probabilities, entropy, _ = temperature_softmax(scores)
    assert entropy.item() == 0
    assert probabilities.flatten().tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 0]


def test_two_scores_have_the_binary_entropy() -> None:
    odds = torch.linspace(-5, 5, 21)
    scores = torch.stack([odds, torch.zeros(21)], dim=-1).view(1, 1, 21, 2)
    _, entropy, _ = temperature_softmax(scores)
    p = torch.sigmoid(odds.double())
    expected = -(torch.special.xlogy(p, p) + torch.special.xlogy(1 - p, 1 - p))
    torch.testing.assert_close(entropy.double().view(21), expected, rtol=1e-6, atol=1e-7)


def test_temperature_divides_the_scores() -> None:
    scores, t = draw(2, 3, 5, 7), 0.5 + draw(3, 5).abs()
    divided = temperature_softmax(scores / t[..., None])
    for got, want in zip(temperature_softmax(scores, temperature=t), divided, strict=True):
        torch.testing.assert_close(got, want)


def test_negative_temperature_prefers_the_lowest_score() -> None:
    scores = torch.tensor([[[[1.0, 2.0, 3.0]]]])
    probabilities, _, _ = temperature_softmax(scores, temperature=torch.tensor(-0.001))
    assert probabilities.flatten().tolist() == [1, 0, 0]


def test_given_scores_and_fused_attention_agree() -> None:
    q, k, v = draw(3, 2, 4, 21, 16)
    t = 0.5 + draw(4, 21).abs()
    scores = q @ k.transpose(-2, -1) / 4
    p, entropy, logsumexp = temperature_softmax(scores, temperature=t, is_causal=True)
    fused = attention_entropy(q, k, v, temperature=t, is_causal=True)
    for got, want in zip(fused, (p @ v, entropy, logsumexp), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_scores_of_minus_infinity_are_keys_that_are_not_seen() -> None:
    scores, dprobabilities = draw(2, 3, 5, 37), draw(3, 2, 5, 37).view(2, 3, 5, 37)
    hidden = draw(5, 37) > 0.3
    hidden[2] = True
    masked = scores.masked_fill(hidden, -math.inf)
    results, gradients = [], []
    for given, mask in ((masked, None), (scores, ~hidden)):
        leaf = given.detach().requires_grad_()
        out = temperature_softmax(leaf, temperature=torch.tensor([0.4, 2.0, 0.01]), mask=mask)
        results.append(out)
        gradients.append(torch.autograd.grad(out[:2], leaf, (dprobabilities, out[1].detach())))
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)
    assert torch.equal(*(g[0] for g in gradients))


def test_entropy_keeps_its_digits_where_all_scores_are_large() -> None:
    """At t = 0.01 scores near 1000 become 1e5, whose last digit in float32 is 0.008."""
    scores = 1000 + 0.01 * draw(1, 1, 20, 50)
    t = torch.tensor(0.01)
    _, entropy, _ = temperature_softmax(scores, temperature=t)
    _, exact, _ = temperature_softmax(scores.double(), temperature=t.double())
    torch.testing.assert_close(entropy.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("dtype", "size"), [(torch.float32, 2912), (torch.bfloat16, 4112)])
def test_results_larger_than_the_caches_are_right(
    dtype: torch.dtype, size: int, is_causal: bool
) -> None:
    """From 32 MB on results are stored past the caches, by instructions of their own."""
    scores, cotangent = (draw(1, 1, size, size + extra)[..., :size] for extra in (0, 16))
    leaf = scores.to(dtype).requires_grad_()
    probabilities, _, _ = temperature_softmax(leaf, is_causal=is_causal)
    (gradient,) = torch.autograd.grad(probabilities, leaf, cotangent.to(dtype))
    wide = leaf.detach().float().requires_grad_()
    hidden = torch.ones(size, size, dtype=torch.bool).triu(1) & is_causal
    want = torch.softmax(wide.masked_fill(hidden, -math.inf), dim=-1)
    (want_gradient,) = torch.autograd.grad(want, wide, cotangent.to(dtype).float())
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(probabilities.float(), want, rtol=eps + 1e-5, atol=1e-7)
    torch.testing.assert_close(gradient.float(), want_gradient, rtol=eps + 1e-3, atol=1e-6)
