"""`aero verify`: every byte of a run folder that anything reads again is vouched for."""

import shutil

import pytest
from typer.testing import CliRunner

from aero import AeroConfig, AeroForCausalLM, cli
from aero.export import export_remote_code, export_weights
from aero.internals.errors import TrainingError
from aero.report.runs import read_run
from aero.train.runs import run_results
from aero.train.runs.checkpoints import run_problems
from aero.train.runs.run_folder import RunFolder, locked
from aero.train.runs.run_results import evaluate_run, open_run
from aero.train.training import train_runs

from .conftest import DAMAGES, plan_one, stopped_at


def verify(*paths):
    return CliRunner().invoke(cli.app, ["verify", *map(str, paths)])


@pytest.fixture
def finished(whole_runs, tmp_path):
    folder = whole_runs("SM+FN+R")
    shutil.copytree(folder.path, tmp_path / "group" / "run")
    return tmp_path / "group" / "run"


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_to_any_file_is_one_line_that_names_it(damage, finished):
    files = [path for path in finished.rglob("*") if path.is_file() and path.name != ".lock"]
    files = [path for path in files if path.parent.name not in ("tensorboard", "step-5", "step-10")]
    names = {path.name for path in files}
    assert names > {"config.yaml", "manifest.json", "metrics.jsonl", "run.json", "evaluation.json"}
    assert names > {"model.safetensors", "optimizer.pt", "aero_state.json", "trainer_state.json"}
    assert run_problems(finished) == []
    for file in files:
        whole = file.read_bytes()
        DAMAGES[damage](file)
        problems = run_problems(finished)
        if file.name not in ("SHA256SUMS", "run.json"):
            assert str(file) in problems[0], problems
        assert problems and not any("\n" in line for line in problems), file
        file.write_bytes(whole)


def test_a_run_that_another_process_goes_on_with_while_it_is_read_is_not_damaged(
    finished, monkeypatch
):
    check = RunFolder.require_whole

    def after_another_process(folder, name):
        monkeypatch.setattr(RunFolder, "require_whole", check)
        text = (finished / "run.json").read_text()
        (finished / "run.json").write_text(text.replace('"finished"', '"running"'))
        check(folder, name)

    monkeypatch.setattr(RunFolder, "require_whole", after_another_process)
    assert RunFolder(finished).info().status == "running"


def test_the_command_ends_with_one_where_anything_is_damaged(finished, whole_runs):
    whole = whole_runs("SM+FN+R").path
    done = verify(whole, finished.parents[1])
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{whole}: whole\n{finished}: whole\n" and done.stderr == ""
    weights = finished / "checkpoints" / "step-15" / "model.safetensors"
    DAMAGES["flipped"](weights)
    DAMAGES["flipped"](finished / "model" / "tokenizer.json")
    done = verify(whole, finished.parents[1])
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        f"{whole}: whole",
        f"{finished / 'model' / 'tokenizer.json'} does not match its SHA-256",
        f"{weights} does not match its SHA-256",
    ]


@pytest.mark.parametrize("status", ["interrupted", "running"])
def test_a_run_that_did_not_end_is_whole_with_what_a_kill_leaves(status, whole_runs, tmp_path):
    folder = stopped_at(whole_runs("SM+FN+R"), 10, tmp_path / "run")
    folder.update(status=status)
    (folder.checkpoints / "checkpoint-15").mkdir()
    if status == "running":
        with (folder.path / "metrics.jsonl").open("ab") as file:
            file.write(b'{"kind": "tra')
    assert run_problems(folder.path) == []


def test_what_is_no_run_or_in_training_is_said(finished, tmp_path):
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        done = verify(path)
        assert (done.exit_code, done.stdout) == (2, "")
        assert done.stderr.startswith(f"aero: verify: {path} holds no run")
    with locked(finished):
        (line,) = run_problems(finished)
        assert f"{finished} is being trained by process " in line
    (finished / "SHA256SUMS").unlink()
    assert run_problems(finished) == [f"{finished / 'SHA256SUMS'} is missing"]


def test_measuring_again_vouches_for_what_it_wrote_and_for_nothing_else(finished):
    folder = RunFolder(finished)
    folder.write_result("evaluation.json", {"loss": 1.0, "perplexity": float("nan")})
    assert run_problems(finished) == []
    DAMAGES["flipped"](finished / "metrics.jsonl")
    folder.write_result("evaluation.json", {"loss": 2.0})
    (line, *_) = run_problems(finished)
    assert line == f"{finished / 'metrics.jsonl'} does not match its SHA-256"


def test_a_report_takes_no_damaged_file(finished):
    read_run(finished)
    names = ("config.yaml", "run.json", "metrics.jsonl", "evaluation.json", "analysis.json")
    for name in (*names, "SHA256SUMS"):
        whole = (finished / name).read_bytes()
        # Still as readable as before.
        digit = b"7" if b"7" in whole else b"8"
        changed = whole.replace(digit, b"6", 1)
        if name == "SHA256SUMS":  # of a file that a report reads
            (line,) = [one for one in whole.splitlines() if one.endswith(b" metrics.jsonl")]
            changed = whole.replace(line[:64], line[:64][::-1])
        (finished / name).write_bytes(changed)
        with pytest.raises(ValueError, match=r"^report: .* does not match its SHA-256; `aero ver"):
            read_run(finished)
        (finished / name).write_bytes(whole)


