"""A run's files and calls, whole: what stands in run.json, and who is asked for what."""

import hashlib
import json
import shlex
import sys
import types
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from tests.python.refusals import assert_told
from transformers import PrinterCallback
from transformers.utils import logging as transformers_logging

from aero.internals import machine
from aero.internals.errors import TrainingError
from aero.internals.machine import git_commit, hardware, package_versions, processor
from aero.internals.records import as_dict, changed
from aero.train import one_run
from aero.train.data.prepared_data import prepare_data
from aero.train.one_run import OneRun, build_trainer, open_folder
from aero.train.progress import StopRequest
from aero.train.runs import checkpoints
from aero.train.runs.checkpoints import finish_checkpoint, runs_below
from aero.train.runs.origins import Origin
from aero.train.starting import training_arguments
from aero.train.training import train_runs

from .conftest import plan_one, stopped_at

EREG, FOLDABLE = "EReg(SM(t)+ScFuFFN)", "SM+FN+R"


@pytest.fixture
def short(tiny_recipe):
    """One step."""
    return replace(tiny_recipe, training=replace(tiny_recipe.training, tokens=256))


@pytest.fixture
def data(tiny_recipe, cache_dir):
    return prepare_data(tiny_recipe.data, cache_dir=cache_dir, context_length=32)


def test_run_json_is_this(whole_runs, tiny_recipe, data, tmp_path):
    folder = whole_runs(EREG)
    run = plan_one(tiny_recipe, EREG, tmp_path)
    info = json.loads((folder.path / "run.json").read_text())
    seconds, deviations = info.pop("seconds"), info.pop("first_score_deviations")
    assert seconds > 0 and round(seconds, 3) == seconds
    assert len(deviations) == 2 and all(value >= 0 for value in deviations)
    assert info == {
        "format": 1,
        "status": "finished",
        "label": EREG,
        "slug": "ereg-sm-t-scfuffn",
        "seed": 0,
        "spec": run.spec.to_dict(),
        "steps_done": 20,
        "steps_total": 20,
        "tokens_per_step": 256,
        "versions": package_versions(),
        "hardware": f"{processor()}, 1 thread",
        "git_commit": git_commit(),
        "corpus": as_dict(data.record()),
        "from": None,
        "distilled_from": None,
        "selected_from": None,
        "diverged": None,
        "skipped_steps": 0,
        "command": shlex.join(["aero", *sys.argv[1:]]),
    }
    assert yaml.safe_load((folder.path / "config.yaml").read_text()) == run.config()
    assert json.loads((folder.path / "manifest.json").read_text()) == as_dict(data.manifest)
    config = json.loads((folder.model / "config.json").read_text())
    mark = data.tokenizer.eos_token_id
    assert config["bos_token_id"] == config["eos_token_id"] == mark is not None
    names = {path.name for path in folder.model.iterdir()}
    assert names >= {"SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json"}
    listed = (folder.path / "SHA256SUMS").read_text().splitlines()
    assert {line[66:] for line in listed} == {
        "config.yaml", "manifest.json", "metrics.jsonl", "run.json", "evaluation.json",
        "analysis.json", "analysis.npz", "sample.json",
    }  # fmt: skip


def test_a_run_that_ends_asks_for_its_measurements(short, data, cache_dir, tmp_path, monkeypatch):
    asked = {}

    def spy(name):
        original = getattr(one_run, name)

        def called(*given, **options):
            asked[name] = (given[1:], options)
            asked.setdefault("order", []).append(name)
            return original(*given, **options)

        monkeypatch.setattr(one_run, name, called)

    for name in ("norm_gap", "save_model", "write_evaluation", "analyze_model"):
        spy(name)
    recipe = replace(short, evaluation=replace(short.evaluation, batch_tokens=2048))
    run, said = plan_one(recipe, FOLDABLE, tmp_path), []
    train_runs([run], cache_dir=cache_dir, say=said.append)
    evaluation = json.loads((run.folder.path / "evaluation.json").read_text())
    info = run.folder.info()
    assert said[1:] == [
        f"{FOLDABLE} seed 0: perplexity {evaluation['perplexity']:.2f} after "
        f"{info.seconds:.0f} s, in {run.folder.path}"
    ]
    assert asked.pop("order") == ["norm_gap", "save_model", "write_evaluation", "analyze_model"]
    used = asked["save_model"][0][0]
    assert {name: options for name, (_, options) in asked.items()} == {
        "norm_gap": {"context_length": 32, "max_tokens": 512, "batch_tokens": 256},
        "save_model": {},
        "write_evaluation": {"gap": evaluation["norm_gap"]},
        "analyze_model": {"batch_tokens": 2048},
    }
    assert asked["norm_gap"][0] == (used,) and used.folder == data.folder
    assert asked["analyze_model"][0] == asked["save_model"][0] == (used, run.folder)
    (last,) = run.folder.metrics().validation
    assert (last.step, last.tokens) == (1, 32 * 31)


