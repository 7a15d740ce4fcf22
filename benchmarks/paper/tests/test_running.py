import dataclasses
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from tests.python.refusals import assert_refused
from tests.python.run_records import run_info
from typer.testing import CliRunner

from aero.internals.errors import StopRequestedError, TrainingError
from aero.internals.records import changed
from aero.internals.run_files import Divergence, Evaluation
from aero.report.networks import spread_of
from aero.report.runs import read_run
from aero.train import Recipe
from aero.train.runs.run_folder import locked
from benchmarks.paper import outcome
from benchmarks.paper.cells import plan_target
from benchmarks.paper.command import app
from benchmarks.paper.document import results_document, write_results
from benchmarks.paper.outcome import collect_target, write_target
from benchmarks.paper.run_statistics import measure
from benchmarks.paper.running import cell_table, run_cells, what_it_takes

from . import probe

ROOT = Path(__file__).parents[3]


def losses(cells, output):
    return [
        json.loads((cell.folder(output).path / "evaluation.json").read_text())["loss"]
        for cell in cells
    ]


def starts(cells, output):
    """How often each cell recorded its untrained network: once per training from the start."""
    return [
        sum(line.step == 0 for line in folder.metrics().entropy)
        for folder in (cell.folder(output) for cell in cells)
    ]


@pytest.mark.parametrize(
    ("nll", "tokens"),
    [([3.0], [2, 2]), ([3.0, None], [2, 2]), ([3.0, 1.0], [2, 0]), (None, [2, 2]), ([3.0], None)],
)
def test_losses_by_document_that_do_not_fit_are_left_out(nll, tokens):
    whole = {"document_nll": [3.0, 1.0], "document_tokens": [2, 2]}
    broken = {"document_nll": nll, "document_tokens": tokens}
    broken = {name: value for name, value in broken.items() if value is not None}
    runs = [SimpleNamespace(evaluation=Evaluation(**values)) for values in (whole, broken)]
    assert outcome._documents(runs[:1]) == {"nll": [3.0, 1.0], "tokens": [2, 2]}
    assert outcome._documents(runs) is None and outcome._documents(runs[1:]) is None
    assert outcome._documents([SimpleNamespace(evaluation=None)]) is None


def test_an_outcome_holds_numbers_verdicts_and_figures(trained, tmp_path):
    plan, output = trained
    outcome = write_target(plan, output)
    folder = output / "results" / "probe"
    assert json.loads((folder / "probe.json").read_text()) == outcome
    row = outcome["rows"][0]
    assert row["statistics"]["perplexity"]["values"] == pytest.approx(
        [2.718281828459045**loss for loss in losses(plan.cells_by_row["SM+R"], output)]
    )
    assert row["change"] == 0.0 and outcome["rows"][1]["change"] != 0.0
    # The losses over documents are those over all tokens, taken apart.
    total = sum(row["documents"]["nll"]) / sum(row["documents"]["tokens"])
    logs = [math.log(value) for value in row["statistics"]["perplexity"]["values"]]
    assert len(row["documents"]["nll"]) >= 2 and total == pytest.approx(sum(logs) / 2, abs=1e-5)
    assert outcome["rows"][1]["statistics"]["largest_slope"]["mean"] < 1.0
    assert outcome["rows"][0]["statistics"]["largest_slope"] is None
    assert [claim["verdict"] for claim in outcome["claims"]] == ["holds", "holds"]
    assert outcome["claims"][0]["seeds"] == 2
    names = {entry["name"] for entry in outcome["figures"]}
    assert len(names) == len(plan.target.figures)
    assert {path.stem for path in (folder / "figures").glob("*.svg")} == names
    text = (folder / "probe.md").read_text()
    assert "| network | perplexity, paper | perplexity |" in text
    assert "**holds**" in text and "Not run" not in text


def test_looking_for_ended_runs_again_plans_nothing_again(monkeypatch, tmp_path):
    plan = plan_target("figure6", "mini")
    assert not any(cell.is_done(tmp_path) for cell in plan.cells)

    def unexpected(*_, **__):
        raise AssertionError("a recipe was made again")

    monkeypatch.setattr(Recipe, "__post_init__", unexpected)
    assert not any(cell.is_done(tmp_path) for cell in plan.cells)


