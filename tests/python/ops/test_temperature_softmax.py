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
