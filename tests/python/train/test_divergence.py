"""A step with NaN is found, placed, recorded and answered by policy."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from aero.cli import app
from aero.internals.run_files import Divergence
from aero.models import AeroConfig, AeroForCausalLM
from aero.nn import attention as attention_module
from aero.report.runs import read_run
from aero.train.divergence import NonFinite, find_first_non_finite, preserved_buffers
from aero.train.run_callback import RunCallback
from aero.train.training import train_runs

from .conftest import plan_one

LABELS = ["SM+LN+G", "SM+FN+R", "EReg(SM(t)+ScFuFFN)", "SM+WNFFN(qkvo+ffn)", "SOTA:SM+ScFFN"]


def network(label: str) -> AeroForCausalLM:
    torch.manual_seed(0)
    return AeroForCausalLM(AeroConfig.from_label(label, model="tiny")).train()


def batch() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "labels": ids}


def first_place(model: AeroForCausalLM) -> NonFinite:
    spec = model.config.spec
    return find_first_non_finite(
        model, [batch(), batch()], num_heads=spec.num_heads, head_dim=spec.head_dim
    )


def poison_attention(monkeypatch, layer: int, head: int, when=lambda: True) -> None:
    """Makes one head of one layer return NaN, as an overflow inside the operator would."""
    original = attention_module.causal_attention
    calls = [0]

    def poisoned(*arguments, **options):
        output, entropy = original(*arguments, **options)
        if calls[0] % 2 == layer and when():  # the tiny preset has two layers
            output, entropy = output.clone(), entropy.clone()
            output[:, head] = math.nan
            entropy[:, head] = math.nan
        calls[0] += 1
        return output, entropy

    monkeypatch.setattr(attention_module, "causal_attention", poisoned)


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 0)])
def test_the_head_that_fails_first_is_found(label, layer, head, monkeypatch):
    model = network(label)
    poison_attention(monkeypatch, layer, head)
    found = first_place(model)
    assert (found.layer, found.head) == (layer, head)
    assert f"h.{layer}.attn" in found.what


def test_a_projection_that_overflows_names_its_head():
    model = network("SM+LN+G")
    with torch.no_grad():  # [q k v] of two heads with 16 columns each: 16..31 are q of head 1
        model.transformer.h[1].attn.c_attn.bias[20] = math.inf
    assert first_place(model) == NonFinite(1, 1, "output of transformer.h.1.attn.c_attn")


def test_a_feed_forward_that_overflows_names_no_head():
    model = network("SM+LN+G")
    with torch.no_grad():
        model.transformer.h[0].mlp.c_fc.bias[3] = math.nan
    assert first_place(model) == NonFinite(0, None, "output of transformer.h.0.mlp.c_fc")


def test_a_gradient_that_overflows_is_found_when_forward_is_finite():
    model = network("EReg(SM(t)+ScFuFFN)")
    spoil = torch.ones(2, 1)
    spoil[1] = math.nan
    values = model.transformer.h[0].attn.temperature.value
    values.register_hook(lambda gradient: gradient * spoil)
    found = first_place(model)
    assert (found.layer, found.head) == (0, 1)
    assert found.what == "gradient of transformer.h.0.attn.temperature.value"


def test_a_norm_that_overflows_although_every_gradient_is_finite_is_called_so():
    model = network("SM+ScFuFFN")
    values = model.transformer.h[0].attn.c_attn.weight
    values.register_hook(lambda gradient: torch.full_like(gradient, 1e20))  # its square overflows
    assert first_place(model) == NonFinite(None, None, "norm of the gradients")


def test_a_healthy_step_shows_nothing():
    assert first_place(network("SM+FN+R")) == NonFinite(None, None, "loss")


def test_the_search_changes_nothing():
    model = network("SM+FN+R")
    model(**batch()).loss.backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters()]
    first_place(model)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        assert torch.equal(parameter.grad, gradient)


def test_buffers_come_back_even_after_an_error():
    model = network("SM+FN+R")
    before = [buffer.clone() for buffer in model.buffers()]
    with pytest.raises(RuntimeError, match="broken"), preserved_buffers(model):
        model(**batch())
        raise RuntimeError("broken")
    for buffer, value in zip(model.buffers(), before, strict=True):
        assert torch.equal(buffer, value)


# --- a run's records of it --------------------------------------------------------------------


@pytest.fixture
def run_with_nan(tiny_recipe, cache_dir, tmp_path, monkeypatch):
    """Trains a network whose layer 1, head 0 gives NaN in some steps."""

    def run(label: str, policy: str, steps: set[int], *, resume: str = "auto", **changes):
        now = [0]
        original = RunCallback.on_step_begin

        def on_step_begin(self, args, state, control, **kwargs):
            now[0] = state.global_step + 1
            return original(self, args, state, control, **kwargs)

        monkeypatch.setattr(RunCallback, "on_step_begin", on_step_begin)
        training = torch.is_grad_enabled  # validation and records run without gradients
        poison_attention(monkeypatch, 1, 0, lambda: now[0] in steps and training())
        recipe = replace(
            tiny_recipe, training=replace(tiny_recipe.training, nan_policy=policy, **changes)
        )
        said = []
        planned = plan_one(recipe, label, tmp_path, resume=resume)
        train_runs([planned], cache_dir=cache_dir, say=said.append)
        return planned.folder, said

    return run


def finite_weights(folder) -> bool:
    weights = load_file(folder.complete_checkpoints()[-1] / "model.safetensors")
    return all(bool(torch.isfinite(value).all()) for value in weights.values())


def test_stopping_is_recorded_with_place_and_last_finite_checkpoint(run_with_nan):
    folder, said = run_with_nan("SM+FN+R", "stop", {13})
    info = folder.info()
    assert info.status == "diverged" and info.steps_done == 13
    assert info.diverged == Divergence(
        step=13,
        layer=1,
        head=0,
        what="input of transformer.h.1.attn.c_proj",
        last_finite_checkpoint="checkpoints/step-10",
    )
    assert said[0].startswith("data: ")
    assert said[1:] == [
        "SM+FN+R seed 0: diverged at step 13 (input of transformer.h.1.attn.c_proj)"
    ]
    metrics = folder.metrics()
    assert metrics.train[-1].step == metrics.entropy[-1].step == 13
    assert metrics.train[-1].loss is None and metrics.train[-1].grad_norm is None
    assert finite_weights(folder) and not folder.model.exists()


def test_divergence_before_any_checkpoint_has_none_to_go_back_to(run_with_nan):
    folder, _ = run_with_nan("SM+R", "stop", {2})
    assert folder.info().diverged.last_finite_checkpoint is None
    assert folder.complete_checkpoints() == []


def test_a_skipped_step_leaves_weights_and_running_statistics_finite(run_with_nan):
    folder, said = run_with_nan("SM+FN+R", "skip", {7, 8})
    info = folder.info()
    assert info.status == "finished" and info.skipped_steps == 2
    assert info.diverged.step == 7
    about_data, line = said
    assert about_data.startswith("data: ")
    assert line.startswith("SM+FN+R seed 0: perplexity ") and ", skipped 2 non-finite steps" in line
    assert finite_weights(folder)
    assert math.isfinite(folder.metrics().validation[-1].loss)
    # Steps left out before a checkpoint are still told by the run that goes on from it.
    resume = str(folder.checkpoints / "step-10")
    folder, said = run_with_nan("SM+FN+R", "skip", {17}, resume=resume)
    again = folder.info()
    assert (again.skipped_steps, again.diverged) == (3, info.diverged)
    assert ", skipped 3 non-finite steps" in said[-1]


def test_skipping_a_step_is_leaving_it_out(run_with_nan, tiny_recipe):
    # With no other step in between, the weights after step 5 (skipped) are those after step 4.
    folder, _ = run_with_nan("SM+FN+R", "skip", {5}, checkpoint_every_steps=1, keep_checkpoints=30)
    before, after = (
        load_file(folder.checkpoints / f"step-{step}" / "model.safetensors") for step in (4, 5)
    )
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_continuing_goes_on_to_the_end_and_says_so(run_with_nan):
    folder, _ = run_with_nan("SM+R", "continue", {7}, keep_checkpoints=1)
    info = folder.info()
    assert info.status == "diverged" and info.steps_done == 20
    assert info.diverged.step == 7
    # The last finite checkpoint outlives the younger ones with NaN.
    names = [path.name for path in folder.complete_checkpoints()]
    assert names == ["step-5", "step-20"]
    assert info.diverged.last_finite_checkpoint == "checkpoints/step-5"
    entropies = folder.metrics().entropy[-1]
    assert sum(entropies.nan_counts) == 4
    assert entropies.head_entropy[0] == [None, None]


def test_a_learning_rate_that_is_far_too_high_ends_as_divergence(tiny_recipe, cache_dir, tmp_path):
    optimizer = replace(tiny_recipe.optimizer, learning_rate=1e6, clip_norm=None)
    run = plan_one(replace(tiny_recipe, optimizer=optimizer), "SM", tmp_path)
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    info = run.folder.info()
    assert info.status == "diverged" and 1 <= info.diverged.step < 20
    assert info.diverged.what


def test_a_diverged_run_is_reused_like_a_finished_one(run_with_nan, tiny_recipe, tmp_path):
    run_with_nan("SM+R", "stop", {2})
    assert plan_one(tiny_recipe, "SM+R", tmp_path).action == "reuse"


def test_entropies_of_a_head_with_nan_are_counted(monkeypatch):
    from aero.train.run_callback import head_entropies

    model = network("SM+R")
    poison_attention(monkeypatch, 0, 1)
    heads = head_entropies(model, batch()["input_ids"])
    # Layer 1 reads the output of layer 0, so all its heads are lost too.
    np.testing.assert_array_equal(np.isnan(heads), [[False, True], [True, True]])
    assert model.training


def test_a_command_whose_network_diverged_ends_with_one_and_a_report_shows_it(
    run_with_nan, tmp_path
):
    folder, _ = run_with_nan("SM+FN+R", "stop", {3})
    config = folder.path / "config.yaml"
    given = yaml.safe_load(config.read_text())
    label, seed = given.pop("label"), str(given.pop("seed"))
    (tmp_path / "again.yaml").write_text(yaml.safe_dump(given))
    again = ["train", "--label", label, "--seed", seed, "--config", str(tmp_path / "again.yaml")]
    done = CliRunner().invoke(app, [*again, "--output", str(folder.path.parent)])
    assert done.exit_code == 1, done.output
    assert "reusing the diverged run" in done.stderr
    assert read_run(folder.path).ending.startswith("NaN at step 3")
