"""Two trainings never write into one folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from filelock import FileLock

from aero.train.runs.run_folder import RunLockedError, lock_holder, locked
from aero.train.training import train_runs

from .conftest import plan_one

HERE = f"process {os.getpid()} on {socket.gethostname()}"
# Holds a folder until it is killed.
HOLDER = """
import sys, time
from aero.train.runs import run_folder
with run_folder.locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""
# Ends without giving its folder back.
LEAVER = """
import sys
from aero.train.runs import run_folder
held = run_folder.locked(sys.argv[1])
held.__enter__()
"""
# Takes a folder again and again, and counts in a file how often it held it. Where two hold it, the
# second one finds the first one's mark. Every fifth time it is killed as its holder.
RACER = """
import os, signal, sys, time
from pathlib import Path
from aero.train.runs import run_folder
folder, name = Path(sys.argv[1]), sys.argv[2]
run_folder._TAKING_SECONDS = 0.02
counts, mark = folder / f"{name}.count", folder / "mark"
while (held := len(counts.read_bytes()) if counts.exists() else 0) < 12:
    try:
        with run_folder.locked(folder):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            time.sleep(0.002)
            with counts.open("ab") as file:
                file.write(b".")
            mark.unlink()
            if held % 5 == 4:
                os.kill(os.getpid(), signal.SIGKILL)
    except run_folder.RunLockedError:
        pass
"""


def start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


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


@pytest.mark.parametrize("said", [b"", b"\x1b[2J", b"\nprocess 7", b"process 7 on \x07"])
def test_a_holder_that_says_nothing_readable_is_another_process(said, tmp_path):
    with locked(tmp_path):
        (tmp_path / ".lock-holder").write_bytes(said)
        assert lock_holder(tmp_path) == "another process"


def test_a_killed_holder_blocks_nobody(tmp_path):
    holder = start(HOLDER, tmp_path)
    assert holder.stdout.readline() == "held\n"
    name = f"process {holder.pid} on {socket.gethostname()}"
    assert lock_holder(tmp_path) == name
    with pytest.raises(RunLockedError, match=name), locked(tmp_path):
        pytest.fail("held twice")
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for it
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert lock_holder(tmp_path) == HERE
    holder.communicate()


def test_to_ask_for_the_holder_keeps_nobody_from_training(tmp_path):
    (tmp_path / ".lock-holder").write_text("process 7 on box")  # killed
    asking = FileLock(tmp_path / ".lock", thread_local=False)
    with asking:
        threading.Timer(0.1, lambda: asking.release(force=True)).start()
        with locked(tmp_path):
            assert lock_holder(tmp_path) == HERE


def test_a_process_ends_though_it_did_not_give_its_folder_back(tmp_path):
    process = start(LEAVER, tmp_path)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
    assert lock_holder(tmp_path) is None


def test_a_stopped_holder_keeps_the_lock(tmp_path):
    holder = start(HOLDER, tmp_path)
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    assert lock_holder(tmp_path) == f"process {holder.pid} on {socket.gethostname()}"
    holder.kill()
    holder.communicate()


def test_processes_that_race_for_a_folder_and_die_hold_it_one_at_a_time(tmp_path):
    names, ended = ["one", "two"], []
    racers = {name: start(RACER, tmp_path, name) for name in names}
    while racers:
        for name, racer in list(racers.items()):
            if racer.poll() is not None:
                racer.communicate()
                ended.append(racer.returncode)
                del racers[name]
                if racer.returncode == -signal.SIGKILL:
                    racers[name] = start(RACER, tmp_path, name)
        time.sleep(0.01)
    assert set(ended) == {0, -signal.SIGKILL}  # no mark was found by another one
    assert [len((tmp_path / f"{name}.count").read_bytes()) for name in names] == [12, 12]


def test_a_folder_in_training_is_refused_and_untouched(tiny_recipe, cache_dir, tmp_path):
    run = plan_one(tiny_recipe, "SM+R", tmp_path)
    with locked(run.folder.path):
        before = contents(tmp_path)
        with pytest.raises(RunLockedError, match=f"{run.folder.path} is being trained by {HERE}"):
            train_runs([run], cache_dir=cache_dir, say=pytest.fail)
        assert contents(tmp_path) == before


def test_a_run_that_another_process_ended_in_the_meantime_is_reused(
    tiny_recipe, cache_dir, tmp_path, whole_runs
):
    run = plan_one(tiny_recipe, "SM+R", tmp_path)
    assert run.action == "train"
    shutil.copytree(whole_runs("SM+R").path, run.folder.path)
    shutil.rmtree(run.folder.checkpoints)
    before, said = contents(tmp_path), []
    train_runs([run], cache_dir=cache_dir, say=said.append)
    assert said[0].startswith("data: ")
    assert said[1:] == [f"SM+R seed 0: reusing the finished run in {run.folder.path}"]
    assert contents(run.folder.path) == {**contents(run.folder.path), **before}


def test_a_lock_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("no folder")
    message = f"train: cannot write the lock to {tmp_path}/file/run: Not a directory"
    with pytest.raises(Exception, match=message), locked(tmp_path / "file" / "run"):
        pass