def test_a_folder_that_begins_again_holds_nothing_of_before(short, data, tmp_path):
    run = plan_one(short, "SM", tmp_path)
    old = ["run.json", "metrics.jsonl", "evaluation.json", "fixed_point.json", "tensorboard/x"]
    old += ["model/config.json", "checkpoints/step-1/x", "checkpoints/checkpoint-1/x"]
    for name in old:
        path = run.folder.path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"from": 1}')
    open_folder(run, data)
    there = {p.name for p in run.folder.path.rglob("*") if p.is_file()}
    assert there == {"run.json", "config.yaml", "manifest.json", "metrics.jsonl", "SHA256SUMS"}
    assert (run.folder.path / "metrics.jsonl").read_bytes() == b""
    info = run.folder.info()
    assert info.status == "running" and info.start is None and info.seconds == 0.0
    assert (info.steps_done, info.steps_total) == (0, 1)
    origin = Origin(tmp_path, tmp_path, tmp_path, "SM", 3, 4, 5.0)
    open_folder(replace(run, source=origin, teacher=origin), data)
    record = {"path": str(tmp_path), "label": "SM", "steps": 3, "tokens": 4, "flops_per_token": 5.0}
    record["sha256"] = hashlib.sha256(b"").hexdigest()
    info = run.folder.info()
    assert as_dict(info.start) == {**record, "annealing": asdict(short.annealing)}
    assert as_dict(info.distilled_from) == {**record, **asdict(short.distillation)}


def test_a_corpus_that_changed_is_named_by_what_differs(whole_runs, tiny_recipe, data, tmp_path):
    folder = stopped_at(whole_runs(EREG), 10, tmp_path / whole_runs(EREG).path.name)
    run = plan_one(tiny_recipe, EREG, tmp_path)
    corpus = folder.info().corpus
    folder.update(corpus=changed(corpus, name="x", train_tokens=1))
    with pytest.raises(TrainingError) as error:
        open_folder(run, data)
    assert_told(error, folder.path, "name, train_tokens", "--output")


def test_transformers_is_silent_while_a_run_goes_on(short, data, tmp_path):
    bare = Origin(tmp_path, tmp_path, tmp_path)
    level = transformers_logging.get_verbosity()
    for which, option in (("source", "--from"), ("teacher", "--distill-from")):
        transformers_logging.set_verbosity_info()
        transformers_logging.enable_progress_bar()
        run = replace(plan_one(short, "SM", tmp_path), **{which: bare})
        with pytest.raises(TrainingError) as error:
            OneRun(run, data, StopRequest(), print, print)
        assert_told(error, f"{option} {tmp_path}", "tokenizer.json")
        assert transformers_logging.get_verbosity() == transformers_logging.ERROR
        assert not transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity(level)


def test_a_warning_about_first_scores_is_said_once_by_the_first_process(
    short, data, tmp_path, monkeypatch
):
    said = []
    monkeypatch.setattr(
        one_run, "score_deviations", lambda model, ids: [0.5, ids.numel() / ids.dim()]
    )
    monkeypatch.setattr(one_run, "first_scores_warning", lambda model, found: f"close {found}")
    run = plan_one(short, "SM", tmp_path)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        OneRun(run, data, StopRequest(), print, said.append)._recorder.close()
    assert said == ["SM seed 0: close [0.5, 16.0]"]  # of one window
    assert run.folder.info().first_score_deviations == [0.5, 16.0]


