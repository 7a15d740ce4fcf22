import json
from dataclasses import replace
from pathlib import Path

import pytest
from tests.python.refusals import assert_refused

from aero.internals.errors import TrainingError
from aero.internals.run_files import CorpusRecord, TrainLine
from aero.train.forecast import forecast
from aero.train.one_run import model_config
from aero.train.recipes.recipe import ModelSection, Recipe, RegularizationSection
from aero.train.runs.planning import plan_runs, spec_for
from aero.train.runs.run_folder import RunFolder, checkpoint_step, run_slug

from .conftest import begun, plan_one


def start(run, status, *steps):
    run.folder.write_config(run.config())
    begun(run.folder, status)
    for step in steps:
        folder = run.folder.checkpoints / f"step-{step}"
        folder.mkdir(parents=True)
        (folder / "trainer_state.json").write_text("{}")


def test_labels_become_folders_seeds_outermost(tiny_recipe, tmp_path):
    plan = plan_runs(tiny_recipe, ["sm+ln+g", "EReg(SM(t)+ScFuFFN)"], [3, 4], output=tmp_path)
    assert [run.folder.path.name for run in plan] == [
        "sm-ln-g-seed3",
        "ereg-sm-t-scfuffn-seed3",
        "sm-ln-g-seed4",
        "ereg-sm-t-scfuffn-seed4",
    ]
    assert [run.label for run in plan[:2]] == ["SM+LN+G", "EReg(SM(t)+ScFuFFN)"]
    assert {run.action for run in plan} == {"train"}


@pytest.mark.parametrize(
    ("label", "slug"),
    [("SOTA:SM+ScFuFFN_i1", "sota-sm-scfuffn-i1"), ("SM(t:head)+LR(layer)", "sm-t-head-lr-layer")],
)
def test_slugs_are_lower_case_with_single_dashes(label, slug):
    assert run_slug(label) == slug


def test_sizes_of_the_recipe_reach_the_network():
    model = ModelSection(preset="tiny", context_length=16, num_layers=3, num_heads=4, head_dim=8)
    spec = spec_for(Recipe(model=replace(model, tied_embeddings=False)), "SM+LN+G")
    assert (spec.num_layers, spec.num_heads, spec.context_length) == (3, 4, 16)
    assert spec.tied_embeddings is False and spec.vocab_size == 4096


def test_languini_unties_the_head_and_codeparrot_does_not():
    from aero.train.recipes.recipe_files import load_recipe

    assert spec_for(load_recipe("languini"), "SM+LN+G").tied_embeddings is False
    codeparrot = spec_for(load_recipe("codeparrot"), "SM+LN+G")
    assert codeparrot.tied_embeddings is True and codeparrot.vocab_size == 50_257


def test_runs_that_cannot_be_planned_are_named(tiny_recipe, tmp_path):
    def plan(labels=("SM+G",), seeds=(0,), **sections):
        recipe = replace(tiny_recipe, **sections)
        return lambda: plan_runs(recipe, labels, seeds, output=tmp_path)

    run = plan_one(tiny_recipe, "SM+G", tmp_path)
    start(run, "finished")
    shorter = replace(tiny_recipe.training, tokens=512)
    for call, *named in (
        (plan(["SM+ScFuFN"]), "label", "nearest valid label", "SM+ScFuFN"),
        (plan(seeds=[-1]), "seed", ">= 0", "got -1"),
        (plan(seeds=[1 << 32]), "seed", "<= 4,294,967,295", "got 4294967296"),
        (plan(["SM+G", "sm+g"]), "SM+G seed 0", "twice"),
        (plan(["SM+G", "SM+G"]), "SM+G seed 0", "twice"),
        (plan(seeds=[1, 0, 1]), "SM+G seed 1", "twice"),
        (plan(model=ModelSection(preset="tinny")), "model", 'did you mean "tiny"', 'got "tinny"'),
        (plan(training=shorter), "training.tokens", "5120 there", "512 here", "--output"),
    ):
        assert_refused(call, *named, error=TrainingError)
    for damage in ("{", "[]"):
        (run.folder.path / "run.json").write_text(damage)
        assert_refused(plan(), "run.json", "expected", "delete the folder", error=TrainingError)


