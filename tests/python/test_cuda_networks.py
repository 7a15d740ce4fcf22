"""Steps that a GPU replays are those of `aero train`; the CPU has no graphs and calls each."""

from __future__ import annotations

import json
import shutil
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.python.refusals import assert_refused

from aero.report import read_run
from aero.train.data.prepared_data import prepare_data
from aero.train.recipes.recipe import Recipe
from aero.train.recipes.recipe_files import load_recipe
from aero.train.runs.run_folder import RunFolder
from aero.train.training import train_runs
from benchmarks.paper.cells import Cell

CUDA_BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks" / "cuda"


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(CUDA_BENCHMARKS))
    import networks

    yield networks
    sys.modules.pop("networks")


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    for number in range(40):
        text = f"{number} or not {number}, that is the question {number * 7}. " * 12
        (folder / f"{number}.txt").write_text(text)
    return folder


def metrics(cell: Cell, output: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cell.folder(output).path / "metrics.jsonl").open()]


def small_recipe(corpus: Path, *changes: str) -> Recipe:
    return load_recipe(
        "demo",
        settings=(
            f'data.source="{corpus}"', "data.vocabulary=300", "model.num_layers=2",
            "model.context_length=32", "training.tokens=2048", "training.tokens_per_step=128",
            "training.precision=bfloat16", "training.threads=1", "evaluation.every_steps=0",
            "evaluation.final_tokens=512", "logging.every_steps=4",
            "logging.entropy_every_steps=0", "logging.tensorboard=false", *changes,
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("label", "change", "named"),
    [
        ("SM+LN+G", "schedule.shape=cosine", "use `aero train`"),
        ("SM+LN+G", "training.precision=float16", "use `aero train`"),
        ("EReg(SM(t)+ScFuFFN)", "model.num_layers=2", "use `aero train`"),
        ("SM(t)+ScFuFFN", "model.num_layers=2", "use `aero train`"),
        ("SM+LN+G", "data.vocabulary=299", "--prepared"),
        ("SM+LN+G", 'data.source="elsewhere"', "--prepared"),
    ],
)
def test_what_is_not_trained_by_replay_is_refused(
    label: str, change: str, named: str, networks: Any, corpus: Path, tmp_path: Path
) -> None:
    length = 32 if "train" in named else 128
    data = prepare_data(small_recipe(corpus).data, cache_dir=tmp_path, context_length=length)
    cell = Cell(label, 3, small_recipe(corpus, change), "group")
    texts = networks.Texts([data.folder], "cpu")
    assert_refused(lambda: networks.train([cell], texts, tmp_path, 0.0), named)


@pytest.mark.parametrize("label", ("SM+LN+G", "SM+FN+R+S4", "SM+ScFuFFN+S4"))
def test_a_run_by_captured_steps_has_the_losses_of_aero_train(
    label: str, networks: Any, corpus: Path, tmp_path: Path
) -> None:
    recipe = small_recipe(corpus)
    cell = Cell(label, 3, recipe, "group")
    cache = tmp_path / "corpora"
    there, here = tmp_path / "there", tmp_path / "here"
    train_runs([cell.planned(there)], cache_dir=cache, say=lambda text: None)
    data = prepare_data(recipe.data, cache_dir=cache, context_length=32)
    assert networks.train([cell], networks.Texts([data.folder], "cpu"), here, float("inf"))
    assert cell.status(here) == "finished"
    assert read_run(cell.folder(here).path).analysis is None
    lines = [
        [line for line in metrics(cell, each) if line["kind"] != "entropy"]
        for each in (there, here)
    ]
    assert len(lines[0]) == len(lines[1]) == 5
    for one, other in zip(*lines, strict=True):
        assert one.keys() == other.keys()
        for name in one.keys() - {"seconds", "norm_discrepancy", "kind"}:
            if one[name] is not None:
                # In bfloat16 a difference of 1e-6 grows to some 1e-3 of a gradient in four steps.
                most = 5e-3 if name == "grad_norm" else 1e-3
                assert other[name] == pytest.approx(one[name], rel=most), name
    assert cell.perplexity(here) == pytest.approx(cell.perplexity(there), rel=1e-3)
    archive = tmp_path / "archive.tar.xz"
    networks.pack(archive, here)
    assert 1_000 < archive.stat().st_size < 100_000
    # Runs of other targets, from an earlier call, stay; what did not end is left out.
    folder = cell.folder(here).path
    shutil.copytree(folder, folder.with_name("of-another-target"))
    unended = shutil.copytree(folder, folder.with_name("unended"))
    RunFolder(unended).update(status="running")
    networks.pack(archive, here)
    with tarfile.open(archive) as file:
        assert {Path(name).parent.name for name in file.getnames()} == {
            folder.name, "of-another-target",
        }  # fmt: skip