def result_files(run):
    """All that a run's result is read from: everything but checkpoints and hidden files."""
    files = [path for path in run.rglob("*") if path.is_file()]
    apart = {"checkpoints", "tensorboard", ".lock"}
    return [path for path in files if not apart & set(path.relative_to(run).parts)]


@pytest.mark.parametrize("damage", ["half", "flipped", "gone"])
def test_a_damaged_run_is_not_reused_and_stands_in_no_report(
    damage, finished, tiny_recipe, cache_dir
):
    run = plan_one(tiny_recipe, "SM+FN+R", finished.parent)
    finished = finished.rename(run.folder.path)
    run = plan_one(tiny_recipe, "SM+FN+R", finished.parent)
    assert run.action == "reuse"
    said = []
    train_runs([run], cache_dir=cache_dir, say=said.append)
    (line,) = said
    assert "reusing the finished run" in line and "checkpoints were not looked at" in line
    files = result_files(finished)
    assert {"model.safetensors", "metrics.jsonl", "evaluation.json"} <= {f.name for f in files}
    for file in files:
        whole = file.read_bytes()
        DAMAGES[damage](file)
        with pytest.raises(TrainingError):
            train_runs([run], cache_dir=cache_dir, say=pytest.fail)
        if file != finished / "SHA256SUMS" or damage != "gone":
            with pytest.raises(ValueError, match=f"{file.name}|SHA-256"):
                read_run(finished)
        file.write_bytes(whole)
    assert read_run(finished).unchecked == ""


def test_a_list_of_checksums_that_lost_lines_vouches_for_nothing(finished, tiny_recipe, cache_dir):
    run = plan_one(tiny_recipe, "SM+FN+R", finished.parent)
    finished = finished.rename(run.folder.path)
    run = plan_one(tiny_recipe, "SM+FN+R", finished.parent)
    file = finished / "SHA256SUMS"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 8
    for number, line in enumerate(lines):
        for lost in (
            lines[:number],
            lines[:number] + lines[number + 1 :],
            [*lines[:number], line[:9]],
        ):
            file.write_bytes(b"".join(lost))
            assert run_problems(finished), lost
            with pytest.raises(ValueError, match="SHA"):
                read_run(finished)
            with pytest.raises(TrainingError, match="SHA"):
                train_runs([run], cache_dir=cache_dir, say=pytest.fail)
        file.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        if line.split()[1] in (b"run.json", b"config.yaml"):
            with pytest.raises(TrainingError, match="no SHA-256"):
                evaluate_run(finished)
    file.write_bytes(b"")
    with pytest.raises(TrainingError, match="SHA256SUMS"):
        RunFolder(finished).write_result("evaluation.json", {"loss": 1.0})


def test_what_no_checksum_vouches_for_is_said(finished, monkeypatch):
    said = []
    monkeypatch.setattr(run_results.LOG, "warning", lambda text, *names: said.append(text % names))
    shutil.rmtree(finished / "checkpoints")
    (finished / "model" / "SHA256SUMS").rename(finished / "sums")
    open_run(RunFolder(finished))
    assert said == [f"{finished / 'model'} has no SHA256SUMS: its files were not compared"]
    with pytest.raises(ValueError, match="SHA256SUMS is missing"):
        read_run(finished)
    shutil.rmtree(finished / "model")
    assert "network" in read_run(finished).unchecked
    (finished / "SHA256SUMS").unlink()
    assert "all files" in read_run(finished).unchecked


@pytest.mark.parametrize("place", [".", "model", "model/new", "checkpoints/step-20"])
@pytest.mark.parametrize(
    "command", [["export"], ["export", "--remote-code"], ["convert", "--label", "SM+FN+R"]]
)
def test_no_network_is_written_into_a_run(command, place, finished):
    output = str(finished / place)
    done = CliRunner().invoke(cli.app, [*command, str(finished), "--output", output])
    assert done.exit_code == 2 and "the output must be" in done.stderr, done.output
    assert run_problems(finished) == []
    model = AeroForCausalLM(AeroConfig.from_label("SM", model="tiny"))
    for write in (export_weights, export_remote_code):
        with pytest.raises(ValueError, match="the output must be a folder of its own"):
            write(model, output)
    assert run_problems(finished) == []


def test_a_network_is_not_written_over_itself(tmp_path):
    AeroForCausalLM(AeroConfig.from_label("SM", model="tiny")).save_pretrained(tmp_path / "net")
    before = {path: path.read_bytes() for path in (tmp_path / "net").iterdir()}
    for command in (["export"], ["convert", "--label", "SM"]):
        asked = [*command, str(tmp_path / "net"), "--output", str(tmp_path / "x" / ".." / "net")]
        done = CliRunner().invoke(cli.app, asked)
        assert done.exit_code == 2 and "the output must be another folder" in done.stderr
    assert {path: path.read_bytes() for path in (tmp_path / "net").iterdir()} == before