def test_students_wait_for_their_teachers(trained, corpus, cache_dir, tmp_path):
    plan, _ = trained
    teacher = plan.cells_by_row["SM+R"][0]
    student = dataclasses.replace(
        plan.cells_by_row["SM+LR(layer)"][0], origins={"distill_from": teacher}
    )
    assert not student.is_ready(tmp_path)
    with pytest.raises(TrainingError, match="--distill-from must be a run folder"):
        student.planned(tmp_path)
    assert what_it_takes([student, teacher], tmp_path).startswith("2 cells to train, 0 done")
    said: list[str] = []
    run_cells([student, teacher], output=tmp_path, cache_dir=cache_dir, say=said.append)
    runs = [text for text in said if not text.startswith("data: ")]
    assert [text.partition(" seed")[0] for text in runs] == ["SM+R", "SM+LR(layer)"]
    info = student.folder(tmp_path).info()
    assert info.distilled_from.label == "SM+R"
    # 10 steps of 256 tokens each.
    assert measure("tokens", read_run(student.folder(tmp_path).path)) == 2 * 2560
    assert info.status == "finished"
    student.folder(tmp_path).remove_results()
    student.folder(tmp_path).update(status="interrupted")
    assert what_it_takes([student], tmp_path).startswith("1 cells to train, 0 done")


@pytest.mark.parametrize("schedule", ["none", "linear"])
def test_a_run_starts_from_the_network_of_another(trained, corpus, cache_dir, tmp_path, schedule):
    plan, _ = trained
    source = plan.cells_by_row["SM+R"][0]
    annealing = dataclasses.replace(source.recipe.annealing, schedule=schedule)
    recipe = dataclasses.replace(source.recipe, annealing=annealing)
    origins = {"start_from": source, "distill_from": source}
    cell = dataclasses.replace(source, label="SM+ScFuFFN", recipe=recipe, origins=origins)
    assert not cell.is_ready(tmp_path)
    run_cells([cell, source], output=tmp_path, cache_dir=cache_dir, say=lambda text: None)
    info = cell.folder(tmp_path).info()
    assert info.status == "finished"
    assert Path(info.start.path) == source.folder(tmp_path).path.resolve()
    assert info.start.annealing.schedule == schedule
    assert measure("tokens", read_run(cell.folder(tmp_path).path)) == 2 * 2560


def test_finished_cells_are_not_trained_again(trained, cache_dir):
    plan, output = trained
    files = [cell.folder(output).path / "evaluation.json" for cell in plan.cells]
    before = [file.stat().st_mtime_ns for file in files]
    run_cells(plan.cells, output=output, cache_dir=cache_dir, say=pytest.fail)
    assert [file.stat().st_mtime_ns for file in files] == before
    assert what_it_takes(plan.cells, output) == "all 6 cells are done"


def test_cells_of_a_corpus_with_near_copies_in_validation_are_refused(trained, cache_dir, tmp_path):
    plan, output = trained
    shutil.copytree(output / "cells", tmp_path / "cells")
    folder = plan.cells[-1].folder(tmp_path)
    corpus = folder.info().corpus
    folder.update(corpus=changed(corpus, copied_share=None))
    with pytest.raises(TrainingError, match=rf"{folder.path} was trained when near copies"):
        run_cells(plan.cells, output=tmp_path, cache_dir=cache_dir, say=pytest.fail)


def test_what_a_killed_process_held_another_takes_up_from_its_checkpoint(
    trained, corpus, cache_dir, tmp_path
):
    plan, whole = trained
    cells = probe.plan(corpus).cells
    program = [sys.executable, "-m", "benchmarks.paper.tests.probe"]
    first = subprocess.Popen([*program, *map(str, (corpus, cache_dir, tmp_path))], cwd=ROOT)
    while not cells[0].folder(tmp_path).exists():
        assert first.poll() is None
        time.sleep(0.01)
    # Both work on one output; the first dies in the middle of a cell, which this one waits for.
    said: list[str] = []
    run_cells(cells, output=tmp_path, cache_dir=cache_dir, say=said.append)
    assert first.wait() == -9
    assert losses(cells, tmp_path) == losses([c for c in plan.cells if c.seed == 1], whole)
    # Each began once, and the killed one went on.
    assert starts(cells, tmp_path) == [1, 1, 1]
    assert any("resuming from" in line for line in said)


def test_workers_of_one_command_stop_together_and_go_on_together(
    trained, corpus, cache_dir, tmp_path, monkeypatch, fork_server
):
    monkeypatch.setattr("multiprocessing.get_context", {"spawn": fork_server}.__getitem__)
    plan, whole = trained
    cells = [cell for cell in plan.cells if cell.seed == 1]

    def ask_to_stop():
        while not list(tmp_path.glob("cells/*/*/metrics.jsonl")):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask_to_stop, daemon=True)
    asking.start()
    with pytest.raises(StopRequestedError, match="run the same command again"):
        run_cells(cells, output=tmp_path, cache_dir=cache_dir, jobs=2)
    asking.join()
    assert not all(cell.is_done(tmp_path) for cell in cells)
    assert not multiprocessing.active_children()
    said: list[str] = []
    run_cells(cells, output=tmp_path, cache_dir=cache_dir, jobs=2, say=said.append)
    assert losses(cells, tmp_path) == losses(cells, whole)
    assert said[-1].startswith(f"[{len(said)}/{len(said)}] ")


