"""Whole runs of a tiny network: their files, and that stopping them loses nothing."""

import json
import math
import shutil
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from aero.internals.errors import StopRequestedError, TrainingError
from aero.internals.records import as_dict
from aero.internals.run_files import Divergence
from aero.train import training as runs_module
from aero.train.entropy_callback import add_scalars, open_board
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.planning import plan_runs
from aero.train.runs.run_folder import RunFolder, RunLockedError
from aero.train.runs.run_results import analyze_run, evaluate_run
from aero.train.training import train_runs

from ..full_disk import run_with_limit
from .conftest import assert_same_ending, begun, command_line, metrics, plan_one, tiny_settings

EREG = "EReg(SM(t)+ScFuFFN)"


@pytest.fixture
def train(tiny_recipe, cache_dir):
    def train_one(label: str, output: Path, *, recipe=tiny_recipe, **options: str) -> RunFolder:
        run = plan_one(recipe, label, output, **options)
        train_runs([run], cache_dir=cache_dir, say=lambda text: None)
        return run.folder

    return train_one


# --- the files of a run -----------------------------------------------------------------------


def test_a_finished_run_folder_holds_what_the_report_reads(whole_runs):
    folder = whole_runs(EREG)
    training, validation, entropy = folder.metrics()
    assert [line.step for line in training] == [4, 8, 12, 16, 20]
    assert [line.step for line in validation] == [5, 10, 15, 20]
    assert [line.step for line in entropy] == [0, 10, 20]
    assert training[-1].tokens == 20 * 256
    assert None not in as_dict(training[0]).values()
    assert validation[0].norm_discrepancy is None
    assert [len(layer) for layer in entropy[0].head_entropy] == [2, 2]
    assert entropy[0].nan_counts == [0, 0]
    assert not (folder.path / "model.partial").exists()


def test_the_evaluation_is_the_last_validation_record(whole_runs):
    folder = whole_runs(EREG)
    evaluation = json.loads((folder.path / "evaluation.json").read_text())
    last = folder.metrics().validation[-1]
    for name in ("loss", "perplexity", "bits_per_byte", "tokens"):
        assert evaluation[name] == getattr(last, name)
    assert evaluation["windows"] == "disjoint" and evaluation["tokens"] == 32 * 31
    assert evaluation["documents"] >= 2
    low, high = evaluation["perplexity_interval"]
    assert low < evaluation["perplexity"] < high


def test_the_loss_is_language_model_loss_plus_weighted_penalty(whole_runs, tiny_recipe):
    weight = tiny_recipe.regularization.entropy_weight
    for line in whole_runs(EREG).metrics().train:
        assert line.entropy_loss > 0
        assert line.penalty_nats == pytest.approx(weight * line.entropy_loss)
        assert line.loss == pytest.approx(line.lm_loss + line.penalty_nats, rel=1e-6)


def test_the_penalty_of_a_step_is_the_sum_over_its_rows(corpus, cache_dir, tmp_path):
    """Of the published size, however the step is cut into micro-batches."""
    seen = []
    for micro_batch in (256, 64):
        settings = [
            *tiny_settings(corpus),
            "training.tokens=256",
            f"training.micro_batch_tokens={micro_batch}",
        ]
        run = plan_one(load_recipe("demo", settings=settings), EREG, tmp_path / str(micro_batch))
        train_runs([run], cache_dir=cache_dir, say=lambda text: None)
        (line,) = run.folder.metrics().train
        seen.append(line.entropy_loss)
    # A new network attends nearly uniformly: row i has the entropy log(i + 1).
    deviations = [math.log(i + 1) - 0.5 * math.log(32) for i in range(32)]
    outside = [d**2 for d in deviations if abs(d) > 0.1 * math.log(32)]
    windows = 256 // 32
    assert (
        seen[0]
        == pytest.approx(seen[1], rel=1e-6)
        == pytest.approx(windows * sum(outside), rel=0.05)
    )


def test_labels_without_penalty_have_none(whole_runs):
    records = whole_runs("SM+FN+R").metrics().train
    assert all(r.entropy_loss is None and r.loss == r.lm_loss for r in records)


def test_foldable_norm_logs_how_far_batches_are_from_the_average(whole_runs):
    records = whole_runs("SM+FN+R").metrics().validation
    distances = [record.norm_discrepancy for record in records]
    assert distances[0] > distances[-1] > 0


def test_the_loss_falls(whole_runs):
    for label in (EREG, "SM+FN+R"):
        losses = [r.lm_loss for r in whole_runs(label).metrics().train]
        assert losses[-1] < losses[0] - 0.1


