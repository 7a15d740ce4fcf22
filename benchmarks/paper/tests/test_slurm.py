"""Cells as jobs of a real slurmctld and slurmd on loopback."""

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from aero.internals.errors import StopRequestedError, TrainingError
from aero.train.runs.run_folder import locked
from benchmarks.paper import slurm
from benchmarks.paper.cells import plan_target
from benchmarks.paper.command import app
from benchmarks.paper.running import cell_table, run_cells
from benchmarks.paper.slurm import SlurmJobs

from . import probe
from .slurm_cluster import cluster, missing
from .test_running import losses, starts

pytest.importorskip("submitit", reason="submitit is not there")
WHY = missing()
needs_slurm = pytest.mark.skipif(WHY is not None, reason=f"no Slurm: {WHY}")


@pytest.fixture(scope="module")
def running_cluster():
    # Not below pytest's own folder, which is root's alone: munged runs as its own user.
    with tempfile.TemporaryDirectory(prefix="slurm-") as name:
        Path(name).chmod(0o755)
        with cluster(Path(name)) as environment:
            yield environment


@pytest.fixture
def queue(running_cluster, monkeypatch):
    """The commands of a running cluster, and impatience."""
    for name, value in running_cluster.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.5)


@pytest.fixture
def pretended(tmp_path, monkeypatch):
    """Slurm's commands as scripts: a function that writes one of them."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def pretend(name, script):
        (folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / name).chmod(0o755)

    for name in ("sbatch", "srun", "squeue", "scancel"):
        pretend(name, "true")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.setattr(slurm, "_POLL_SECONDS", 0.01)
    return pretend


def scontrol(*arguments):
    return subprocess.run(
        ["scontrol", *arguments], check=True, capture_output=True, text=True
    ).stdout


def when_it_trains(cell, output, do):
    """Does something once a cell has a checkpoint."""

    def wait():
        while not cell.folder(output).complete_checkpoints():
            time.sleep(0.05)
        do()

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@needs_slurm
def test_jobs_train_the_networks_of_one_process_students_after_teachers(
    queue, trained, corpus, cache_dir, tmp_path
):
    plan, whole = trained
    teacher, student, other = (cell for cell in plan.cells if cell.seed == 1)
    student = dataclasses.replace(student, origins={"distill_from": teacher})
    said = []
    jobs = SlurmJobs([student, teacher, other], tmp_path, cache_dir, say=said.append)
    jobs.run()
    assert losses([teacher, other], tmp_path) == losses([teacher, other], whole)
    assert student.folder(tmp_path).info().distilled_from.label == "SM+R"
    assert starts(jobs.cells, tmp_path) == [1, 1, 1]
    while any(not state.endswith(" completed") for state in jobs.states().values()):
        time.sleep(0.1)  # a cell is done before its job
    states = jobs.states()
    assert set(states) == {cell.key for cell in jobs.cells}
    assert states[teacher.key] < states[student.key]
    assert "jobs: " in said[0] and said[-1].startswith("[3/3] ")
    said.clear()
    jobs.run()
    assert (said, jobs.requests(), jobs.states()) == ([], {}, states)


@needs_slurm
def test_stopped_and_cancelled_a_cell_goes_on(queue, corpus, cache_dir, tmp_path):
    plan = probe.plan(corpus, steps=100)
    (cell,) = plan.cells_by_row["SM+R"]
    options = {"gpus_per_node": "1", "time": "30", "comment": "probe"}
    said = []
    jobs = SlurmJobs([cell], tmp_path, cache_dir, options, said.append)

    # Stopped: the job goes on, and the same command does not submit it again.
    thread = when_it_trains(cell, tmp_path, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(StopRequestedError, match="1 cells; their jobs go on: the same command"):
        jobs.run()
    thread.join()
    first = jobs.states()[cell.key]
    assert first.endswith(" running") and cell.is_locked(tmp_path)
    shown = scontrol("show", "job", first.split()[1])
    assert "TimeLimit=00:30:00" in shown and "Comment=probe" in shown and "gpu" in shown
    assert f"running      SM+R seed 1  cells/{cell.key}  {first}" in cell_table(
        [cell], tmp_path, jobs.states()
    )

    # Cancelled: it writes a checkpoint first, and the command that waits says so.
    def cancel(text):
        said.append(text)
        if text == "jobs: 1 running":
            said.append(f"cancelled {jobs.cancel()}")

    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        dataclasses.replace(jobs, say=cancel).run()
    assert "cancelled 1" in said and jobs.cancel() == 0
    assert f"SM+R seed 1: {first.removesuffix(' running')} was cancelled (its log is " in said[-1]
    while cell.is_locked(tmp_path):
        time.sleep(0.05)
    assert cell.status(tmp_path) == "interrupted"

    # Whoever is next goes on from the checkpoint to the end.
    run_cells([cell], output=tmp_path, cache_dir=cache_dir, say=said.append)
    assert "resuming from" in said[-2]
    assert cell.is_done(tmp_path) and starts([cell], tmp_path) == [1]


@needs_slurm
def test_a_job_without_its_node_is_one_line(queue, corpus, cache_dir, tmp_path, monkeypatch):
    (cell,) = probe.plan(corpus).cells_by_row["SM+R"]
    said = []

    def fail(text):
        said.append(text)
        if text == "jobs: 1 running":
            scontrol("update", "nodename=probe", "state=down", "reason=test")

    monkeypatch.setattr(slurm, "_train", lambda *_: time.sleep(600))
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        SlurmJobs([cell], tmp_path, cache_dir, say=fail).run()
    assert said[-1].startswith("SM+R seed 1: job ") and " lost its node (its log is " in said[-1]


@needs_slurm
def test_what_slurm_refuses_is_said_in_its_words(queue, corpus, cache_dir, tmp_path):
    jobs = SlurmJobs(probe.plan(corpus).cells, tmp_path, cache_dir, {"partition": "none"})
    with pytest.raises(TrainingError) as error:
        jobs.run()
    assert "the job of SM+R seed 1: sbatch: error: " in str(error.value)
    assert "Invalid partition name specified" in str(error.value)
    assert "\n" not in str(error.value) and jobs.states() == {}


def test_a_full_queue_is_one_line(pretended, corpus, cache_dir, tmp_path, capfd):
    full = "sbatch: error: QOSMaxSubmitJobPerUserLimit"
    pretended("sbatch", f"echo '{full}' >&2\necho 'sbatch: error: {full}: refused' >&2\nexit 1")
    jobs = SlurmJobs(probe.plan(corpus).cells, tmp_path / "output", cache_dir)
    with pytest.raises(TrainingError) as error:
        jobs.run()
    assert str(error.value) == (
        "reproduce: Slurm refused the job of SM+R seed 1: sbatch: error: sbatch: error: "
        "QOSMaxSubmitJobPerUserLimit: refused; 0 jobs were submitted before it and go on; run the "
        "same command again when that is mended"
    )
    assert capfd.readouterr().err == ""


def test_a_job_that_failed_or_left_is_told_by_what_it_said_last(
    pretended, corpus, cache_dir, tmp_path
):
    (cell,) = probe.plan(corpus).cells_by_row["SM+R"]
    said = []
    jobs = SlurmJobs([cell], tmp_path / "output", cache_dir, say=said.append)
    pretended("sbatch", "echo Submitted batch job 7")
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        jobs.run()
    assert said == ["SM+R seed 1: its job left the queue without a result"]
    pretended("squeue", f"echo '7|FAILED|NonZeroExitCode|{jobs._name(cell)}'; echo '8|FAILED||x'")
    log = tmp_path / "output" / "slurm" / "7_0_log.err"
    log.write_text("Warning\naero: train: the corpus is gone\nsrun: error: vm: task 0: Exited\n")
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        jobs.run()
    assert said[1] == (f"SM+R seed 1: job 7 failed: train: the corpus is gone (its log is {log})")
    pretended("squeue", "echo 'squeue: error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(TrainingError, match=r"^reproduce: squeue failed: squeue: error: Unable"):
        jobs.run()


def test_a_job_finds_the_study_wherever_its_node_starts_it(pretended, corpus, cache_dir, tmp_path):
    (cell,) = probe.plan(corpus).cells_by_row["SM+R"]
    pretended("sbatch", f'cp "$1" {tmp_path}/script; echo Submitted batch job 7')
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        SlurmJobs([cell], tmp_path / "output", cache_dir, say=lambda text: None).run()
    exports = [
        line for line in (tmp_path / "script").read_text().splitlines() if "PYTHONPATH" in line
    ]
    program = f"{exports[0]}; {sys.executable} -c 'import benchmarks.paper.claims'"
    environment = {"PATH": "/usr/bin:/bin"}
    subprocess.run(["sh", "-c", program], cwd=tmp_path, env=environment, check=True)


def test_a_job_of_an_earlier_command_that_ends_is_told_and_not_repeated(
    pretended, corpus, cache_dir, tmp_path
):
    (cell,) = probe.plan(corpus).cells_by_row["SM+R"]
    said = []
    jobs = SlurmJobs([cell], tmp_path / "output", cache_dir, say=said.append)
    state = f"test -e {tmp_path}/asked && echo CANCELLED || echo RUNNING; touch {tmp_path}/asked"
    pretended("squeue", f'echo "7|$({state})|None|{jobs._name(cell)}"')
    pretended("sbatch", f"touch {tmp_path}/submitted; exit 1")
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        jobs.run()
    log = tmp_path / "output" / "slurm" / "7_0_log.err"
    assert said == ["jobs: 1 running", f"SM+R seed 1: job 7 was cancelled (its log is {log})"]
    assert not (tmp_path / "submitted").exists()


def test_a_cell_that_a_process_trains_or_without_a_teacher_gets_no_job(
    pretended, corpus, cache_dir, tmp_path
):
    teacher, student, _ = probe.plan(corpus).cells
    student = dataclasses.replace(student, origins={"distill_from": teacher})
    pretended("sbatch", f"touch {tmp_path}/submitted; exit 1")
    said = []
    jobs = SlurmJobs([student], tmp_path / "output", cache_dir, say=said.append)
    with pytest.raises(TrainingError, match="1 of 1 cells have no result"):
        jobs.run()
    assert said == [
        f"{student.label} seed 1: the network that it starts or learns from has no result"
    ]
    jobs = SlurmJobs([teacher], tmp_path / "output", cache_dir)
    pretended("squeue", f"touch {tmp_path}/asked")

    def stop():
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    with locked(teacher.folder(tmp_path / "output").path), pytest.raises(StopRequestedError):
        threading.Thread(target=stop, daemon=True).start()
        jobs.run()
    assert not (tmp_path / "submitted").exists()


def test_jobs_ask_for_what_the_plan_estimates(pretended, corpus, cache_dir, tmp_path, monkeypatch):
    cells = probe.plan(corpus).cells
    operations = {cell.key: slurm.operations_left(cell, tmp_path) for cell in cells}
    monkeypatch.setattr(slurm, "operations_per_second", lambda cell, output: 1e5)
    monkeypatch.setattr(slurm, "_LONGEST_WITHOUT_GPU", max(operations.values()) / 1e5 - 1)
    monkeypatch.setattr(slurm, "_GPU_RATE", 1e4)
    asked = SlurmJobs(cells, tmp_path, cache_dir).requests()
    for key, count in operations.items():
        on_gpu = count == max(operations.values())
        minutes = 2 * count / (1e4 if on_gpu else 1e5) / 60 + 10
        assert minutes <= asked[key]["time"] < minutes + 1
        assert asked[key].get("gpus_per_node", 0) == on_gpu
    own = SlurmJobs(cells, tmp_path, cache_dir, {"time": "9", "gpus_per_node": "2"}).requests()
    assert all((entry["time"], entry["gpus_per_node"]) == ("9", "2") for entry in own.values())


def test_without_slurm_or_submitit_there_is_one_line(
    pretended, corpus, cache_dir, tmp_path, monkeypatch
):
    cells = probe.plan(corpus).cells
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(TrainingError, match=r"needs submitit: pip install submitit$"):
        SlurmJobs(cells, tmp_path, cache_dir).run()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TrainingError, match="--launcher slurm needs sbatch in PATH; run it where"):
        SlurmJobs(cells, tmp_path, cache_dir)


SMALL = ("data.vocabulary", "data.validation_fraction", "evaluation.final_tokens")


def study(*arguments):
    return CliRunner().invoke(app, [*map(str, arguments)])


def test_the_command_plans_asks_and_cancels(pretended, corpus, cache_dir, tmp_path):
    settings = [f'data.source="{corpus}"', *(f"{k}={probe.SETTINGS[k]}" for k in SMALL)]
    (cell,) = plan_target("figure6", "mini", seeds=1, settings=settings).cells
    plan = ["figure6", "--seeds", 1, "--output", tmp_path, "--launcher", "slurm"]
    plan += ["--cache-dir", cache_dir, *(part for text in settings for part in ("--set", text))]
    name = SlurmJobs([cell], tmp_path, tmp_path)._name(cell)
    pretended("squeue", f"echo '7|PENDING|Resources|{name}'")
    pretended("scancel", f'echo "$@" > {tmp_path}/cancelled')
    status = study(*plan, "--status")
    assert status.exit_code == 0, status.output
    assert f"missing      SM seed 1  cells/{cell.key}  job 7 pending (Resources)" in status.output
    planned = study(*plan, "--dry-run", "--slurm", "partition=gpu", "--slurm", "--gpus-per-node=2")
    assert planned.exit_code == 0, planned.output
    assert " cpus_per_task=1 partition=gpu gpus_per_node=2" in planned.output
    cancelled = study(*plan, "--cancel")
    assert cancelled.output == "cancelled 1 jobs\n"
    assert (tmp_path / "cancelled").read_text() == "7\n"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--launcher", "pbs"], "--launcher must be local or slurm, got 'pbs'"),
        (["--launcher", "slurm", "--jobs", "2"], "--jobs means nothing for --launcher slurm"),
        (["--cancel"], "--cancel means nothing for --launcher local"),
        (["--slurm", "time=5"], "--slurm means nothing for --launcher local"),
        (["--launcher", "slurm", "--slurm", "time"], "--slurm must be KEY=VALUE, got 'time'"),
    ],
)
def test_options_that_do_not_fit_are_one_line(options, line, tmp_path):
    refused = study("figure6", "--output", tmp_path, *options)
    assert (refused.exit_code, refused.stderr) == (2, f"aero: reproduce: {line}\n")
