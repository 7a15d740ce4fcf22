"""Checkpoints are whole or not taken; damage is named, and nothing is lost."""

import json
import re
import shutil
from pathlib import Path

import pytest

from aero.internals.errors import TrainingError
from aero.internals.records import changed
from aero.train.runs.checkpoints import from_whole_checkpoint
from aero.train.runs.run_results import open_run
from aero.train.trainer import AeroTrainer
from aero.train.training import train_runs

from .conftest import DAMAGES, assert_same_ending, plan_one, stopped_at

EREG = "EReg(SM(t)+ScFuFFN)"
FILES = [
    "model.safetensors", "config.json", "generation_config.json", "optimizer.pt", "scheduler.pt",
    "rng_state.pth", "trainer_state.json", "training_args.bin", "aero_state.json", "SHA256SUMS",
]  # fmt: skip


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {str(path): path.read_bytes() for path in files}


@pytest.fixture
def stopped(whole_runs, tiny_recipe, tmp_path):
    """A run stopped at step 15, and the plan of its command; it has checkpoints 5, 10 and 15."""
    whole = whole_runs(EREG)
    folder = stopped_at(whole, 15, tmp_path / whole.path.name)
    return folder, plan_one(tiny_recipe, EREG, tmp_path)


def test_a_checkpoint_has_a_checksum_of_every_file(stopped):
    folder, _ = stopped
    names = {path.name for path in (folder.checkpoints / "step-15").iterdir()}
    assert names == set(FILES)
    listed = (folder.checkpoints / "step-15" / "SHA256SUMS").read_text().splitlines()
    assert {line[66:] for line in listed} == names - {"SHA256SUMS"}


@pytest.mark.parametrize("damage", DAMAGES)
def test_whatever_is_damaged_is_named_and_the_checkpoint_before_is_taken(damage, stopped):
    folder, run = stopped
    latest = folder.checkpoints / "step-15"
    for name in FILES:
        whole = (latest / name).read_bytes()
        DAMAGES[damage](latest / name)
        said = []
        assert from_whole_checkpoint(run, said.append).checkpoint.name == "step-10", name
        (line,) = said
        # A digest that was flipped speaks against its file.
        named = latest / ("" if name == "SHA256SUMS" else name)
        assert line.startswith(f"{EREG} seed 0: not resuming from {latest}: {named}")
        (latest / name).write_bytes(whole)
        assert from_whole_checkpoint(run, pytest.fail).checkpoint == latest


def test_metrics_that_changed_are_named_and_an_earlier_checkpoint_is_taken(stopped):
    folder, run = stopped
    file = folder.path / "metrics.jsonl"
    whole = file.read_bytes()
    steps = [json.loads(line)["step"] for line in whole.splitlines()]
    lines = whole.splitlines(keepends=True)
    for index, step in enumerate(steps):
        changed = lines[index].replace(b"0", b"1", 1) if b"0" in lines[index] else b"\n"
        file.write_bytes(b"".join([*lines[:index], changed, *lines[index + 1 :]]))
        wanted = [n for n in (5, 10, 15) if n < step]
        said = []
        if wanted:
            taken = from_whole_checkpoint(run, said.append).checkpoint
            assert taken.name == f"step-{wanted[-1]}"
        else:
            with pytest.raises(TrainingError, match=r"no checkpoint in .* nothing was changed"):
                from_whole_checkpoint(run, said.append)
        assert len(said) == 3 - len(wanted)
        assert all(f"{file} does not begin as step-" in line for line in said)
    # Cut off after a line: the rest is whole.
    file.write_bytes(b"".join(lines[:-6]))
    assert from_whole_checkpoint(run, lambda text: None).checkpoint.name == "step-10"
    file.unlink()
    with pytest.raises(TrainingError, match="no checkpoint"):
        from_whole_checkpoint(run, lambda text: None)


def test_a_flipped_bit_costs_the_steps_since_the_checkpoint_before(stopped, cache_dir, whole_runs):
    folder, run = stopped
    DAMAGES["flipped"](folder.checkpoints / "step-15" / "model.safetensors")
    said = []
    train_runs([run], cache_dir=cache_dir, say=said.append)
    weights = folder.checkpoints / "step-15" / "model.safetensors"
    about_data, damaged, resumed = said[:3]
    assert about_data.startswith("data: ")
    assert f"{weights} does not match its SHA-256" in damaged
    assert resumed == f"{EREG} seed 0: resuming from {folder.checkpoints / 'step-10'}"
    assert_same_ending(folder, whole_runs(EREG))