def test_learning_rate_warms_up_and_falls_to_zero(whole_runs, tiny_recipe):
    # 20 steps, one of them warm-up: the rate of step n is that before the n-th update.
    rates = [r.lr for r in whole_runs("SM+FN+R").metrics().train]
    expected = [1e-2 * (20 - (step - 1)) / 19 for step in (4, 8, 12, 16, 20)]
    assert tiny_recipe.warmup_steps == 1
    assert rates == pytest.approx(expected, rel=1e-9)


def test_cosine_ends_at_the_final_rate(train, tiny_recipe, tmp_path):
    schedule = replace(
        tiny_recipe.schedule, shape="cosine", warmup_steps=4, final_learning_rate=6e-6
    )
    logging = replace(tiny_recipe.logging, every_steps=1)
    recipe = replace(tiny_recipe, schedule=schedule, logging=logging)
    folder = train("SM+R", tmp_path, recipe=recipe)
    rates = [r.lr for r in folder.metrics().train]
    assert rates[:5] == pytest.approx([0, 2.5e-3, 5e-3, 7.5e-3, 1e-2])
    assert sorted(rates[4:], reverse=True) == rates[4:] and rates[-1] > 6e-6
    scheduler = torch.load(folder.checkpoints / "step-20" / "scheduler.pt", weights_only=True)
    assert scheduler["_last_lr"][0] == pytest.approx(6e-6)


def test_tensorboard_has_every_record_of_the_run(whole_runs):
    board = EventAccumulator(str(whole_runs(EREG).tensorboard))
    board.Reload()
    for name, steps in (
        ("train/loss", [4, 8, 12, 16, 20]),
        ("validation/perplexity", [5, 10, 15, 20]),
        ("entropy/layer_1/mean", [0, 10, 20]),
        ("aero/temperature/layer_1/mean", [0, 10, 20]),
        ("aero/threshold/layer_0/mean", [0, 10, 20]),
    ):
        assert [event.step for event in board.Scalars(name)] == steps, name


def test_tensorboard_forgets_what_a_run_had_written_after_its_checkpoint(tmp_path):
    for first, steps in ((0, range(1, 7)), (4, (5, 7))):
        board = open_board(tmp_path, first_step=first)
        for step in steps:
            add_scalars(board, step, {"train/loss": 10 * first + step})
        board.close()
    board = EventAccumulator(str(tmp_path))
    board.Reload()
    found = [(event.step, event.value) for event in board.Scalars("train/loss")]
    assert found == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 45), (7, 47)]


def test_the_saved_model_loads_and_speaks(whole_runs):
    folder = whole_runs(EREG)
    model = AutoModelForCausalLM.from_pretrained(folder.model)
    tokenizer = AutoTokenizer.from_pretrained(folder.model)
    assert model.config.spec.label == EREG
    ids = tokenizer("def return", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=4, do_sample=False).shape[1] == ids.shape[1] + 4


def test_evaluating_again_gives_the_same_numbers(whole_runs):
    folder = whole_runs("SM+FN+R")
    path = folder.path / "evaluation.json"
    before = json.loads(path.read_text())
    # As many tokens as at the run's end; no more are asked for by default.
    for options in ({"max_tokens": 1024}, {}, {"stride": 32}):
        path.unlink()
        measured = evaluate_run(folder.path, **options, say=pytest.fail)
        assert measured.loss == pytest.approx(before["loss"], rel=1e-6)
        assert json.loads(path.read_text())["tokens"] == before["tokens"]
    folder.write_result("evaluation.json", before)
    with pytest.raises(TrainingError, match="stride must be between 1 and 32, got 33"):
        evaluate_run(folder.path, stride=33)


def test_other_windows_are_measured_and_leave_the_runs_results_alone(whole_runs):
    folder = whole_runs("SM+FN+R")
    names = ("evaluation.json", "analysis.json", "analysis.npz", "sample.json", "SHA256SUMS")
    before = {name: (folder.path / name).read_bytes() for name in names}
    kept = json.loads(before["evaluation.json"])
    said = []
    for options, tokens in (
        ({"max_tokens": 256}, 8 * 31),
        ({"max_tokens": 10**9}, None),
        ({"max_tokens": 1024, "stride": 16}, 1024 - 1),
    ):
        measured = evaluate_run(folder.path, **options, say=said.append)
        assert measured.tokens == tokens if tokens else measured.tokens > kept["tokens"]
        assert measured.loss != kept["loss"]
    assert analyze_run(folder.path, windows=1, say=said.append).head_entropy.shape == (2, 2)
    assert {name: (folder.path / name).read_bytes() for name in names} == before
    assert len(said) == 4 and all("not kept" in line for line in said)


