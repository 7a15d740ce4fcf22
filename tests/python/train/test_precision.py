"""A run computes in its recipe's precision, and is measured in that of the weights it saves.

float16 with loss scaling, which the Trainer has for GPUs alone, runs on a CPU in place of one.
"""

import json
from dataclasses import replace

import pytest
import torch
from transformers import Trainer

from aero.internals.errors import TrainingError
from aero.train import starting
from aero.train import trainer as trainer_module
from aero.train.runs.run_results import evaluate_run
from aero.train.training import train_runs

from .conftest import assert_same_ending, metrics, plan_one, stopped_at
from .test_divergence import poison_attention


@pytest.fixture
def recipe(tiny_recipe):
    return replace(tiny_recipe, training=replace(tiny_recipe.training, precision="float16"))


@pytest.fixture
def scaled(monkeypatch):
    """Lets the CPU train in float16, with loss scaling that starts at 2^n."""

    def scale(exponent: int) -> None:
        def build(self):
            Trainer.create_accelerator_and_postprocess(self)
            self.accelerator.native_amp = True
            self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**exponent)

        monkeypatch.setattr(
            trainer_module.AeroTrainer, "create_accelerator_and_postprocess", build, raising=False
        )
        monkeypatch.setattr(starting, "_require_gpu_for_float16", lambda recipe: None)

    return scale


def test_float16_without_a_gpu_is_refused_before_anything_is_prepared(
    recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = plan_one(recipe, "SM+LN+G", tmp_path / "runs")
    with pytest.raises(TrainingError, match=r"training\.precision must be float32 or bfloat16"):
        train_runs([run], cache_dir=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("exponent", "expected"), [(10, range(1)), (30, range(6, 20))])
def test_steps_whose_scaled_gradients_overflow_are_left_out_and_counted(
    exponent, expected, recipe, cache_dir, tmp_path, scaled
):
    scaled(exponent)
    run = plan_one(recipe, "SM+FN+R", tmp_path)
    train_runs([run], cache_dir=cache_dir)
    info = run.folder.info()
    assert (info.status, info.diverged) == ("finished", None)
    assert info.skipped_steps in expected


def test_float16_products_were_computed(recipe, cache_dir, tmp_path, scaled, whole_runs):
    scaled(10)
    run = plan_one(recipe, "SM+FN+R", tmp_path)
    train_runs([run], cache_dir=cache_dir)
    found, exact = (
        [record["loss"] for record in metrics(folder) if record["kind"] == "train"]
        for folder in (run.folder, whole_runs("SM+FN+R"))
    )
    assert found != exact
    assert found == pytest.approx(exact, rel=1e-2)


def test_nan_of_the_loss_ends_a_run_in_float16(recipe, cache_dir, tmp_path, scaled, monkeypatch):
    scaled(10)
    poison_attention(monkeypatch, 1, 0, torch.is_grad_enabled)
    run = plan_one(recipe, "SM+FN+R", tmp_path)
    train_runs([run], cache_dir=cache_dir)
    info = run.folder.info()
    assert (info.status, info.diverged.step, info.skipped_steps) == ("diverged", 1, 0)


def test_a_resumed_run_has_the_scale_it_had(recipe, cache_dir, tmp_path, scaled):
    scaled(30)
    whole = plan_one(recipe, "SM+FN+R", tmp_path / "whole")
    train_runs([whole], cache_dir=cache_dir)
    stopped = stopped_at(whole.folder, 10, tmp_path / "stopped" / whole.folder.path.name)
    again = plan_one(recipe, "SM+FN+R", tmp_path / "stopped")
    train_runs([again], cache_dir=cache_dir)
    assert_same_ending(stopped, whole.folder)
    assert again.folder.info().skipped_steps == whole.folder.info().skipped_steps


def test_an_environment_of_accelerate_changes_no_precision(
    tiny_recipe, cache_dir, tmp_path, whole_runs, monkeypatch
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")  # as `accelerate launch` sets it
    run = plan_one(tiny_recipe, "SM+FN+R", tmp_path)
    train_runs([run], cache_dir=cache_dir)
    assert_same_ending(run.folder, whole_runs("SM+FN+R"))


@pytest.mark.parametrize("label", ["SM+FN+R", "SM+LN+G"])
def test_a_run_in_bfloat16_keeps_the_evaluation_of_the_network_that_it_saves(
    label, tiny_recipe, cache_dir, tmp_path
):
    training = replace(tiny_recipe.training, precision="bfloat16")
    run = plan_one(replace(tiny_recipe, training=training), label, tmp_path)
    train_runs([run], cache_dir=cache_dir)
    file = run.folder.path / "evaluation.json"
    trained = json.loads(file.read_text())
    evaluate_run(run.folder.path)
    again = json.loads(file.read_text())
    assert again["loss"] == pytest.approx(trained["loss"], abs=1e-6)
    assert again["norm_gap"] == pytest.approx(trained["norm_gap"], abs=1e-6)


def test_runs_that_tests_share_are_trained_without_the_patches_of_the_first_to_ask(
    whole_runs, monkeypatch
):
    monkeypatch.setattr(trainer_module.AeroTrainer, "train", None)
    assert whole_runs("SM+FN+G").info().status == "finished"