def test_a_request_to_stop_after_the_last_step_of_a_run_begins_no_other(
    corpus, cache_dir, tmp_path
):
    first, second, _ = probe.plan(corpus).cells

    def say(text):
        if "perplexity" in text:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(StopRequestedError, match="run the same command again"):
        run_cells([first, second], output=tmp_path, cache_dir=cache_dir, say=say)
    assert first.is_done(tmp_path)
    assert second.status(tmp_path) == "missing"


def test_a_run_that_nobody_trains_is_killed_not_running(corpus, tmp_path):
    cell = probe.plan(corpus).cells[0]
    cell.folder(tmp_path).write_info(run_info("running"))
    assert cell.status(tmp_path) == "killed"
    with locked(cell.folder(tmp_path).path):
        assert cell.status(tmp_path) == "running"
    assert not cell.is_done(tmp_path)


def test_missing_cells_are_listed_and_never_invented(corpus, tmp_path):
    plan = probe.plan(corpus)
    outcome = collect_target(plan, tmp_path)
    assert [claim["verdict"] for claim in outcome["claims"]] == ["not tested"] * 2
    assert all(row["statistics"]["perplexity"] is None for row in outcome["rows"])
    text = results_document([outcome], command="python -m benchmarks.paper probe")
    assert "Not run: SM+R seed 1 (missing); SM+LR(layer) seed 1 (missing)" in text
    assert "0 of 3" in text
    assert cell_table(plan.cells, tmp_path).startswith("0 of 3 cells done\n  missing")


def test_a_run_with_nan_is_a_result(corpus, cache_dir, tmp_path):
    plan = probe.plan(corpus, steps=2)
    cell = plan.cells_by_row["SM+R"][0]
    place = Divergence(step=1, layer=1, head=0, what="input of h.1.attn.c_proj")
    spec = cell.planned(tmp_path / "other").spec.to_dict()
    info = run_info("diverged", cell.label, seed=1, spec=spec, steps_done=1, diverged=place)
    cell.folder(tmp_path).write_info(info)
    outcome = collect_target(plan, tmp_path)
    assert outcome["rows"][0]["statistics"]["perplexity"] is None
    assert [claim["verdict"] for claim in outcome["claims"]] == ["undecided", "not tested"]
    assert "| SM+R | 2.94 | NaN |" in results_document([outcome], command="c")


def test_what_it_takes_counts_tokens_and_operations(corpus, tmp_path):
    plan = probe.plan(corpus, steps=4)
    text = what_it_takes(plan.cells, tmp_path)
    assert text.startswith("3 cells to train, 0 done: 3,072 tokens, ")
    runs = [cell.planned(tmp_path) for cell in plan.cells]
    operations = sum(3 * run.spec.flops("executed").total / 32 * 1024 for run in runs)
    assert f" {operations:.3g} floating-point operations" in text


def test_what_it_takes_leaves_out_what_a_checkpoint_holds(trained, tmp_path):
    plan, output = trained
    cell = plan.cells_by_row["SM+R"][0]
    folder = cell.folder(tmp_path)
    shutil.copytree(cell.folder(output).path, folder.path)
    folder.remove_results()
    folder.remove_checkpoints_after(8)
    folder.update(status="interrupted")
    text = what_it_takes([cell], tmp_path)
    assert text.startswith("1 cells to train, 0 done: 512 tokens, ")  # 2 of 10 steps of 256


def test_cells_that_cannot_be_run_are_named(corpus, cache_dir, tmp_path):
    (tmp_path / "cells").write_text("no folder")
    cells = probe.plan(corpus).cells
    for jobs, *named in (
        (0, "--jobs", ">= 1", "got 0"),
        (1, f"cannot write the lock to {tmp_path / 'cells'}", "run the same command again"),
    ):
        run = partial(run_cells, cells, output=tmp_path, cache_dir=cache_dir, jobs=jobs)
        assert_refused(run, *named, error=TrainingError)