def test_the_analysis_is_of_the_trained_network(whole_runs):
    folder = whole_runs(EREG)
    before = json.loads((folder.path / "analysis.json").read_text())
    summary = analyze_run(folder.path)
    assert summary.to_dict() == before
    assert summary.thresholds.shape == (2, 2) and len(summary.temperatures) == 2
    assert (folder.path / "analysis.npz").exists()


def test_an_evaluation_makes_lost_token_files_again(tiny_recipe, tmp_path):
    output, source = tmp_path / "runs", tmp_path / "source"
    shutil.copytree(tiny_recipe.data.source, source)
    recipe = replace(tiny_recipe, data=replace(tiny_recipe.data, source=str(source)))
    run = plan_one(recipe, "SM+R", output)
    train_runs([run], cache_dir=tmp_path / "cache", say=lambda text: None)
    before = evaluate_run(run.folder.path)
    shutil.rmtree(tmp_path / "cache")
    assert evaluate_run(run.folder.path) == before
    shutil.rmtree(tmp_path / "cache")
    (source / "module_00.py").write_text("something else entirely\n")
    with pytest.raises(TrainingError, match=r"are gone and .* has changed since"):
        evaluate_run(run.folder.path)


def test_a_folder_without_a_trained_network_is_refused(tmp_path):
    with pytest.raises(TrainingError, match="is no run folder"):
        evaluate_run(tmp_path)
    begun(RunFolder(tmp_path), "diverged", diverged=Divergence(step=7))
    with pytest.raises(TrainingError, match=r"holds no trained network \(NaN at step 7\)"):
        evaluate_run(tmp_path)


# --- stopping and resuming --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "step", "number"),
    [(EREG, 10, signal.SIGINT), ("SM+FN+R", 7, signal.SIGTERM)],
)
def test_a_stopped_run_resumes_to_the_same_bits(
    label, step, number, train, whole_runs, signal_at, tmp_path, monkeypatch
):
    signal_at(step, number)
    with pytest.raises(StopRequestedError, match=f"stopped at step {step} of 20.*to resume"):
        train(label, tmp_path)
    folder = plan_folder(tmp_path)
    info = folder.info()
    assert (info.status, info.steps_done) == ("interrupted", step)
    assert folder.complete_checkpoints()[-1].name == f"step-{step}"
    monkeypatch.undo()
    train(label, tmp_path)
    assert folder.info().status == "finished"
    assert_same_ending(folder, whole_runs(label))


def plan_folder(output: Path) -> RunFolder:
    (path,) = output.glob("*/run.json")
    return RunFolder(path.parent)


PAUSED = """
    import sys
    from aero.train.runs import checkpoints
    original = checkpoints.write_checksums
    def write_checksums(folder, checksums):
        if folder.name == "checkpoint-15":
            print("written but for the checksums", flush=True)
            sys.stdin.read()
        original(folder, checksums)
    checkpoints.write_checksums = write_checksums
    from aero.cli import main
    main()
"""


