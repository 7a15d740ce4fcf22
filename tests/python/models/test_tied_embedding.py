"""Embeddings and head that share one weight and one gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aero.models import AeroConfig, AeroForCausalLM
from aero.nn.linear import embed_tied

EREG = "EReg(SM(t)+ScFuFFN)"


def gradients(model: AeroForCausalLM, tokens: Tensor, **options: Any) -> dict[str, Tensor]:
    model.zero_grad()
    model(tokens, labels=tokens, **options).loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def node_names(loss: Tensor) -> set[str]:
    nodes, names = [loss.grad_fn], set()
    while nodes:
        node = nodes.pop()
        if node is not None:
            names.add(type(node).__name__)
            nodes += [following for following, _ in node.next_functions]
    return names


@pytest.fixture(name="model")
def _model() -> AeroForCausalLM:
    torch.manual_seed(0)
    return AeroForCausalLM(AeroConfig.from_label(EREG, model="tiny")).train()


def test_gradients_are_those_of_embedding_and_head_apart(model: AeroForCausalLM) -> None:
    tokens = torch.randint(256, (3, 32))
    shared = gradients(model, tokens)
    assert "_TiedEmbeddingBackward" in node_names(model(tokens, labels=tokens).loss)

    handle = model.transformer.wte.register_forward_hook(lambda *_: None)
    apart = gradients(model, tokens)
    assert "_TiedEmbeddingBackward" not in node_names(model(tokens, labels=tokens).loss)
    handle.remove()
    assert shared.keys() == apart.keys()
    for name, gradient in apart.items():
        torch.testing.assert_close(shared[name], gradient, rtol=1e-5, atol=1e-7)


def test_gradients_add_up_over_micro_batches_and_repeated_backwards(
    model: AeroForCausalLM,
) -> None:
    tokens = torch.randint(256, (2, 32))
    once = gradients(model, tokens)
    model.zero_grad()
    loss = model(tokens, labels=tokens).loss
    loss.backward(retain_graph=True)
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, 2 * once[name], rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("untied", ["other weight", "frozen", "no labels"])
def test_weights_that_are_not_shared_train_apart(model: AeroForCausalLM, untied: str) -> None:
    tokens = torch.randint(256, (2, 32))
    if untied == "other weight":
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    elif untied == "frozen":
        model.lm_head.weight.requires_grad_(False)
    output = model(tokens, labels=None if untied == "no labels" else tokens)
    assert "_TiedEmbeddingBackward" not in node_names(output.logits.sum())
    output.logits.sum().backward()


@pytest.mark.parametrize("used", ["embedded", "head", "both"])
def test_either_result_may_be_unused(used: str) -> None:
    weight = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor([[1, 1, 4], [0, 1, 4]])

    def value(embedded: Tensor, head: Tensor) -> Tensor:
        total = torch.zeros((), dtype=torch.float64)
        if used != "head":
            total = total + embedded.pow(2).sum()
        if used != "embedded":
            total = total + (head * torch.arange(15.0).view(5, 3)).sum()
        return total

    (got,) = torch.autograd.grad(value(*embed_tied(tokens, weight)), weight)
    (want,) = torch.autograd.grad(value(weight[tokens], weight), weight)
    torch.testing.assert_close(got, want)
