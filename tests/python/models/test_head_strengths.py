"""Learned strengths of the entropy penalty, a number per head, against their formulas."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import aero
from aero import ops
from aero.conversion import convert
from aero.models import AeroConfig, AeroForCausalLM
from aero.models.head_penalty import penalty_of_heads, strengths_of
from aero.models.initialization import decay_parameter_names
from aero.train.one_run import model_config
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs

from ..ops import oracle

EREG = "EReg(SM(t)+ScFuFFN)"
RULE = {"margin": 0.05, "max_entropy": "log_visible", "context_length": None}


def case(layers=2, batch=3, heads=4, queries=5):
    generator = torch.Generator().manual_seed(3)

    def random(*shape):
        return torch.rand(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    entropies, thresholds = random(layers, batch, heads, queries), random(layers, heads)
    keys = torch.arange(1, queries + 1).repeat(batch, 1)
    keys[0, :2] = 0  # padding
    return entropies, thresholds, random(layers, heads), keys


def fixed(penalties):
    """Entropies and a rule by which the heads of one layer have these penalties."""
    entropies = torch.tensor(penalties, dtype=torch.float64).sqrt().view(1, -1, 1)
    rule = {"context_length": 9, "margin": 0.0}
    thresholds = torch.zeros(1, len(penalties), dtype=torch.float64)
    return (entropies,), thresholds, rule | {"max_entropy": "log_context"}


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_value_and_gradients_are_those_of_the_formula(reduction):
    entropies, thresholds, bias, keys = case()
    rule = {**RULE, "reduction": reduction}
    found = penalty_of_heads(
        [*entropies.unbind()], thresholds, bias, visible_keys=(keys, keys), **rule
    )
    gradients = torch.autograd.grad(found, (entropies, thresholds, bias))

    of_head = [
        oracle.entropy_regularization(
            entropies[layer : layer + 1, :, head : head + 1],
            thresholds[layer, head].view(1, 1),
            visible_keys=keys,
            row_mask=keys > 0,
            **rule,
        )
        for layer in range(2)
        for head in range(4)
    ]
    penalties = torch.stack(of_head)
    p = penalties.detach().numpy()
    b = bias.detach().numpy().ravel()
    strengths = 8 * np.exp(b) / np.exp(b).sum()
    value = (strengths * p).mean() - p.mean() * np.log(strengths).mean()
    assert found.item() == pytest.approx(value, rel=1e-12)
    weighted = (torch.from_numpy(strengths) * penalties).mean()
    for got, expected in zip(
        gradients, torch.autograd.grad(weighted, (entropies, thresholds)), strict=False
    ):
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=1e-14)
    mean, held = p.mean(), (strengths * p).mean()
    expected = (strengths * (p - held + mean) - mean) / 8
    np.testing.assert_allclose(gradients[2].numpy().ravel(), expected, rtol=1e-10, atol=1e-15)
    assert abs(expected).max() > 1e-3


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_equal_strengths_are_the_fused_penalty(reduction):
    entropies, thresholds, bias, keys = case()
    rule = {**RULE, "reduction": reduction}
    fused = ops.entropy_regularization(
        entropies, thresholds, visible_keys=keys, row_mask=keys > 0, **rule
    )
    layers = [*entropies.unbind()]
    for same in (None, torch.full_like(bias, 7.0)):
        found = penalty_of_heads(layers, thresholds, same, visible_keys=(keys, keys), **rule)
        torch.testing.assert_close(found, fused, rtol=1e-12, atol=0)


def test_no_strength_falls_to_zero_and_they_rest_where_the_derivation_says():
    penalties = np.array([0.0, 0.0, 0.5, 1.0, 40.0, 0.1])
    entropies, thresholds, rule = fixed(penalties)
    bias = torch.zeros(1, 6, dtype=torch.float64, requires_grad=True)
    for _ in range(4000):
        loss = penalty_of_heads(entropies, thresholds, bias, reduction="position_sum", **rule)
        (gradient,) = torch.autograd.grad(loss, bias)
        with torch.no_grad():
            bias -= 0.5 * gradient
    assert gradient.abs().max() < 1e-9
    found = strengths_of(bias.detach()).numpy().ravel()
    mean, held = penalties.mean(), (found * penalties).mean()
    np.testing.assert_allclose(found, mean / (penalties - held + mean), rtol=1e-6)
    assert (found >= 1 / (1 + penalties / mean) - 1e-9).all() and found.mean() == pytest.approx(1)
    assert found.argmin() == 4
    # At a strength of almost zero the force back is the mean penalty over the heads.
    bias = torch.tensor([[0.0, 0.0, 0.0, 0.0, -40.0, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = penalty_of_heads(entropies, thresholds, bias, reduction="position_sum", **rule)
    (gradient,) = torch.autograd.grad(loss, bias)
    assert gradient[0, 4].item() == pytest.approx(-mean / 6, rel=1e-9)


def test_parts_of_a_batch_sum_to_its_gradient():
    entropies, thresholds, bias, _ = case()
    rule = {**RULE, "reduction": "position_sum"}

    def gradient(rows):
        part = [layer[rows] for layer in entropies]
        return torch.autograd.grad(penalty_of_heads(part, thresholds, bias, **rule), bias)[0]

    whole = gradient(slice(None))
    torch.testing.assert_close(gradient(slice(0, 1)) + gradient(slice(1, 3)), whole)


def network(**fields):
    torch.manual_seed(0)
    config = AeroConfig.from_label(
        EREG, model="tiny", entropy_strengths="learned", threshold_init=0.1, **fields
    )
    return AeroForCausalLM(config)


def test_a_network_learns_saves_and_exports_its_strengths(tmp_path):
    model = network(entropy_weight=1.0).train()
    assert model.head_strengths().tolist() == [[1.0] * model.config.spec.num_heads] * 2
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tokens = torch.randint(256, (2, 16), generator=torch.Generator().manual_seed(1))
    for _ in range(2):
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    learned = model.eval().head_strengths()
    assert learned.mean() == pytest.approx(1) and np.ptp(learned) > 0.01
    assert "strength_bias" not in decay_parameter_names(model)

    model.save_pretrained(tmp_path / "model")
    loaded = AeroForCausalLM.from_pretrained(tmp_path / "model")
    assert loaded.config.entropy_strengths == "learned"
    assert np.array_equal(loaded.head_strengths(), learned)
    expected = model(tokens, labels=tokens)
    assert torch.equal(loaded(tokens, labels=tokens).entropy_loss, expected.entropy_loss)

    # Parameters of training alone are in no description of the network and in its remote code.
    aero.export_weights(model, tmp_path / "weights")
    assert not [
        n for n in load_file(tmp_path / "weights" / "weights.safetensors") if "strength" in n
    ]
    aero.export_remote_code(model, tmp_path / "remote")
    code = AutoModelForCausalLM.from_pretrained(tmp_path / "remote", trust_remote_code=True)
    assert np.array_equal(code.head_strengths(), learned)

    same = convert(model, EREG, entropy_weight=0.5)
    assert np.array_equal(same.head_strengths(), learned)
    assert convert(model, EREG, entropy_strengths="equal").head_strengths() is None
    plain = convert(model, "SM(t)+ScFuFFN")
    assert plain.strength_bias is None and plain.head_strengths() is None


def test_what_a_file_lacks_starts_equal(tmp_path):
    config = AeroConfig.from_label(EREG, model="tiny")
    AeroForCausalLM(config).save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path, entropy_strengths="learned")
    assert loaded.head_strengths().tolist() == [[1.0] * loaded.config.spec.num_heads] * 2
    with pytest.raises(ValueError, match="entropy_strengths must be one of equal, learned, got 1"):
        AeroConfig.from_label(EREG, model="tiny", entropy_strengths=1)


def test_a_stock_model_goes_on_with_the_strengths_it_saved(tmp_path):
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 9, "attn_pdrop": 0.0}
    model = aero.with_entropy_penalty(
        GPT2LMHeadModel(GPT2Config(**sizes)), strengths=[[1.0, 3.0], [2.0, 2.0]], weight=1.0
    )
    penalty = model.entropy_penalty
    start = [[0.5, 1.5], [1.0, 1.0]]
    torch.testing.assert_close(strengths_of(penalty.strength_bias), torch.tensor(start))
    assert "entropy_penalty.strength_bias" not in decay_parameter_names(model)
    tokens = torch.tensor([[1, 2, 3, 4]])
    model.train()(tokens, labels=tokens).loss.backward()
    assert penalty.strength_bias.grad.abs().max() > 0
    model.save_pretrained(tmp_path)
    assert model.config.entropy_penalty["strengths"] == pytest.approx(np.array(start))
    again = aero.with_entropy_penalty(GPT2LMHeadModel.from_pretrained(tmp_path))
    torch.testing.assert_close(
        strengths_of(again.entropy_penalty.strength_bias), torch.tensor(start)
    )
    assert "strengths='learned'" in repr(again.entropy_penalty)


@pytest.mark.parametrize(
    "strengths", ["strong", None, [[1.0, 0.0]], [[1.0, float("nan")]], [1.0, 1.0]]
)
def test_strengths_that_cannot_be_are_one_line(strengths):
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 9, "attn_pdrop": 0.0}
    model = GPT2LMHeadModel(GPT2Config(**sizes))
    message = r"strengths must be 'equal', 'learned' or \[L, H\] = \[1, 2\] numbers above 0, got "
    with pytest.raises(ValueError, match=message):
        aero.with_entropy_penalty(model, strengths=strengths)


def test_a_recipe_asks_for_strengths(tmp_path):
    recipe = load_recipe("demo", settings=["regularization.head_strengths=learned"])
    (run,) = plan_runs(recipe, [EREG], [0], output=tmp_path)
    assert model_config(run).entropy_strengths == "learned"
