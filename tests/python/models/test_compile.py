import copy

import pytest
import torch

from aero.models.head_penalty import penalty_in_loss
from aero.models.loss import next_token_loss

from .labels import tiny

LABELS = [
    "EReg(SM(t)+ScFuFFN)",
    "SM+LN+G",
    "SM+FN+ScFuFFN",
    "SM+WNFFN(qk+ffn)",
    "SM+SNFFN",
    "SM+LR(global)",
    "SM+ScFuFFN+C4",
    "SM+FN+R+D3",
    "SOTA:SM+LN+R",
]


def _loss_and_gradients(model, tokens):
    output = model(tokens, labels=tokens, num_items_in_batch=tokens[:, 1:].numel())
    output.loss.backward()
    return output, {name: p.grad for name, p in model.named_parameters()}


@pytest.mark.parametrize("label", LABELS)
def test_training_compiles_into_one_graph(label):
    torch._dynamo.reset()
    model = tiny(label, tolerance_margin=0.0, temperature_init=0.5).train()
    twin = copy.deepcopy(model)
    tokens = torch.randint(256, (2, 32))
    expected, expected_gradients = _loss_and_gradients(twin, tokens)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    output = compiled(tokens, labels=tokens, num_items_in_batch=62)
    output.loss.backward()
    torch.testing.assert_close(output.loss, expected.loss)
    torch.testing.assert_close(output.entropies[1], expected.entropies[1], rtol=1e-4, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(
            parameter.grad, expected_gradients[name], rtol=1e-4, atol=1e-5, msg=name
        )
    for name, buffer in twin.named_buffers():
        torch.testing.assert_close(dict(model.named_buffers())[name], buffer, msg=name)


def test_training_compiles_with_inductor():
    torch._dynamo.reset()
    model = tiny("EReg(SM(t)+ScFuFFN)", tolerance_margin=0.0, temperature_init=0.5).train()
    twin = copy.deepcopy(model)
    tokens = torch.randint(256, (2, 32))
    expected, expected_gradients = _loss_and_gradients(twin, tokens)
    output, gradients = _loss_and_gradients(torch.compile(model, fullgraph=True), tokens)
    torch.testing.assert_close(output.loss, expected.loss)
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(
            gradients[f"_orig_mod.{name}"], gradient, rtol=1e-4, atol=1e-5, msg=name
        )


def test_padded_training_compiles_with_dynamic_lengths():
    torch._dynamo.reset()
    model = tiny("EReg(SM(t)+FN+ScFuFFN)").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    # One graph for all; at the width, 32, the sizes that happen to be equal make another.
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (12, 20, 31):
            tokens = torch.randint(256, (2, length))
            mask = torch.ones_like(tokens)
            mask[0, -3:] = 0
            twin = copy.deepcopy(model)
            expected = twin(tokens, attention_mask=mask, labels=tokens).loss
            actual = compiled(tokens, attention_mask=mask, labels=tokens).loss
            torch.testing.assert_close(actual, expected)


def test_a_compiled_loss_without_a_counted_token_has_gradients_of_zero():
    labels = torch.full((2, 6), -100)

    def loss_of(logits, entropies, thresholds, bias, count):
        predicted = labels[:, 1:].ne(-100).sum()
        rule = {"weight": 1.0, "margin": 0.0, "strength_bias": bias, "max_entropy": "log_visible"}
        rule |= {"visible_keys": None, "context_length": None}
        _, term = penalty_in_loss(
            [entropies], thresholds, predicted, count, reduction="position_sum", **rule
        )
        return next_token_loss(logits, labels, count) + term

    torch._dynamo.reset()
    compiled = torch.compile(loss_of, fullgraph=True, backend="aot_eager")
    shapes = ((2, 6, 9), (2, 3, 6), (1, 3), (1, 3))
    given = [torch.rand(shape, requires_grad=True) for shape in shapes]
    for count in (None, torch.tensor(0)):
        loss = compiled(*given, count)
        assert loss == 0
        assert all((found == 0).all() for found in torch.autograd.grad(loss, given))
