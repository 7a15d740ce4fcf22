"""Run folders: missing parts are said, damage is an error that names the file."""

import pytest
from tests.python.refusals import assert_refused

from aero.internals.run_files import Divergence
from aero.report.networks import group_runs
from aero.report.runs import divergence_text, find_runs, read_run
from aero.train.runs.checkpoints import runs_below


def test_a_run_folder_reads_back_as_written(make_run):
    run = read_run(make_run("EReg(SM(t)+ScFuFFN)"))
    assert run.finished
    assert run.ending is None
    assert run.spec.label == "EReg(SM(t)+ScFuFFN)"
    assert run.tokens == 60 * 4096
    assert len(run.metrics.train) == 60
    assert [line.step for line in run.metrics.entropy] == [10, 20, 30, 40, 50, 60]
    assert run.evaluation.perplexity == 11.5
    assert run.analysis.arrays["temperature"].shape == (6, 4, 128)


def test_runs_are_found_below_a_folder_and_by_name_but_once(make_run):
    first, second = make_run("SM+ScFuFFN"), make_run("SM+FN+R")
    assert find_runs([first.parent]) == [second, first]
    assert find_runs([first, first.parent]) == [first, second]


def test_a_run_is_found_once_by_whatever_name(make_run, tmp_path, monkeypatch):
    run = make_run("SM+FN+R")
    (tmp_path / "link").symlink_to(run.parent)
    monkeypatch.chdir(tmp_path)
    names = [run, tmp_path / "link", f"runs/../runs/{run.name}", tmp_path / "link" / run.name]
    assert find_runs(names) == [run]
    assert runs_below(names) == [run]


def rewritten(name, change):
    def read(make_run, folder):
        run = make_run("SM+ScFuFFN")
        (run / name).write_text(change((run / name).read_text()))
        return read_run(run)

    return read


def same_twice(make_run, folder):
    again = make_run("SM+FN+R").rename(folder / "elsewhere")
    return group_runs([read_run(again), read_run(make_run("SM+FN+R"))])


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (rewritten("run.json", lambda text: "{"), ("run.json", "valid JSON")),
        (rewritten("run.json", lambda text: '{"format": 2}'), ("format 1", "format 2")),
        (rewritten("run.json", lambda text: '{"format": 1}'), ("run.json", "status", "got none")),
        (
            rewritten("run.json", lambda text: text.replace("scaled_fused", "cubic")),
            ("bad spec", "cubic"),
        ),
        (rewritten("metrics.jsonl", lambda text: f"{text}?\n"), ("line 73", "valid JSON")),
        (rewritten("evaluation.json", lambda text: "nan?"), ("evaluation.json", "valid JSON")),
        (rewritten("analysis.json", lambda text: ""), ("analysis.json", "valid JSON")),
        (lambda make_run, folder: find_runs([folder]), ("holds no run", "aero train")),
        (lambda make_run, folder: find_runs([folder / "missing"]), ("missing", "folder")),
        (same_twice, ("the same network and seed", "elsewhere")),
    ],
)
def test_what_is_no_run_is_named(make_run, tmp_path, read, named):
    assert_refused(lambda: read(make_run, tmp_path), *named)


def test_a_last_line_cut_off_by_a_crash_is_left_out_and_said(make_run):
    folder = make_run("SM+ScFuFFN")
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"kind": "train", "st')
    run = read_run(folder)
    assert len(run.metrics.train) == 60
    assert run.warnings == [f"the last line of {folder.name}/metrics.jsonl is cut off"]


def test_a_run_without_metrics_warns(make_run):
    folder = make_run("SM+ScFuFFN")
    (folder / "metrics.jsonl").unlink()
    assert "holds no metrics.jsonl" in read_run(folder).warnings[0]


def test_divergence_names_step_layer_and_head(make_run):
    run = read_run(make_run("SM", diverged_at=33))
    assert not run.finished
    assert run.ending == "NaN at step 33 (layer 5, head 0)"
    assert divergence_text(Divergence(step=3, layer=2)) == "NaN at step 3 (layer 2)"


def test_an_interrupted_run_says_how_far_it_came(make_run):
    folder = make_run("SM+ScFuFFN", info={"status": "interrupted", "steps_done": 20})
    assert read_run(folder).ending == "interrupted at step 20 of 60"


def test_seeds_of_one_network_are_grouped_and_baselines_come_first(make_run):
    labels = ["SM+FN+R", "EReg(SM(t)+ScFuFFN)", "SM+ScFuFFN", "SM+LN+G"]
    runs = [read_run(make_run(label, seed)) for label in labels for seed in (2, 1)]
    networks = group_runs(runs)
    assert [network.name for network in networks] == labels[::-1]
    assert [run.info.seed for run in networks[0].runs] == [1, 2]


def test_one_label_in_two_sizes_gives_two_names(make_run):
    folders = [make_run("SM+FN+R"), make_run("SM+FN+R", 2, num_heads=2)]
    names = [network.name for network in group_runs([read_run(folder) for folder in folders])]
    assert names == ["SM+FN+R (num_heads 4, head_dim 32)", "SM+FN+R (num_heads 2, head_dim 64)"]


def test_heads_are_shown_of_the_first_finished_and_analysed_run(make_run):
    broken = make_run("SM+FN+R", 1, diverged_at=10)
    bare = make_run("SM+FN+R", 2, analyzed=False)
    whole = make_run("SM+FN+R", 3)
    (network,) = group_runs([read_run(folder) for folder in (broken, bare, whole)])
    assert network.shown_run.info.seed == 3
