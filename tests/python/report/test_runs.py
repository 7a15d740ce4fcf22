"""Run folders: missing parts are said, damage is an error that names the file."""

import pytest

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


def test_a_folder_without_runs_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no run .*aero train"):
        find_runs([tmp_path])
    with pytest.raises(ValueError, match="is not a folder"):
        find_runs([tmp_path / "missing"])


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


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        ("run.json", lambda text: "{", r"run\.json: expected valid JSON"),
        ("run.json", lambda text: '{"format": 2}', "format 2, this version reads format 1"),
        ("run.json", lambda text: '{"format": 1}', "run.json: expected an entry status, got none"),
        ("run.json", lambda text: text.replace("scaled_fused", "cubic"), "bad spec: .*cubic"),
        (
            "metrics.jsonl",
            lambda text: f"{text}?\n",
            r"line 73: expected valid JSON",
        ),
        ("evaluation.json", lambda text: "nan?", r"evaluation\.json: expected valid JSON"),
        ("analysis.json", lambda text: "", r"analysis\.json: expected valid JSON"),
    ],
)
def test_damaged_files_are_named(make_run, name, damage, message):
    folder = make_run("SM+ScFuFFN")
    (folder / name).write_text(damage((folder / name).read_text()))
    with pytest.raises(ValueError, match=message):
        read_run(folder)


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


def test_the_same_network_and_seed_twice_is_refused(make_run, tmp_path):
    first = make_run("SM+FN+R")
    again = first.rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="hold the same network and seed"):
        group_runs([read_run(again), read_run(make_run("SM+FN+R"))])


def test_heads_are_shown_of_the_first_finished_and_analysed_run(make_run):
    broken = make_run("SM+FN+R", 1, diverged_at=10)
    bare = make_run("SM+FN+R", 2, analyzed=False)
    whole = make_run("SM+FN+R", 3)
    (network,) = group_runs([read_run(folder) for folder in (broken, bare, whole)])
    assert network.shown_run.info.seed == 3
