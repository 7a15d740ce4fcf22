"""Runs that start from a trained network, anneal it, and learn from a teacher."""

import json
import shutil
import signal
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from tests.python.refusals import assert_refused
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from aero.architecture import ArchitectureSpec
from aero.internals.errors import StopRequestedError, TrainingError
from aero.internals.run_files import Annealing
from aero.report import write_report
from aero.train.one_run import build_model
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs
from aero.train.runs.run_folder import RunFolder
from aero.train.runs.run_results import evaluate_run
from aero.train.schedules import AnnealingCallback, annealing_at
from aero.train.training import train_runs

from .conftest import metrics, tiny_settings

SOURCE = "SM+LN+G"


@pytest.fixture
def retrain(tiny_recipe, cache_dir):
    def run(label, output, *, recipe=tiny_recipe, **origins):
        (planned,) = plan_runs(recipe, [label], [0], output=output, **origins)
        train_runs([planned], cache_dir=cache_dir, say=lambda text: None)
        return planned.folder

    return run


def heads_at(folder: RunFolder, step: int):
    return next(line.head_entropy for line in folder.metrics().entropy if line.step == step)


def close_to(heads):
    """Rounded to 6 digits in the records; the sums run in another order."""
    return [pytest.approx(layer, abs=2e-6) for layer in heads]


@pytest.fixture(scope="module")
def annealed(tmp_path_factory, whole_runs, corpus, cache_dir):
    """A run that nothing interrupted."""
    recipe = load_recipe("demo", settings=tiny_settings(corpus))
    source = whole_runs(SOURCE).path
    (run,) = plan_runs(
        recipe,
        ["EReg(SM(t)+ScFuFFN_i1)"],
        [0],
        output=tmp_path_factory.mktemp("annealed"),
        start_from=source,
        distill_from=source,
    )
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    return run.folder


def test_an_annealed_run_ends_as_the_network_of_its_label(annealed, whole_runs):
    model = AutoModelForCausalLM.from_pretrained(annealed.model)
    assert model.config.spec.label == "EReg(SM(t)+ScFuFFN_i1)"
    assert model.config.annealed_from is None and model.config.entropy_weight == 1e-4
    names = set(load_file(annealed.model / "model.safetensors"))
    assert not [name for name in names if "source" in name or "progress" in name or "c_fc" in name]
    before = json.loads((annealed.path / "evaluation.json").read_text())
    assert evaluate_run(annealed.path, max_tokens=1024).loss == pytest.approx(
        before["loss"], rel=1e-6
    )


@pytest.mark.parametrize("label", [SOURCE, "SM+FN+ScFuFFN"])
def test_the_tokens_of_a_run_are_those_of_its_data(label, whole_runs, tiny_recipe, tmp_path):
    source = whole_runs(SOURCE).path
    (run,) = plan_runs(tiny_recipe, [label], [0], output=tmp_path, start_from=source)
    network = build_model(run, bos_token_id=5, eos_token_id=6)
    for settings in (network.config, network.generation_config):
        assert (settings.bos_token_id, settings.eos_token_id) == (5, 6)


def test_an_annealed_run_begins_with_the_function_of_its_source(annealed, whole_runs):
    assert heads_at(annealed, 0) == close_to(heads_at(whole_runs(SOURCE), 20))


def test_the_run_folder_says_where_the_network_came_from(annealed, whole_runs):
    source = whole_runs(SOURCE)
    assert annealed.path.name == "ereg-sm-t-scfuffn-i1-annealed-distilled-seed0"
    info = annealed.info()
    origin, teacher = info.start, info.distilled_from
    for record in (origin, teacher):
        assert (record.path, record.label) == (str(source.path), SOURCE)
        assert (record.steps, record.tokens) == (20, 5120)
        assert len(record.sha256) == 64
        spec = source.info().spec
        spec = ArchitectureSpec.from_dict(spec)
        assert record.flops_per_token == spec.flops("executed").total / spec.context_length
    assert origin.annealing == Annealing("linear", 0.0, 0.3)
    assert (teacher.temperature, teacher.weight) == (2.0, 0.5)
    config = annealed.config()
    assert config["from"] == config["distill_from"] == str(source.path)
    plain = source.config()
    assert "annealing" not in plain and "distillation" not in plain and "from" not in plain