def study(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_lists_targets_and_plans_without_training(tmp_path):
    listed = study("list")
    assert listed.exit_code == 0 and "figure18" in listed.output
    planned = study("figure6", "--dry-run", "--output", tmp_path, "--seeds", 1)
    assert planned.exit_code == 0, planned.output
    assert "0 of 1 cells done" in planned.output
    assert "819,200 tokens" in planned.output
    assert "to be tokenized" in planned.output or "tokens for training in" in planned.output
    refused = study("figure6", "--dry-run", "--output", tmp_path, "--data", tmp_path / "none")
    assert refused.exit_code == 2 and f"a folder or a file, got {tmp_path}/none" in refused.stderr
    assert not (tmp_path / "cells").exists()


def test_the_command_writes_what_is_there(tmp_path):
    stem = tmp_path / "results"
    done = study("figure6", "table9", "--collect", "--output", tmp_path, "--results", stem)
    assert done.exit_code == 0, done.output
    assert [
        entry["target"] for entry in json.loads(stem.with_suffix(".json").read_text())["targets"]
    ] == [
        "figure6",
        "table9",
    ]
    assert "Not run: SM seeds 1, 2 (missing)" in stem.with_suffix(".md").read_text()


def test_a_results_file_is_judged_again_from_its_own_values(tmp_path):
    figure = plan_target("figure6", "mini")
    outcome = collect_target(figure, tmp_path)
    for cell in outcome["rows"][0]["cells"]:
        cell["status"] = "finished"
    outcome["rows"][0]["statistics"]["diverged"] = {
        **msgspec.to_builtins(spread_of([0.0, 0.0])),
        "seeds": [1, 2],
    }
    outcome["claims"][0]["verdict"] = "holds"
    stem = tmp_path / "results"
    write_results([{**outcome, "figures": []}], stem, command="c")
    done = study("judge", "--results", stem)
    assert done.exit_code == 0, done.output
    (again,) = json.loads(stem.with_suffix(".json").read_text())["targets"]
    assert [claim["verdict"] for claim in again["claims"]][:2] == ["does not hold", "not tested"]
    assert "| Figure 6 | 0 | 0 | 1 |" in stem.with_suffix(".md").read_text()
    refused = study("judge")
    assert refused.exit_code == 2 and "judge needs --results STEM" in refused.stderr


def test_results_that_cannot_be_written_are_one_line_with_the_way_on(tmp_path):
    (tmp_path / "results").write_text("no folder")
    failed = study("figure6", "--collect", "--output", tmp_path)
    assert failed.exit_code == 2
    assert failed.stderr.startswith(
        f"aero: reproduce: cannot write the results to {tmp_path / 'results'}: Not a directory"
    )
    assert failed.stderr.endswith("run the same command again, which trains nothing twice\n")
    (tmp_path / "results").unlink()
    stem = tmp_path / "missing" / "all"
    failed = study("figure6", "--collect", "--output", tmp_path, "--results", stem)
    assert failed.exit_code == 2 and "Not run: SM seeds 1, 2 (missing)" in failed.stdout
    assert f"reproduce: cannot write --results to {stem.parent}: No such file" in failed.stderr


def test_a_cell_that_another_process_takes_first_is_left_to_it(corpus, cache_dir, tmp_path):
    (cell, *_) = probe.plan(corpus).cells
    folder, said = cell.folder(tmp_path), []

    class Slow(type(cell)):
        def is_locked(self, output):
            return False  # as of before the other process took it

        def planned(self, output):
            planned = super().planned(output)
            if not said:
                other = threading.Thread(target=hold)
                other.start()
                taken.wait()
            return planned

    taken, told = threading.Event(), threading.Event()

    def hold():
        with locked(folder.path):
            taken.set()
            told.wait()
            folder.write_info(run_info(seconds=1.0))

    def say(text):
        said.append(text)
        told.set()

    values = {entry.name: getattr(cell, entry.name) for entry in dataclasses.fields(cell)}
    run_cells([Slow(**values)], output=tmp_path, cache_dir=cache_dir, say=say)
    assert said == [
        "waiting for 1 cells that other processes train",
        "SM+R seed 1: finished after 1 s",
    ]


def test_paper_scale_says_what_it_takes_and_then_that_the_corpus_is_missing(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")

    def offline(*args, **options):
        raise ConnectionError("Couldn't reach the Hub")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    # The network is not timed: that is a full-size step.
    monkeypatch.setattr("benchmarks.paper.running.seconds_per_token", lambda run: 0.01)
    done = study("figure6", "--scale", "paper", "--output", tmp_path, "--cache-dir", tmp_path)
    assert done.exit_code == 2
    assert "2,100,000,000 tokens" in done.output and "days" in done.output
    assert "the hub gave no dataset of that name: Couldn't reach the Hub" in done.output


def test_networks_of_other_targets_tell_of_the_spread_over_seeds(trained):
    plan, output = trained
    rows = plan.target.rows
    first = dataclasses.replace(plan.target, claims=plan.target.claims[:1], rows=rows[:1])
    alone = plan_target(first, plan.scale, seeds=2)
    others = plan_target(dataclasses.replace(plan.target, name="other"), plan.scale, seeds=2)
    freedom = [
        collect_target(alone, output, beside=beside)["claims"][0]["differences"][0]["freedom"]
        for beside in ([], [alone], [alone, others])
    ]
    # The same network does not count twice; the claims of the other target use one more.
    assert freedom == pytest.approx([1.0, 1.0, 2.0])
