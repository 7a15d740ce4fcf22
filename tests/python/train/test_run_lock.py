"""Two trainings never write into one folder."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest

from aero.train import run_lock
from aero.train.run_callback import RunCallback
from aero.train.run_lock import RunLockedError, lock_holder, locked
from aero.train.runs import train_runs

from .conftest import plan_one

HERE = f"process {os.getpid()} on {socket.gethostname()}"
# Holds a folder on a machine of another name until it is killed.
HOLDER = """
import sys, time
from aero.train import run_lock
run_lock._machine = lambda: sys.argv[2]
with run_lock.locked(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""
# Ends without giving its folder back.
LEAVER = """
import sys
from aero.train import run_lock
held = run_lock.locked(sys.argv[1])
held.__enter__()
"""
# Takes a folder again and again, and counts in a file how often it held it. Where two hold it, the
# second one finds the first one's mark. Every fifth time it is killed as its holder.
RACER = """
import os, signal, sys, time
from pathlib import Path
from aero.train import run_lock
folder, machine = Path(sys.argv[1]), sys.argv[2]
run_lock._machine = lambda: machine
run_lock._BEAT_SECONDS, run_lock._DEAD_SECONDS = 0.05, 1.0
counts, mark = folder / f"{machine}.count", folder / "mark"
while (held := len(counts.read_bytes()) if counts.exists() else 0) < 12:
    try:
        with run_lock.locked(folder):
            os.close(os.open(mark, os.O_CREAT | os.O_EXCL))
            time.sleep(0.002)
            with counts.open("ab") as file:
                file.write(b".")
            mark.unlink()
            if held % 5 == 4:
                os.kill(os.getpid(), signal.SIGKILL)
    except run_lock.RunLockedError:
        pass
"""


def start(script, *arguments):
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def lease_of_another_machine(folder, number, age=0.0):
    """Writes the lease of a process of another machine that renewed it `age` seconds ago."""
    (folder / ".locks").mkdir(parents=True, exist_ok=True)
    lease = folder / ".locks" / str(number)
    lease.write_text("process 7 on box\nits-boot 4026531836 99")
    os.utime(lease, (time.time() - age,) * 2)
    return lease


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


@pytest.mark.parametrize("said", [b"\x1b[2J", b"\nprocess 7", b"process 7 on \x07"])
def test_a_holder_that_says_nothing_readable_is_another_process(said, tmp_path):
    with locked(tmp_path):
        (tmp_path / ".locks" / "1").write_bytes(said)
        assert lock_holder(tmp_path) == "another process"


@pytest.mark.parametrize("machine", ["this", "another"])
def test_a_killed_holder_blocks_nobody(machine, tmp_path, monkeypatch):
    holder = start(HOLDER, tmp_path, run_lock._machine() if machine == "this" else machine)
    assert holder.stdout.readline() == "held\n"
    name = f"process {holder.pid} on {socket.gethostname()}"
    assert lock_holder(tmp_path) == name
    with pytest.raises(RunLockedError, match=name), locked(tmp_path):
        pytest.fail("held twice")
    holder.send_signal(signal.SIGKILL)
    os.waitid(os.P_PID, holder.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for it
    if machine == "another":
        # Only its heartbeat tells, so that it counts as alive until that has failed for long.
        assert lock_holder(tmp_path) == name
        os.utime(tmp_path / ".locks" / "1", (time.time() - run_lock._DEAD_SECONDS - 1,) * 2)
    assert lock_holder(tmp_path) is None
    with locked(tmp_path):
        assert lock_holder(tmp_path) == HERE
    holder.communicate()


def test_a_process_ends_though_it_did_not_give_its_folder_back(tmp_path):
    process = start(LEAVER, tmp_path)
    try:
        assert process.wait(timeout=60) == 0
    finally:
        process.kill()
    assert lock_holder(tmp_path) is None


def test_a_stopped_holder_on_this_machine_keeps_the_lock(tmp_path):
    holder = start(HOLDER, tmp_path, run_lock._machine())
    assert holder.stdout.readline() == "held\n"
    holder.send_signal(signal.SIGSTOP)
    os.utime(tmp_path / ".locks" / "1", (0, 0))
    assert lock_holder(tmp_path) == f"process {holder.pid} on {socket.gethostname()}"
    holder.kill()
    holder.communicate()


def test_a_process_that_got_a_dead_holders_number_is_not_that_holder(tmp_path):
    with locked(tmp_path):
        lease = tmp_path / ".locks" / "1"
        said, _, started = lease.read_text().rpartition(" ")
        lease.write_text(f"{said} {int(started) - 1}")
        assert lock_holder(tmp_path) is None


@pytest.mark.parametrize(("age", "lives"), [(0, True), (80, True), (100, False)])
def test_a_heartbeat_tells_of_holders_elsewhere(age, lives, tmp_path):
    lease_of_another_machine(tmp_path, 3, age)
    assert lock_holder(tmp_path) == ("process 7 on box" if lives else None)
    if lives:
        with pytest.raises(RunLockedError, match="process 7 on box"), locked(tmp_path):
            pytest.fail("held twice")
    else:
        with locked(tmp_path):
            assert sorted(path.name for path in (tmp_path / ".locks").iterdir()) == ["3", "4"]


def test_a_clock_that_is_wrong_lets_nobody_in(tmp_path, monkeypatch):
    lease_of_another_machine(tmp_path, 1)
    right = time.time
    monkeypatch.setattr(run_lock.time, "time", lambda: right() + 3600.0)
    with pytest.raises(RunLockedError, match="process 7 on box"), locked(tmp_path):
        pytest.fail("held twice")


def test_the_heart_of_a_holder_beats(tmp_path, monkeypatch):
    monkeypatch.setattr(run_lock, "_BEAT_SECONDS", 0.01)
    with locked(tmp_path):
        lease = tmp_path / ".locks" / "1"
        os.utime(lease, (0, 0))
        while lease.stat().st_mtime == 0:
            time.sleep(0.01)
        assert time.time() - lease.stat().st_mtime < 60


def test_a_link_that_the_file_server_calls_there_already_but_made_is_held(tmp_path, monkeypatch):
    link = os.link

    def made_and_denied(*names):
        link(*names)
        raise FileExistsError

    monkeypatch.setattr(run_lock.os, "link", made_and_denied)
    with locked(tmp_path):
        assert lock_holder(tmp_path) == HERE


def test_of_two_who_see_a_dead_holder_one_takes_over(tmp_path, monkeypatch):
    lease_of_another_machine(tmp_path, 1, age=1000)
    link = os.link

    def late(*names):
        lease_of_another_machine(tmp_path, 2)  # the other one was faster
        link(*names)

    monkeypatch.setattr(run_lock.os, "link", late)
    with pytest.raises(RunLockedError, match="process 7 on box"), locked(tmp_path):
        pytest.fail("held twice")
    assert sorted(path.name for path in (tmp_path / ".locks").iterdir()) == ["1", "2"]


def test_processes_that_race_for_a_folder_and_die_hold_it_one_at_a_time(tmp_path):
    machines, ended = ["box-1", "box-2"], []
    racers = {name: start(RACER, tmp_path, name) for name in machines}
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
    assert [len((tmp_path / f"{name}.count").read_bytes()) for name in machines] == [12, 12]


def test_a_holder_that_was_taken_for_dead_stops_before_it_writes(
    tiny_recipe, cache_dir, tmp_path, monkeypatch
):
    run, before = plan_one(tiny_recipe, "SM+R", tmp_path), {}
    begin, now = RunCallback.on_step_begin, run_lock._now

    def stopped_for_long(self, args, state, control, **kwargs):
        if state.global_step == 2:
            lease_of_another_machine(run.folder.path, 2)
            monkeypatch.setattr(run_lock, "_now", lambda: now() + 100.0)
            before.update(contents(run.folder.path))
        return begin(self, args, state, control, **kwargs)

    monkeypatch.setattr(RunCallback, "on_step_begin", stopped_for_long)
    with pytest.raises(RunLockedError, match=r"is being trained by process 7 on box"):
        train_runs([run], cache_dir=cache_dir, say=lambda text: None)
    assert before.pop("1") and contents(run.folder.path) == {"1": b"", **before}


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