def test_a_run_stopped_while_annealing_resumes_to_the_same_bits(
    annealed, retrain, whole_runs, tmp_path, monkeypatch, signal_at
):
    signal_at(3, signal.SIGTERM)
    source, label = whole_runs(SOURCE).path, "EReg(SM(t)+ScFuFFN_i1)"
    with pytest.raises(StopRequestedError, match="stopped at step 3 of 20"):
        retrain(label, tmp_path, start_from=source, distill_from=source)
    monkeypatch.undo()
    (path,) = tmp_path.glob("*/checkpoints/step-3")
    half = load_file(path / "model.safetensors")
    # 3 of the 6 steps over which a rises.
    progress = [value for name, value in half.items() if name.endswith("progress")]
    assert progress and all(float(value) == pytest.approx(3 / 6) for value in progress)
    folder = retrain(label, tmp_path, start_from=source, distill_from=source)
    assert metrics(folder) == metrics(annealed)
    ours, theirs = (load_file(run.model / "model.safetensors") for run in (folder, annealed))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_cutting_and_continuing_from_a_checkpoint(retrain, whole_runs, tiny_recipe, tmp_path):
    checkpoint = whole_runs(SOURCE).checkpoints / "step-10"
    annealing = replace(tiny_recipe.annealing, schedule="none")
    cut = replace(tiny_recipe, annealing=annealing)
    folder = retrain("SM+FN+ScFuFFN", tmp_path, recipe=cut, start_from=checkpoint)
    assert folder.path.name == "sm-fn-scfuffn-continued-seed0"
    assert folder.info().start.steps == 10
    same = retrain(SOURCE, tmp_path, start_from=checkpoint)
    assert heads_at(same, 0) == close_to(heads_at(whole_runs(SOURCE), 10))


def test_a_run_learns_from_a_teacher_without_a_source(retrain, whole_runs, tiny_recipe, tmp_path):
    teacher = whole_runs(SOURCE).path
    whole = replace(tiny_recipe, distillation=replace(tiny_recipe.distillation, weight=1.0))
    folder = retrain("SM+R", tmp_path, recipe=whole, distill_from=teacher)
    assert folder.path.name == "sm-r-distilled-seed0" and folder.info().start is None
    records = folder.metrics().train
    # The text no longer counts, and still the student predicts it better and better.
    assert records[-1].loss < records[0].loss and records[0].loss != records[0].lm_loss
    assert records[-1].lm_loss < records[0].lm_loss


def test_a_gpt2_folder_is_a_source_and_a_teacher(retrain, whole_runs, tmp_path):
    tokenizer = whole_runs(SOURCE).model
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_embd": 32, "n_head": 2, "n_positions": 32}
    marks = {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=320, **sizes, **marks))
    model.save_pretrained(tmp_path / "gpt2")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, tmp_path / "gpt2" / name)
    gpt2 = tmp_path / "gpt2"
    folder = retrain("SM+ScFuFFN", tmp_path, start_from=gpt2, distill_from=gpt2)
    assert folder.info().status == "finished" and folder.info().start.label is None
    assert AutoModelForCausalLM.from_pretrained(folder.model).config.spec.label == "SM+ScFuFFN"


def test_the_report_keeps_ways_apart_and_compares_them(annealed, retrain, whole_runs, tmp_path):
    scratch = retrain("EReg(SM(t)+ScFuFFN_i1)", tmp_path / "runs")
    paths = write_report([scratch.path, annealed.path, whole_runs(SOURCE).path], tmp_path / "out")
    report = json.loads(paths.json.read_text())
    way = "annealed from SM+LN+G, taught by SM+LN+G"
    assert [entry["way"] for entry in report["networks"]] == ["", "", way]
    assert report["networks"][2]["name"] == f"EReg(SM(t)+ScFuFFN_i1), {way}"
    (row,) = report["comparisons"]
    annealed_to, from_nothing = report["networks"][2], report["networks"][1]
    assert (row["network"], row["against"]) == (annealed_to["name"], from_nothing["name"])
    means = [entry["perplexity"]["mean"] for entry in (annealed_to, from_nothing)]
    assert row["difference"] == pytest.approx(means[0] / means[1] - 1)


