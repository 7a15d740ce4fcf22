"""A small corpus and a recipe of a few steps, shared by all training tests."""

import json
import os
import random
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from aero.internals.records import as_dict
from aero.train.recipes.recipe import Recipe
from aero.train.recipes.recipe_files import load_recipe
from aero.train.run_callback import RunCallback
from aero.train.runs.planning import PlannedRun, plan_runs
from aero.train.runs.run_folder import RunFolder
from aero.train.training import train_runs

from ..run_records import run_info

WORDS = [
    "def",
    "return",
    "self",
    "value",
    "index",
    "for",
    "in",
    "if",
    "else",
    "not",
    "None",
    "True",
]


def write_corpus(folder: Path, *, files: int = 12, lines: int = 120) -> Path:
    generator = random.Random(7)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        text = "\n".join(
            "    " * generator.randrange(3) + " ".join(generator.choices(WORDS, k=6))
            for _ in range(lines)
        )
        (folder / f"module_{number:02}.py").write_text(text + "\n")
    return folder


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus") / "source")


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


TINY_SETTINGS = [
    "data.vocabulary=320",
    "data.validation_fraction=0.2",
    "model.preset=tiny",
    "model.context_length=32",
    "optimizer.learning_rate=1e-2",
    "regularization.entropy_weight=1e-4",
    "regularization.temperature_init=1",
    "training.tokens_per_step=256",
    "training.tokens=5120",  # 20 steps
    "training.checkpoint_every_steps=5",
    "training.threads=1",
    "training.keep_checkpoints=8",
    "evaluation.every_steps=5",
    "evaluation.tokens=512",
    "evaluation.final_tokens=1024",
    "logging.every_steps=4",
    "logging.entropy_every_steps=10",
    "logging.entropy_windows=2",
]


def tiny_settings(corpus: Path) -> list[str]:
    return [*TINY_SETTINGS, f"data.source={corpus}"]


@pytest.fixture
def tiny_recipe(corpus: Path) -> Recipe:
    return load_recipe("demo", settings=tiny_settings(corpus))


def plan_one(recipe: Recipe, label: str, output: Path, **options: str) -> PlannedRun:
    return plan_runs(recipe, [label], [0], output=output, **options)[0]


def _train_whole(run: PlannedRun, cache_dir: Path) -> None:
    train_runs([run], cache_dir=cache_dir, say=lambda text: None)


@pytest.fixture(scope="session")
def whole_runs(tmp_path_factory, cache_dir, corpus, fork_server):
    """Runs that nothing interrupted, by label, which all tests share.

    A process of its own trains them: nothing that the first test to ask has patched is there.
    """
    recipe = load_recipe("demo", settings=tiny_settings(corpus))
    output, done = tmp_path_factory.mktemp("whole"), {}

    def whole(label: str) -> RunFolder:
        if label not in done:
            run = plan_one(recipe, label, output)
            process = fork_server.Process(target=_train_whole, args=(run, cache_dir))
            process.start()
            process.join()
            assert process.exitcode == 0
            done[label] = run.folder
        return done[label]

    return whole


def metrics(folder: RunFolder) -> list[dict]:
    """All lines but their times."""
    return [{**as_dict(line), "seconds": None} for line in folder.metrics().lines]


def begun(folder: RunFolder, status: str = "running", **entries: Any) -> RunFolder:
    """A folder with the `run.json` of a small run."""
    folder.write_info(run_info(status, **entries))
    return folder


def assert_same_ending(folder: RunFolder, other: RunFolder) -> None:
    assert metrics(folder) == metrics(other)
    last, other_last = (run.checkpoints / "step-20" for run in (folder, other))
    weights, other_weights = (load_file(path / "model.safetensors") for path in (last, other_last))
    assert weights.keys() == other_weights.keys()
    assert all(torch.equal(weights[name], other_weights[name]) for name in weights)
    state, other_state = (
        torch.load(path / "optimizer.pt", weights_only=True)["state"] for path in (last, other_last)
    )
    assert state.keys() == other_state.keys()
    for key in state:
        assert all(torch.equal(state[key][n], other_state[key][n]) for n in state[key])
    evaluation, other_evaluation = (
        json.loads((run.path / "evaluation.json").read_text()) for run in (folder, other)
    )
    assert evaluation == other_evaluation


def stopped_at(folder: RunFolder, step: int, target: Path) -> RunFolder:
    """A copy of a run as an interrupt after `step` leaves it."""
    shutil.copytree(folder.path, target)
    copy = RunFolder(target)
    copy.remove_results()
    copy.remove_checkpoints_after(step)
    copy.update(status="interrupted")
    return copy


def command_line(corpus: Path, cache_dir: Path, output: Path, label: str) -> list[str]:
    """Arguments of `aero` that train the networks of `tiny_recipe`."""
    settings = [f"--set={setting}" for setting in tiny_settings(corpus)]
    places = ["--output", str(output), "--cache-dir", str(cache_dir)]
    return ["train", "--label", label, *places, *settings]


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) * 3 // 5] ^= 1
    path.write_bytes(content)


DAMAGES = {
    "flipped": flip,
    "half": lambda path: os.truncate(path, path.stat().st_size // 2),
    "ones": lambda path: path.write_bytes(b"\xff" * 16 + path.read_bytes()[16:]),
    "empty": lambda path: os.truncate(path, 0),
    "gone": os.unlink,
}


@pytest.fixture
def signal_at(monkeypatch):
    """Lets this process receive a signal in the middle of a step."""

    def install(step: int, number: int) -> None:
        original = RunCallback.on_step_begin

        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step + 1 == step:
                signal.raise_signal(number)
            return original(self, args, state, control, **kwargs)

        monkeypatch.setattr(RunCallback, "on_step_begin", on_step_begin)

    return install
