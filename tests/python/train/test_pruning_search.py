"""The search prunes one FFN after the other, backs off, and goes on where it was stopped."""

import errno
import json
import math
import os
import signal

import pytest
from typer.testing import CliRunner

from aero.cli import app
from aero.nn import attention as attention_module
from aero.train import runs as runs_module
from aero.train import search_prunable_ffns
from aero.train.errors import StopRequestedError, TrainingError
from aero.train.recipe_files import load_recipe
from aero.train.run_callback import RunCallback
from aero.train.run_folder import RunFolder

from .conftest import metrics, tiny_settings

LABEL = "SM+ScFuFFN"


def search(recipe, cache_dir, output, **options):
    bounds = {"max_loss_increase": 10.0, "max_collapsed_heads": 1.0}
    return search_prunable_ffns(
        recipe,
        LABEL,
        seed=0,
        output=output,
        cache_dir=cache_dir,
        say=lambda text: None,
        **{**bounds, **options},
    )


@pytest.fixture(scope="module")
def whole_search(tmp_path_factory, corpus, cache_dir):
    """A search without narrow bounds that nothing interrupted; both layers are pruned."""
    recipe = load_recipe("demo", settings=tiny_settings(corpus))
    return search(recipe, cache_dir, tmp_path_factory.mktemp("search"))


def test_all_ffns_go_where_the_bounds_allow_it(whole_search):
    assert whole_search.label == "SM+ScFuFFN_i2"
    assert [stage.pruned for stage in whole_search.stages] == [0, 1, 2]
    for stage in whole_search.stages:
        folder = RunFolder(stage.folder)
        assert stage.ending == "finished" and stage.verdict == "kept"
        assert folder.info()["spec"]["num_pruned_ffns"] == stage.pruned
        evaluation = json.loads((folder.path / "evaluation.json").read_text())
        assert stage.loss == evaluation["loss"]
    table = json.loads(whole_search.table.read_text())
    assert whole_search.table.name == "sm-scfuffn-pruning-seed0.json"
    assert table["label"] == "SM+ScFuFFN_i2" and len(table["stages"]) == 3
    text = whole_search.to_text().splitlines()
    assert text[1].split() == ["0", f"{whole_search.stages[0].loss:.4f}", "0%", "kept"]
    assert text[-1] == "SM+ScFuFFN_i2 keeps within the bounds"


def test_a_loss_beyond_the_bound_ends_the_search(whole_search, tiny_recipe, cache_dir, monkeypatch):
    monkeypatch.setattr(runs_module, "OneRun", lambda *a: pytest.fail("trained again"))
    losses = [stage.loss for stage in whole_search.stages]
    bound = max(losses[1] - losses[0], 0.0)  # as much as the first stage needs
    narrow = search(
        tiny_recipe, cache_dir, whole_search.table.parent, max_loss_increase=bound + 1e-9
    )
    expected = 2 if losses[2] - losses[0] <= bound else 1
    assert narrow.label == f"SM+ScFuFFN_i{expected}"
    if expected == 1:
        assert narrow.stages[-1].verdict == f"loss grew by {losses[2] - losses[0]:.4f}"


@pytest.fixture
def half_collapsed(whole_search):
    """Lets a stage have lost half of its heads."""
    before = {}

    def collapse(stage):
        folder = RunFolder(whole_search.stages[stage].folder)
        before[folder] = json.loads((folder.path / "analysis.json").read_text())
        quarters = {**before[folder]["quarters"], "log_context": [0.5, 0.5, 0.0, 0.0]}
        folder.write_result("analysis.json", {**before[folder], "quarters": quarters})

    yield collapse
    for folder, analysis in before.items():
        folder.write_result("analysis.json", analysis)


def test_collapsed_heads_end_the_search(half_collapsed, whole_search, tiny_recipe, cache_dir):
    half_collapsed(1)
    found = search(tiny_recipe, cache_dir, whole_search.table.parent, max_collapsed_heads=0.25)
    assert found.label == "SM+ScFuFFN" and len(found.stages) == 2
    assert found.stages[1].verdict == "50% of the heads collapsed"


def test_a_damaged_measurement_judges_nothing(whole_search, tiny_recipe, cache_dir):
    file = RunFolder(whole_search.stages[1].folder).path / "evaluation.json"
    before = file.read_bytes()
    file.write_bytes(before.replace(b"1", b"2", 1))
    try:
        with pytest.raises(TrainingError, match=f"{file} does not match its SHA-256"):
            search(tiny_recipe, cache_dir, whole_search.table.parent)
    finally:
        file.write_bytes(before)


@pytest.mark.parametrize("bound", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["max_loss_increase", "max_collapsed_heads"])
def test_bounds_that_mean_nothing_are_refused(name, bound, tiny_recipe, cache_dir, tmp_path):
    with pytest.raises(TrainingError, match=f"prune: {name} must be [<>]= "):
        search(tiny_recipe, cache_dir, tmp_path, **{name: bound})
    assert not list(tmp_path.iterdir())