# --- refusals ---------------------------------------------------------------------------------


def test_origins_that_do_not_fit_are_refused_before_a_run_is_planned(
    annealed, tiny_recipe, whole_runs, tmp_path
):
    def plan(output=tmp_path, labels=("SM",), recipe=tiny_recipe, **origins):
        return lambda: plan_runs(recipe, labels, [0], output=output, **origins)

    def settings(*given):
        return lambda: load_recipe("demo", settings=given)

    source, stopped = whole_runs(SOURCE).path, tmp_path / "stopped"
    shutil.copytree(source, stopped)
    RunFolder(stopped).update(status="interrupted")
    cosine = replace(tiny_recipe, annealing=replace(tiny_recipe.annealing, schedule="cosine"))
    light = replace(tiny_recipe, distillation=replace(tiny_recipe.distillation, weight=0.1))
    there = {"output": annealed.path.parent, "labels": ["EReg(SM(t)+ScFuFFN_i1)"]}
    for call, *named in (
        (plan(recipe=cosine), "settings of annealing", "--from"),
        (plan(recipe=light), "distillation", "--distill-from"),
        (settings("annealing.shedule=linear"), "shedule", "did you mean 'annealing.schedule'"),
        (settings("annealing.start_fraction=0.3"), "start_fraction", "< annealing.end_fraction"),
        (plan(start_from=tmp_path), "--from", "must be a run folder, a checkpoint"),
        (plan(start_from=stopped), "--from", "name a checkpoint", "'interrupted'"),
        (plan(start_from=annealed.checkpoints / "step-5"), "--from", "resume its run", "annealing"),
        (
            plan(**there, start_from=whole_runs("SM+LN+R").path, distill_from=source),
            "from is", "another configuration",
        ),
    ):  # fmt: skip
        assert_refused(call, *named, error=TrainingError)


def test_networks_that_do_not_fit_a_run_are_refused(retrain, whole_runs, tiny_recipe, tmp_path):
    source, bare = whole_runs(SOURCE).path, tmp_path / "bare"
    shutil.copytree(source / "model", bare)
    (bare / "tokenizer.json").unlink()
    words = replace(tiny_recipe, data=replace(tiny_recipe.data, vocabulary=300))
    wide = replace(tiny_recipe, model=replace(tiny_recipe.model, width=64))
    for label, arguments, *named in (
        ("SM", {"recipe": words, "start_from": source}, "--from", "tokenizer", "tokens there,"),
        ("SM", {"recipe": words, "distill_from": source}, "--distill-from", "tokenizer", "there,"),
        ("SM", {"distill_from": bare}, "tokenizer.json", "save its tokenizer", str(bare)),
        ("SM", {"recipe": wide, "start_from": source}, "width", "model.width=32", "recipe 64"),
        ("SM+LR(layer)", {"start_from": source}, "begin_annealing", "cut it"),
    ):
        output = tmp_path / f"{named[0]}{named[1]}"
        call = partial(retrain, label, output, **arguments)
        assert_refused(call, *named, error=TrainingError)


# --- the schedule -----------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(("start", "end"), [(0.0, 1.0), (0.25, 0.6), (0.0, 0.01)])
def test_progress_rises_from_zero_to_one(schedule, start, end):
    options = {"schedule": schedule, "start_fraction": start, "end_fraction": end}
    values = [annealing_at(step, 40, **options) for step in range(1, 41)]
    assert values == sorted(values) and values[-1] == 1.0
    assert all(value == 0 for value in values[: int(start * 40)])
    middle = round((start + end) / 2 * 40)
    if middle == (start + end) / 2 * 40:
        assert annealing_at(middle, 40, **options) == pytest.approx(0.5)


def test_one_step_trains_the_end():
    assert annealing_at(1, 1, schedule="cosine") == 1.0


def test_wrong_schedules_are_refused():
    with pytest.raises(ValueError, match="schedule must be one of linear, cosine, got 'none'"):
        AnnealingCallback("none")
    with pytest.raises(ValueError, match=r"0 <= start_fraction < end_fraction <= 1, got 0.5 and"):
        AnnealingCallback(start_fraction=0.5, end_fraction=0.5)
