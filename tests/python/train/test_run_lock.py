"""Two trainings never write into one folder."""

import os
import socket

import pytest

from aero.train.run_lock import RunLockedError, lock_holder, locked
from aero.train.runs import train_runs

from .conftest import plan_one

HERE = f"process {os.getpid()} on {socket.gethostname()}"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_lock_names_its_holder_and_ends_with_it(tmp_path):
    folder = tmp_path / "run"
    assert lock_holder(folder) is None and not folder.exists()
    with locked(folder):
        assert lock_holder(folder) == HERE
        with pytest.raises(RunLockedError) as error, locked(folder):
            pytest.fail("held twice")
        assert str(error.value).startswith(f"train: {folder} is being trained by {HERE}; ")
        assert lock_holder(folder) == HERE
    assert lock_holder(folder) is None
    with locked(folder):
        pass


@pytest.mark.parametrize("said", [b"", b"\x1b[2J", b"process 7\naero: all is well"])
def test_a_holder_that_says_nothing_readable_is_another_process(said, tmp_path):
    with locked(tmp_path):
        (tmp_path / ".lock").write_bytes(said)
        assert lock_holder(tmp_path) == "another process"


def test_a_folder_in_training_is_refused_and_untouched(tiny_recipe, cache_dir, tmp_path):
    run = plan_one(tiny_recipe, "SM+R", tmp_path)
    with locked(run.folder.path):
        before = contents(tmp_path)
        with pytest.raises(RunLockedError, match=f"{run.folder.path} is being trained by {HERE}"):
            train_runs([run], cache_dir=cache_dir, say=pytest.fail)
        assert contents(tmp_path) == before


def test_a_run_that_another_process_ended_in_the_meantime_is_reused(
    tiny_recipe, cache_dir, tmp_path
):
    run = plan_one(tiny_recipe, "SM+R", tmp_path)
    assert run.action == "train"
    run.folder.write_config(run.config())
    run.folder.update({"status": "finished"})
    before, said = contents(tmp_path), []
    train_runs([run], cache_dir=cache_dir, say=said.append)
    assert said == [f"SM+R seed 0: reusing the finished run in {run.folder.path}"]
    assert contents(run.folder.path) == {**contents(run.folder.path), **before}


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    message = f"train: cannot write the lock to {tmp_path}/file/run: Not a directory"
    with pytest.raises(Exception, match=message), locked(tmp_path / "file" / "run"):
        pass