@pytest.mark.parametrize("status", ["finished", "diverged", "interrupted"])
def test_a_run_on_a_corpus_with_near_copies_in_validation_is_refused(status, tiny_recipe, tmp_path):
    run = plan_one(tiny_recipe, "SM+G", tmp_path)
    start(run, status, 20)
    run.folder.update(corpus=CorpusRecord(sha256="ab"))
    for resume in ("auto", run.folder.checkpoints / "step-20"):
        with pytest.raises(TrainingError, match="could be held out, so its perplexity"):
            plan_one(tiny_recipe, "SM+G", tmp_path, resume=resume)
    run.folder.update(corpus=CorpusRecord(sha256="ab", copied_share=0.0))
    assert plan_one(tiny_recipe, "SM+G", tmp_path).action != "train"


@pytest.mark.parametrize("status", ["finished", "diverged"])
def test_a_run_that_has_ended_is_reused(status, tiny_recipe, tmp_path):
    start(plan_one(tiny_recipe, "SM+G", tmp_path), status)
    assert plan_one(tiny_recipe, "SM+G", tmp_path).action == "reuse"


@pytest.mark.parametrize("status", ["running", "interrupted"])
def test_an_unfinished_run_resumes_from_its_last_checkpoint(status, tiny_recipe, tmp_path):
    left = plan_one(tiny_recipe, "SM+G", tmp_path)
    start(left, status, 5, 15, 10)
    (left.folder.checkpoints / "checkpoint-20").mkdir()
    run = plan_one(tiny_recipe, "SM+G", tmp_path)
    assert (run.action, run.checkpoint.name, run.steps_done) == ("resume", "step-15", 15)
    names = [path.name for path in run.folder.complete_checkpoints()]
    assert names == ["step-5", "step-10", "step-15"]


def test_a_run_without_a_checkpoint_starts_again(tiny_recipe, tmp_path):
    start(plan_one(tiny_recipe, "SM+G", tmp_path), "running")
    assert plan_one(tiny_recipe, "SM+G", tmp_path).action == "train"


def test_a_setting_newer_than_the_run_had_its_default(tiny_recipe, tmp_path):
    run = plan_one(tiny_recipe, "SM+G", tmp_path)
    start(run, "finished")
    older = run.folder.config()
    del older["optimizer"]["epsilon"]
    run.folder.write_config(older)
    assert plan_one(tiny_recipe, "SM+G", tmp_path).action == "reuse"
    changed = replace(tiny_recipe, optimizer=replace(tiny_recipe.optimizer, epsilon=1e-6))
    with pytest.raises(TrainingError, match=r"optimizer\.epsilon is 1e-08 there"):
        plan_one(changed, "SM+G", tmp_path)


def test_never_resume_leaves_an_existing_run_alone(tiny_recipe, tmp_path):
    start(plan_one(tiny_recipe, "SM+G", tmp_path), "running", 5)
    with pytest.raises(TrainingError, match="already holds a run; choose another --output"):
        plan_one(tiny_recipe, "SM+G", tmp_path, resume="never")
    assert plan_one(tiny_recipe, "SM+R", tmp_path, resume="never").action == "train"


def test_a_checkpoint_can_be_named(tiny_recipe, tmp_path):
    start(plan_one(tiny_recipe, "SM+G", tmp_path), "finished", 5, 10)
    path = tmp_path / "sm-g-seed0" / "checkpoints" / "step-5"
    run = plan_one(tiny_recipe, "SM+G", tmp_path, resume=str(path))
    assert (run.action, run.checkpoint) == ("resume", path)
    with pytest.raises(TrainingError, match="does not belong to the run"):
        plan_one(tiny_recipe, "SM+R", tmp_path, resume=str(path))
    with pytest.raises(TrainingError, match="auto, never or a checkpoint folder"):
        plan_one(tiny_recipe, "SM+G", tmp_path, resume=str(tmp_path))
    with pytest.raises(TrainingError, match="give a single --label"):
        plan_runs(tiny_recipe, ["SM+G"], [0, 1], output=tmp_path, resume=str(path))