def test_a_run_in_training_is_locked_and_a_killed_one_resumes_from_its_last_checkpoint(
    train, whole_runs, tiny_recipe, corpus, cache_dir, tmp_path
):
    whole = whole_runs(EREG)
    command = [sys.executable, "-c", textwrap.dedent(PAUSED)]
    arguments = command_line(corpus, cache_dir, tmp_path, EREG)
    with subprocess.Popen(
        [*command, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "written but for the checksums\n"
        records = metrics(plan_folder(tmp_path))
        with pytest.raises(RunLockedError, match=rf"{tmp_path}/.* by process {process.pid} on "):
            train(EREG, tmp_path)
        assert metrics(plan_folder(tmp_path)) == records
        process.kill()
    assert process.returncode == -signal.SIGKILL
    folder = plan_folder(tmp_path)
    assert folder.info().status == "running"
    assert max(line.step for line in folder.metrics().lines) == 15
    assert (folder.checkpoints / "checkpoint-15" / "aero_state.json").exists()
    run = plan_one(tiny_recipe, EREG, tmp_path)
    assert run.checkpoint.name == "step-10"
    train(EREG, tmp_path)
    assert_same_ending(folder, whole)
    assert not (folder.checkpoints / "checkpoint-15").exists()


def test_resuming_from_an_earlier_checkpoint_repeats_the_rest(
    train, whole_runs, tiny_recipe, tmp_path
):
    whole = whole_runs("SM+FN+R")
    copy = tmp_path / whole.path.name
    shutil.copytree(whole.path, copy)
    train("SM+FN+R", tmp_path, resume=str(copy / "checkpoints" / "step-5"))
    assert_same_ending(RunFolder(copy), whole)


def test_a_finished_run_is_reused_untouched(whole_runs, tiny_recipe, cache_dir, monkeypatch):
    folder = whole_runs(EREG)
    before = {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")}
    monkeypatch.setattr(runs_module, "OneRun", lambda *a: pytest.fail("trained again"))
    said = []
    run = plan_one(tiny_recipe, EREG, folder.path.parent)
    train_runs([run], cache_dir=cache_dir, say=said.append)
    reused = f"{EREG} seed 0: reusing the finished run in {folder.path}"
    assert said == [f"{reused}; its checkpoints were not looked at"]
    assert {path: path.stat().st_mtime_ns for path in folder.path.rglob("*")} == before


def test_a_stop_between_runs_leaves_the_rest_for_the_next_call(
    tiny_recipe, cache_dir, tmp_path, signal_at
):
    signal_at(20, signal.SIGTERM)
    plan = plan_runs(tiny_recipe, ["SM+R", "SM+G"], [0], output=tmp_path)
    with pytest.raises(StopRequestedError, match=r"stopped before SM\+G seed 0"):
        train_runs(plan, cache_dir=cache_dir, say=lambda text: None)
    assert plan_folder(tmp_path).info().status == "finished"


def test_old_checkpoints_are_deleted(train, tiny_recipe, tmp_path):
    training = replace(tiny_recipe.training, keep_checkpoints=2, checkpoint_every_steps=3)
    folder = train("SM+R", tmp_path, recipe=replace(tiny_recipe, training=training))
    assert [path.name for path in folder.complete_checkpoints()] == ["step-15", "step-18"]


def test_a_run_under_way_always_has_a_checkpoint_before_the_last(
    train, tiny_recipe, tmp_path, signal_at, monkeypatch
):
    training = replace(tiny_recipe.training, keep_checkpoints=1)
    recipe = replace(tiny_recipe, training=training)
    signal_at(17, signal.SIGTERM)
    with pytest.raises(StopRequestedError):
        train("SM+R", tmp_path, recipe=recipe)
    monkeypatch.undo()
    folder = plan_folder(tmp_path)
    assert [path.name for path in folder.complete_checkpoints()] == ["step-15", "step-17"]
    train("SM+R", tmp_path, recipe=recipe)
    assert [path.name for path in folder.complete_checkpoints()] == ["step-20"]


def test_accumulated_micro_batches_train_like_one(train, whole_runs, tiny_recipe, tmp_path):
    training = replace(tiny_recipe.training, micro_batch_tokens=64)
    folder = train(EREG, tmp_path, recipe=replace(tiny_recipe, training=training))
    for small, large in zip(metrics(folder), metrics(whole_runs(EREG)), strict=True):
        if small["kind"] == "train":
            # Other summation order, amplified by 20 steps of AdamW.
            for name in ("loss", "lm_loss", "entropy_loss"):
                assert small[name] == pytest.approx(large[name], rel=1e-4)


# --- a full disk ------------------------------------------------------------------------------

LIMITED = """
    from aero.train import run_callback
    original = run_callback.RunCallback.on_step_begin
    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == 12:
            # No file may grow beyond this, so the checkpoint of step 15 fails half-way.
            leave_no_room(60_000)
        return original(self, args, state, control, **kwargs)
    run_callback.RunCallback.on_step_begin = on_step_begin
    from aero.cli import main
    main()
"""


def test_a_full_disk_during_a_checkpoint_is_one_clear_line_and_nothing_is_lost(
    train, whole_runs, tiny_recipe, corpus, cache_dir, tmp_path
):
    whole = whole_runs(EREG)
    failed = run_with_limit(LIMITED, *command_line(corpus, cache_dir, tmp_path, EREG))
    assert failed.returncode == 2
    line = failed.stderr.strip().splitlines()[-1]
    assert line.startswith("aero: train: no space left in ")
    assert "the checkpoint of step 15" in line and "run the same command again" in line
    assert "Traceback" not in failed.stderr
    folder = plan_folder(tmp_path)
    assert [path.name for path in folder.complete_checkpoints()] == ["step-5", "step-10"]
    assert not (folder.checkpoints / "checkpoint-15").exists()
    train(EREG, tmp_path)
    assert_same_ending(folder, whole)
