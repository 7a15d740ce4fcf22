"""The penalty is one term of the loss: its own loops, AERO's networks and stock models alike."""

import numpy as np
import pytest
import torch

import aero
from aero.models import EntropyPenalty

from .labels import tiny
from .stock_models import stock_model

PUBLISHED = {"weight": 1e-5, "tokens": 128 * 127}


def expected_term(layers, thresholds, predicted, *, margin, reduction, context):
    """By hand in float64: 1e-5 belongs to 16,256 predicted tokens."""
    entropies = np.stack([layer.detach().double().numpy() for layer in layers])  # [L, B, H, T]
    largest = np.log(context)
    if reduction == "query_mean":
        entropies = entropies.mean(axis=3, keepdims=True)
    deviations = entropies - thresholds * largest
    penalties = np.where(np.abs(deviations) > margin * largest, deviations**2, 0)
    if reduction == "query_mean":
        return 1e-5 * penalties.mean()
    return 1e-5 * 16_256 * penalties.mean(axis=(0, 2)).sum() / predicted


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_the_term_is_the_formula_of_the_published_weight(reduction):
    layers = [torch.rand(3, 2, 7) for _ in range(2)]
    penalty = EntropyPenalty(torch.full((2, 2), 0.3), margin=0.1, reduction=reduction)
    expected = expected_term(layers, 0.3, 18, margin=0.1, reduction=reduction, context=7)
    for predicted in (18, torch.tensor(18)):
        assert penalty.term(layers, predicted).item() == pytest.approx(expected, rel=1e-5)
    penalty.weight *= 2
    assert penalty.term(layers, 18).item() == pytest.approx(2 * expected, rel=1e-5)


def test_a_loop_of_ones_own_that_predicts_no_token_adds_nothing():
    layers = [torch.rand(3, 2, 7, requires_grad=True) for _ in range(2)]
    penalty = EntropyPenalty(torch.full((2, 2), 0.3), strengths="learned")
    for nothing in (0, torch.tensor(0)):
        term = penalty.term(layers, nothing)
        found = torch.autograd.grad(term, [*layers, *penalty.parameters()])
        assert term == 0 and all((gradient == 0).all() for gradient in found)


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_all_ways_to_train_add_the_same_term_to_their_loss(reduction):
    ids = torch.randint(16, (2, 9))
    rule = {"margin": 0.05, "reduction": reduction}
    stock = aero.with_entropy_penalty(stock_model("gpt2", "sdpa"), threshold=0.2, **rule)
    own = tiny(
        "EReg(SM+LN+G)", entropy_reduction=reduction, tolerance_margin=0.05, vocab_size=16,
        threshold_init=0.2,
    )  # fmt: skip
    context = own.config.spec.context_length
    for model, length in ((stock, 9), (own, context)):
        for training in (True, False):
            output = model.train(training)(ids, labels=ids, output_attentions=True)
            layers = output.attentions
            by_hand = expected_term(layers, 0.2, 16, context=length, **rule)
            assert output.penalty_nats.item() == pytest.approx(by_hand, rel=1e-4)
            assert by_hand > 1e-7
            loop = EntropyPenalty(
                torch.full((2, layers[0].shape[1]), 0.2), context_length=length, **rule, **PUBLISHED
            )
            assert torch.equal(loop.term(layers, 16), output.penalty_nats)
            together = output.lm_loss + output.penalty_nats if training else output.lm_loss
            assert torch.equal(output.loss, together)
            torch.testing.assert_close(output.penalty_nats, 1e-5 * output.entropy_loss)
