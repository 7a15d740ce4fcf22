"""The first scores of a network show how it starts, and asking for them changes nothing."""

import math

import pytest
import torch

from aero import AeroConfig, AeroForCausalLM
from aero.nn import FoldableNorm
from aero.train.recipes.recipe_files import load_recipe
from aero.train.starting import DEGENERATE, first_scores_warning, score_deviations
from aero.train.training import train_runs

from .conftest import metrics, plan_one, tiny_settings

WIDTH, WEIGHTS = 128, 0.02


def network(label, **fields):
    torch.manual_seed(1)
    sizes = {"model": "mini", "num_layers": 2, "vocab_size": 512}
    return AeroForCausalLM(AeroConfig.from_label(label, **(sizes | fields)))


def tokens(*, seed=2):
    return torch.randint(512, (4, 128), generator=torch.Generator().manual_seed(seed))


def first_layer_scores(model, ids):
    """Deviation within rows of q k / sqrt(D), from the embeddings of a network without norms."""
    stream = (
        model.config.embedding_scale * model.transformer.wte(ids) + model.transformer.wpe.weight
    )
    attention = model.transformer.h[0].attn
    q, k, _ = attention.c_attn(stream).view(4, 128, 3, 4, 32).permute(2, 0, 3, 1, 4)
    scores = q @ k.transpose(-1, -2) / math.sqrt(32)
    rows = [scores[..., row, : row + 1].var(-1, unbiased=False) for row in range(1, 128)]
    return float(torch.stack(rows).mean().sqrt())


@pytest.mark.parametrize("scale", [10.0, 50.0, 100.0])
def test_the_deviation_read_from_entropies_is_that_of_the_scores(scale):
    model = network("SM+ScFuFFN", embedding_scale=scale)
    with torch.no_grad():
        scores = first_layer_scores(model, tokens())
    assert score_deviations(model, tokens())[0] == pytest.approx(scores, rel=0.03)


@pytest.mark.parametrize("label", ["SM+LN+G", "SM+FN+ScFuFFN", "SM+FN+R"])
def test_norms_make_it_width_times_weights_squared(label):
    for deviation in score_deviations(network(label), tokens()):
        assert deviation == pytest.approx(WIDTH * WEIGHTS**2, rel=0.2)


def test_asking_leaves_statistics_mode_and_random_state_alone():
    model = network("SM+FN+R").eval()
    before = {name: value.clone() for name, value in model.named_buffers()}
    state = torch.random.get_rng_state()
    score_deviations(model, tokens())
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert not any(module.training for module in model.modules())
    assert any(isinstance(module, FoldableNorm) for module in model.modules())


def warning(model):
    return first_scores_warning(model, score_deviations(model, tokens()))


@pytest.mark.parametrize("label", ["SM+ScFuFFN", "EReg(SM(t)+ScFuFFN)", "SM+G"])
def test_a_start_without_norm_and_scale_warns_and_names_the_scale(label):
    said = warning(network(label))
    assert "no norm enlarges embeddings of deviation 0.02" in said
    assert said.endswith("--set model.embedding_scale=unit mends it")
    assert warning(network(label, embedding_scale=50.0)) is None


def test_dynamic_norms_want_a_scale_and_then_larger_weights():
    assert warning(network("SM+DyT+G")).endswith("--set model.embedding_scale=unit mends it")
    scaled = warning(network("SM+DyT+G", embedding_scale=50.0))
    assert scaled.endswith("--set model.initializer_range=0.088 mends it")
    scales = {"embedding_scale": 1 / 0.088, "initializer_range": 0.088}
    assert warning(network("SM+DyT+G", **scales)) is None
    hot = warning(network("SM(t)+DyT+G", temperature_init=100.0, **scales))
    assert "temperatures start at 100;" in hot


def test_what_else_keeps_scores_close_is_named():
    hot = {"temperature_init": 100.0}
    assert "temperatures start at 100;" in warning(network("SM(t)+LN+G", **hot))
    small = network("SM+LN+G", initializer_range=0.002)
    assert "model.initializer_range=0.088 mends" in warning(small)
    assert warning(network("SM+LN+G", initializer_range=0.088)) is None


@pytest.mark.parametrize("label", ["SM+LN+G", "SM+FN+ScFuFFN", "SOTA:SM+ScFuFFN"])
def test_norms_and_shaped_attention_do_not_warn(label):
    assert warning(network(label)) is None


def test_a_network_of_nan_has_no_deviation_and_no_cause():
    model = network("SM+G")
    torch.nn.init.constant_(model.transformer.h[0].attn.c_attn.weight, math.nan)
    found = score_deviations(model, tokens())
    assert all(map(math.isnan, found)) and first_scores_warning(model, found) is None


def test_the_bound_is_a_tenfold_growth_of_weights():
    assert 1 / math.sqrt(DEGENERATE) == pytest.approx(10)


def test_a_run_says_so_once_and_keeps_the_numbers(corpus, cache_dir, tmp_path):
    said = []
    for scale in ("none", "unit"):
        settings = [*tiny_settings(corpus), f"model.embedding_scale={scale}"]
        run = plan_one(load_recipe("demo", settings=settings), "SM+ScFuFFN", tmp_path / scale)
        train_runs([run], cache_dir=cache_dir, say=said.append)
        assert len(run.folder.info().first_score_deviations) == run.spec.num_layers
    warnings = [line for line in said if "attention starts uniform" in line]
    assert len(warnings) == 1 and warnings[0].startswith("SM+ScFuFFN seed 0: ")


def test_measuring_changes_no_step(corpus, cache_dir, tmp_path, monkeypatch):
    found = []
    for number in range(2):
        recipe = load_recipe("demo", settings=tiny_settings(corpus))
        run = plan_one(recipe, "SM+FN+R", tmp_path / str(number))
        train_runs([run], cache_dir=cache_dir, say=lambda text: None)
        found.append([record for record in metrics(run.folder) if "loss" in record])
        monkeypatch.setattr("aero.train.one_run.score_deviations", lambda *_: [1.0])
    assert found[0] == found[1]