def test_a_stage_with_nan_is_backed_off_from(tiny_recipe, cache_dir, tmp_path, monkeypatch):
    trained = []
    original = attention_module.causal_attention
    begin = RunCallback.on_train_begin

    def on_train_begin(self, *arguments, **options):
        trained.append(self._folder.path.name)
        return begin(self, *arguments, **options)

    def poisoned(*arguments, **options):
        output, entropy = original(*arguments, **options)
        return output * (math.nan if "-i1-" in "".join(trained[-1:]) else 1.0), entropy

    monkeypatch.setattr(RunCallback, "on_train_begin", on_train_begin)
    monkeypatch.setattr(attention_module, "causal_attention", poisoned)
    found = search(tiny_recipe, cache_dir, tmp_path)
    assert found.label == "SM+ScFuFFN"
    assert found.stages[1].verdict == "NaN at step 1" and found.stages[1].loss is None
    assert trained == ["sm-scfuffn-seed0", "sm-scfuffn-i1-seed0"]


def test_a_stopped_search_goes_on_where_it_was(
    whole_search, tiny_recipe, cache_dir, tmp_path, monkeypatch
):
    begin, trained = RunCallback.on_step_begin, []

    def on_step_begin(self, args, state, control, **kwargs):
        trained.append((self._folder.path.name, state.global_step + 1))
        if trained[-1] == ("sm-scfuffn-i1-seed0", 9):
            signal.raise_signal(signal.SIGTERM)
        return begin(self, args, state, control, **kwargs)

    monkeypatch.setattr(RunCallback, "on_step_begin", on_step_begin)
    with pytest.raises(StopRequestedError, match=r"SM\+ScFuFFN_i1 seed 0 was stopped at step 9"):
        search(tiny_recipe, cache_dir, tmp_path)
    table = tmp_path / "sm-scfuffn-pruning-seed0.json"
    assert len(json.loads(table.read_text())["stages"]) == 1
    monkeypatch.undo()
    monkeypatch.setattr(RunCallback, "on_step_begin", on_step_begin)
    trained.clear()
    found = search(tiny_recipe, cache_dir, tmp_path)
    assert trained[0] == ("sm-scfuffn-i1-seed0", 10) and len(trained) == 11 + 20
    assert [s.loss for s in found.stages] == [s.loss for s in whole_search.stages]
    for one, other in zip(found.stages, whole_search.stages, strict=True):
        assert metrics(RunFolder(one.folder)) == metrics(RunFolder(other.folder))


def test_from_a_trained_network_each_stage_continues_the_one_before(
    whole_runs, tiny_recipe, cache_dir, tmp_path
):
    source = whole_runs("SM+LN+G").path
    found = search(tiny_recipe, cache_dir, tmp_path, start_from=source)
    names = [RunFolder(stage.folder).path.name for stage in found.stages]
    assert names == [
        "sm-scfuffn-annealed-seed0",
        "sm-scfuffn-i1-continued-seed0",
        "sm-scfuffn-i2-continued-seed0",
    ]
    origins = [RunFolder(stage.folder).info()["from"]["path"] for stage in found.stages]
    assert origins == [str(source), found.stages[0].folder, found.stages[1].folder]


def test_a_full_disk_costs_no_finished_stage(whole_search, tiny_recipe, cache_dir, monkeypatch):
    output, earlier = whole_search.table.parent, whole_search.table.read_text()

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        message = rf"prune: no space left in {output} while writing the search's table; .*run the"
        with pytest.raises(TrainingError, match=message):
            search(tiny_recipe, cache_dir, output)
    assert whole_search.table.read_text() == earlier
    assert search(tiny_recipe, cache_dir, output) == whole_search


def test_a_network_that_goes_wrong_unpruned_is_an_error(
    half_collapsed, whole_search, tiny_recipe, cache_dir
):
    half_collapsed(0)
    with pytest.raises(TrainingError, match=r"goes wrong before anything is pruned \(50% of the"):
        search(tiny_recipe, cache_dir, whole_search.table.parent, max_collapsed_heads=0.25)


def test_the_commands_print_their_tables(whole_search, corpus, cache_dir):
    run = whole_search.stages[0].folder
    scored = CliRunner().invoke(app, ["prune", "score", run, "--max-tokens", "512"])
    assert scored.exit_code == 0, scored.output
    lines = scored.stdout.splitlines()
    assert lines[0].startswith("layer") and len(lines) == 4 and "deepest can go" in lines[-1]
    settings = [f"--set={setting}" for setting in tiny_settings(corpus)]
    searched = CliRunner().invoke(
        app,
        [
            *("prune", "search", "--label", LABEL, "--max-loss-increase", "10"),
            *("--max-collapsed-heads", "1", "--output", str(whole_search.table.parent)),
            *("--cache-dir", str(cache_dir), *settings),
        ],
    )
    assert searched.exit_code == 0, searched.output
    assert searched.stdout.startswith(whole_search.to_text())
    refused = CliRunner().invoke(app, ["prune", "score", str(whole_search.table.parent / "no")])
    assert refused.exit_code == 2 and "is no run folder" in refused.stderr