def test_the_arguments_of_the_trainer_are_those_of_the_recipe(short, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    optimizer = replace(short.optimizer, beta1=0.5, beta2=0.25, epsilon=0.125, weight_decay=0.75)
    training = replace(short.training, micro_batch_tokens=64, precision="bfloat16")
    schedule = replace(short.schedule, shape="cosine", warmup_steps=3, final_learning_rate=0.5)
    recipe = replace(short, optimizer=optimizer, training=training, schedule=schedule)
    wanted = {
        "output_dir": str(tmp_path / "sm-seed0" / "checkpoints"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "optim": "adamw_torch_fused",
        "learning_rate": 1e-2,
        "adam_beta1": 0.5,
        "adam_beta2": 0.25,
        "adam_epsilon": 0.125,
        "weight_decay": 0.75,
        "max_grad_norm": 1.0,
        "lr_scheduler_type": "cosine_with_min_lr",
        "lr_scheduler_kwargs": {"min_lr": 0.5},
        "warmup_steps": 3,
        "seed": 0,
        "use_cpu": True,
        "bf16": True,
        "fp16": False,
        "logging_strategy": "no",
        "eval_strategy": "no",
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "logging_nan_inf_filter": False,
        "remove_unused_columns": False,
        "dataloader_pin_memory": False,
        "ddp_find_unused_parameters": False,
        "log_level": "error",
    }
    found = training_arguments(plan_one(recipe, "SM", tmp_path))
    assert {name: getattr(found, name) for name in wanted} == wanted
    plain = replace(short, optimizer=replace(short.optimizer, clip_norm=None))
    found = training_arguments(plan_one(plain, "SM", tmp_path))
    assert (found.lr_scheduler_type, found.lr_scheduler_kwargs) == ("linear", {})
    assert (found.max_grad_norm, found.bf16, found.gradient_accumulation_steps) == (0.0, False, 1)
    monkeypatch.setattr("aero.train.starting.TrainingArguments", types.SimpleNamespace)
    assert vars(training_arguments(plan_one(recipe, "SM", tmp_path))) == wanted
    monkeypatch.setenv("WORLD_SIZE", "4")
    shared = vars(training_arguments(plan_one(plain, "SM", tmp_path)))
    assert (shared["per_device_train_batch_size"], shared["lr_scheduler_kwargs"]) == (2, {})


@pytest.mark.parametrize(
    ("label", "callbacks"),
    [
        ("SM", []),
        (EREG, ["PenaltyScheduleCallback"]),
    ],
)
def test_a_trainer_has_the_schedules_of_its_network(label, callbacks, short, tmp_path):
    regularization = replace(short.regularization, penalty_schedule="falling")
    optimizer = replace(short.optimizer, temperature_rate=0.5, threshold_rate=0.25)
    recipe = replace(short, regularization=regularization, optimizer=optimizer)
    run = plan_one(recipe, label, tmp_path)
    model = one_run.build_model(run)
    trainer = build_trainer(run, model, training_arguments(run), [0])
    kinds = [type(callback).__name__ for callback in trainer.callback_handler.callbacks]
    assert [kind for kind in kinds if kind.endswith("ScheduleCallback")] == callbacks
    assert PrinterCallback.__name__ not in kinds and "AnnealingCallback" not in kinds
    assert trainer._learning_rate_factors == {"temperature.value": 0.5, "entropy_threshold": 0.25}
    for callback in trainer.callback_handler.callbacks:
        if type(callback).__name__ == "PenaltyScheduleCallback":
            assert (callback._weight, callback._schedule) == (1e-4, "falling")


# --- checkpoints ------------------------------------------------------------------------------


def test_every_file_of_a_checkpoint_is_on_disk_before_it_is_vouched_for(tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    opened = Path("/proc/self/fd")
    synced, before = [], len(list(opened.iterdir()))
    monkeypatch.setattr(
        checkpoints.os, "fsync", lambda n: synced.append((opened / str(n)).readlink())
    )
    finish_checkpoint(tmp_path, {"skipped_steps": 0})
    assert {"aero_state.json", "model.safetensors"} <= {path.name for path in synced}
    assert len(list(opened.iterdir())) == before
    assert json.loads((tmp_path / "aero_state.json").read_text()) == {"skipped_steps": 0}
    listed = (tmp_path / "SHA256SUMS").read_text().splitlines()
    assert [line[66:] for line in listed] == ["aero_state.json", "model.safetensors"]


def test_runs_are_found_once_wherever_they_are_named(tmp_path):
    for name in ("b/run", "a", "c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "run.json").write_text("{}")
    asked = [tmp_path / "c", str(tmp_path), tmp_path / "b"]
    assert runs_below(asked) == [tmp_path / name for name in ("c", "a", "b/run")]
    (tmp_path / "em\npty").mkdir()
    with pytest.raises(TrainingError) as error:
        runs_below([tmp_path, tmp_path / "em\npty"])
    told = str(tmp_path / "em\npty").replace("\n", "\\n")
    assert_told(error, told, "run.json")


# --- the machine ------------------------------------------------------------------------------


def test_a_machine_with_gpus_names_them(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA X")
    assert hardware() == f"{processor()}, 2 threads, 3 x NVIDIA X"


def test_a_commit_is_asked_of_git_and_may_be_unknown(monkeypatch):
    asked = []

    def run(command, **options):
        asked.append((command, options))
        if len(asked) > 1:
            raise errors[len(asked) - 2]
        return types.SimpleNamespace(stdout="abc\n")

    errors = [FileNotFoundError("git"), machine.subprocess.TimeoutExpired("git", 10)]
    monkeypatch.setattr(machine.subprocess, "run", run)
    assert [git_commit() for _ in range(3)] == ["abc", None, None]
    command = ["git", "-C", str(Path(machine.__file__).parent), "rev-parse", "HEAD"]
    options = {"capture_output": True, "text": True, "check": True, "timeout": 10}
    assert asked[0] == (command, options)


def test_the_versions_of_a_result_are_these():
    names = ["aero", "python", "torch", "transformers", "accelerate", "tokenizers", "numpy"]
    assert list(package_versions()) == names
    assert package_versions()["numpy"] == np.__version__


def test_a_package_that_the_environment_replaced_since_is_named_as_it_was_loaded(monkeypatch):
    assert machine.metadata.version("numpy") == np.__version__
    monkeypatch.setattr(machine.metadata, "version", lambda name: f"{name} of now")
    assert package_versions()["numpy"] == np.__version__
    monkeypatch.delitem(sys.modules, "accelerate", raising=False)
    assert package_versions()["accelerate"] == "accelerate of now"