def test_a_run_stopped_after_its_last_step_records_what_a_whole_one_does(
    whole_runs, tiny_recipe, cache_dir, tmp_path
):
    whole = whole_runs("SM+FN+R")
    folder = stopped_at(whole, 20, tmp_path / whole.path.name)
    train_runs([plan_one(tiny_recipe, "SM+FN+R", tmp_path)], cache_dir=cache_dir, say=print)
    assert folder.metrics().validation[-1].norm_discrepancy > 0
    assert_same_ending(folder, whole)


def test_without_a_whole_checkpoint_nothing_is_changed(stopped, cache_dir):
    folder, run = stopped
    for checkpoint in folder.complete_checkpoints():
        DAMAGES["flipped"](checkpoint / "optimizer.pt")
    before = contents(folder.path)
    said = []
    message = f"no checkpoint in {folder.checkpoints} is whole .*optimizer.pt does not match"
    with pytest.raises(TrainingError, match=message):
        train_runs([run], cache_dir=cache_dir, say=said.append)
    assert said[0].startswith("data: ")
    steps = [str(path) for path in folder.complete_checkpoints()[::-1]]
    assert [re.search("not resuming from (.+?): ", line)[1] for line in said[1:]] == steps
    assert contents(folder.path) == before


def test_a_named_checkpoint_that_is_damaged_is_refused(stopped, tiny_recipe):
    folder, _ = stopped
    path = folder.checkpoints / "step-10"
    run = plan_one(tiny_recipe, EREG, folder.path.parent, resume=str(path))
    assert from_whole_checkpoint(run, pytest.fail).checkpoint == path
    DAMAGES["flipped"](path / "scheduler.pt")
    with pytest.raises(TrainingError, match=f"cannot resume from {path}: .*scheduler.pt does not"):
        from_whole_checkpoint(run, pytest.fail)


def test_auto_is_a_word_wherever_it_was_written(stopped, tiny_recipe):
    folder, _ = stopped
    word = "".join(["au", "to"])  # as of a command line: equal to the constant, and not the same
    run = plan_one(tiny_recipe, EREG, folder.path.parent, resume=word)
    DAMAGES["flipped"](folder.checkpoints / "step-15" / "optimizer.pt")
    assert from_whole_checkpoint(run, lambda text: None).checkpoint.name == "step-10"


def test_a_checkpoint_under_another_steps_name_is_not_taken(stopped):
    folder, run = stopped
    (folder.checkpoints / "step-15").rename(folder.checkpoints / "step-17")
    said = []
    assert from_whole_checkpoint(run, said.append).checkpoint.name == "step-10"
    assert said[0].endswith("step-17 holds step 15")


def test_any_trainer_of_ours_refuses_a_damaged_checkpoint(stopped):
    folder, _ = stopped
    checkpoint = folder.checkpoints / "step-10"
    DAMAGES["flipped"](checkpoint / "trainer_state.json")
    trainer = object.__new__(AeroTrainer)
    with pytest.raises(TrainingError, match=r"step-10 is damaged .*trainer_state.json does not"):
        trainer.train(resume_from_checkpoint=str(checkpoint))
    (checkpoint / "SHA256SUMS").unlink()
    with pytest.raises(TrainingError, match=r"SHA256SUMS is missing"):
        trainer.train(resume_from_checkpoint=checkpoint)


def test_a_run_does_not_go_on_with_another_corpus(stopped, cache_dir):
    folder, run = stopped
    corpus = folder.info().corpus
    folder.update(corpus=changed(corpus, sha256="0" * 64))
    before = contents(folder.path)
    with pytest.raises(TrainingError, match=r"trained on another corpus \(sha256 differ\)"):
        train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    assert before.items() <= contents(folder.path).items()


@pytest.mark.parametrize("name", ["config.yaml", "run.json"])
def test_damaged_files_of_a_run_at_rest_are_one_line(name, stopped, tiny_recipe):
    folder, _ = stopped
    whole = (folder.path / name).read_bytes()
    for damage in ("flipped", "half", "ones", "empty"):
        DAMAGES[damage](folder.path / name)
        with pytest.raises(TrainingError) as error:
            plan_one(tiny_recipe, EREG, folder.path.parent)
        assert str(folder.path / name) in str(error.value) and "\n" not in str(error.value)
        (folder.path / name).write_bytes(whole)


def test_a_damaged_trained_network_is_named_wherever_it_is_loaded(whole_runs, tmp_path):
    folder = stopped_at(whole_runs("SM+FN+R"), 20, tmp_path / "run")
    shutil.copytree(whole_runs("SM+FN+R").model, folder.model)
    folder.update(status="finished")
    open_run(folder)
    DAMAGES["flipped"](folder.model / "model.safetensors")
    with pytest.raises(TrainingError, match=r"model\.safetensors does not match its SHA-256"):
        open_run(folder)