def test_a_folder_that_is_no_checkpoint_is_named():
    assert checkpoint_step(Path("checkpoints/step-40")) == 40
    with pytest.raises(TrainingError, match=r"a checkpoint folder is called step-N, got x/last"):
        checkpoint_step(Path("x/last"))


@pytest.mark.parametrize(("scale", "factor"), [("none", 1), ("sqrt_width", 8), ("unit", 4)])
def test_embeddings_are_scaled_as_the_recipe_says(scale, factor, tiny_recipe, tmp_path):
    model = replace(tiny_recipe.model, width=64, embedding_scale=scale, initializer_range=0.25)
    run = plan_one(replace(tiny_recipe, model=model), "SM+R", tmp_path)
    assert model_config(run).embedding_scale == factor


def test_every_setting_of_a_network_reaches_its_configuration(tiny_recipe, tmp_path):
    regularization = RegularizationSection(
        entropy_weight=0.125,
        tolerance_margin=0.375,
        temperature_init=0.75,
        temperature_parametrization="log",
        threshold_init=0.625,
        max_entropy="log_visible",
        reduction="query_mean",
        head_strengths="learned",
        thresholds="shared",
    )
    model = replace(
        tiny_recipe.model, initializer_range=0.25, embedding_dropout=0.5, trainable_scales="beta",
        position_start="embeddings",
    )  # fmt: skip
    recipe = replace(tiny_recipe, model=model, regularization=regularization)
    config = model_config(plan_one(recipe, "EReg(SM(t)+ScFuFFN)", tmp_path), bos_token_id=7)
    assert {
        "entropy_weight": 0.125,
        "tolerance_margin": 0.375,
        "temperature_init": 0.75,
        "temperature_parametrization": "log",
        "threshold_init": 0.625,
        "max_entropy": "log_visible",
        "entropy_reduction": "query_mean",
        "entropy_strengths": "learned",
        "entropy_thresholds": "shared",
        "initializer_range": 0.25,
        "embedding_dropout": 0.5,
        "trainable_scales": "beta",
        "position_start": "embeddings",
        # 256 tokens of a step are 8 windows, which predict 31 tokens each.
        "entropy_tokens": 8 * 31,
        "bos_token_id": 7,
    }.items() <= config.to_dict().items()


def test_a_forecast_counts_the_steps_that_are_left(tiny_recipe, whole_runs, tmp_path):
    plan = plan_runs(tiny_recipe, ["SM+R"], [0], output=whole_runs("SM+R").path.parent)
    told = forecast(plan, cache_dir=tmp_path / "none")
    assert "steps       0 of 20\n  tokens      0\n  time        0:00:00 (estimated" in told
    assert "data: " not in told and "all together" not in told


def test_settings_for_a_label_are_found_however_it_is_written(tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, per_label={"ereg(sm(t)+scfuffn_i0)": {"entropy_weight": 0.5}})
    run = plan_one(recipe, "EReg(SM(t)+ScFuFFN)", tmp_path)
    assert run.recipe.regularization.entropy_weight == 0.5
    assert "per_label" not in run.config()


def test_metrics_after_some_bytes_are_dropped(tmp_path):
    folder = RunFolder(tmp_path)
    lines = [folder.append_metrics(TrainLine(step=step, loss=float("nan"))) for step in (1, 2, 3)]
    assert [line.step for line in folder.metrics().train] == [1, 2, 3]
    folder.truncate_metrics(len(lines[0] + lines[1]))
    assert (tmp_path / "metrics.jsonl").read_bytes() == lines[0] + lines[1]
    assert json.loads(lines[0])["loss"] is None
