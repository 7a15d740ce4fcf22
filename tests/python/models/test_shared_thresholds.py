"""The first layer's thresholds for the heads of all layers, as the second paper's code has them."""

import dataclasses

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from aero.conversion import convert
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.one_run import model_config
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs

from ..ops import oracle

EREG = "EReg(SM(t)+ScFuFFN)"


def network(**fields):
    torch.manual_seed(0)
    config = AeroConfig.from_label(EREG, model="tiny", entropy_thresholds="shared", **fields)
    model = AeroForCausalLM(config).train()
    with torch.no_grad():
        for layer, block in enumerate(model.transformer.h):
            block.attn.entropy_threshold.copy_(torch.rand(config.spec.num_heads) + layer)
    return model


def penalty_by_the_formula(model, entropies, thresholds):
    """Over float64 entropies [L, B, H, T], with the thresholds [H] of one layer for all."""
    config = model.config
    return sum(
        oracle.entropy_regularization(
            layer[None],
            thresholds[None],
            visible_keys=torch.arange(1, layer.shape[-1] + 1).expand(layer.shape[0], -1),
            row_mask=torch.ones(layer.shape[0], layer.shape[-1], dtype=torch.bool),
            margin=config.tolerance_margin,
            max_entropy=config.max_entropy,
            context_length=config.spec.context_length,
            reduction=config.entropy_reduction,
        )
        for layer in entropies
    ) / len(entropies)


def test_every_layer_is_held_to_the_thresholds_of_the_first():
    model = network(entropy_tokens=2 * 8)  # as many as are predicted here
    ids = torch.randint(model.config.spec.vocab_size, (2, 9))
    outputs = model(ids, labels=ids)
    first = model.transformer.h[0].attn.entropy_threshold
    entropies = torch.stack(outputs.entropies).detach().double()
    expected = penalty_by_the_formula(model, entropies, first.detach().double())
    assert outputs.entropy_loss.item() == pytest.approx(expected.item(), rel=1e-4)
    own = AeroForCausalLM(AeroConfig.from_label(EREG, model="tiny", entropy_tokens=16)).train()
    own.load_state_dict(model.state_dict())
    assert own(ids, labels=ids).entropy_loss.item() != pytest.approx(expected.item(), rel=1e-2)


def test_the_first_layers_learn_from_all_and_the_others_stay():
    model = network(entropy_weight=10.0)
    ids = torch.randint(model.config.spec.vocab_size, (2, 9))
    model(ids, labels=ids).loss.backward()
    first, *others = (block.attn.entropy_threshold.grad for block in model.transformer.h)
    assert first.abs().min() > 0
    assert all(torch.equal(grad, torch.zeros_like(grad)) for grad in others)


def test_what_a_network_tells_and_saves_are_the_shared_ones(tmp_path):
    model = network()
    told = model.head_thresholds()
    first = model.transformer.h[0].attn.entropy_threshold.tolist()
    assert told.tolist() == [pytest.approx(first)] * model.config.spec.num_layers
    model.save_pretrained(tmp_path)
    loaded = AeroForCausalLM.from_pretrained(tmp_path)
    assert loaded.config.entropy_thresholds == "shared"
    assert loaded.head_thresholds().tolist() == told.tolist()
    kept = convert(loaded, "EReg(SM(t)+ScFuFFN_i1)")
    assert kept.config.entropy_thresholds == "shared"
    own = convert(loaded, EREG, entropy_thresholds="layer").head_thresholds()
    assert own[1].tolist() != own[0].tolist()


def test_the_setting_of_a_recipe_reaches_the_network(tmp_path):
    recipe = load_recipe("demo", settings=["regularization.thresholds=shared"])
    assert dataclasses.asdict(recipe.regularization)["thresholds"] == "shared"
    (run,) = plan_runs(recipe, [EREG], [0], output=tmp_path)
    assert model_config(run).entropy_thresholds == "shared"


def test_a_model_of_transformers_is_not_given_them_in_place():
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 8, "vocab_size": 9}
    model = GPT2LMHeadModel(GPT2Config(**sizes, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0))
    with pytest.raises(ValueError, match="entropy_thresholds"):
        convert(model, "EReg(SM+LN+G)", inplace=True, entropy_thresholds="shared")
    assert not hasattr(model, "entropy_penalty")
