"""How long a run took does not count the hours in which its process was stopped."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from aero.train import signals as running_clock
from aero.train.recorder import RunRecorder
from aero.train.run_folder import RunFolder
from aero.train.signals import RunningClock

CHILD = """
import select, sys, time
from aero.train.signals import RunningClock
clock, began = RunningClock(), time.monotonic()
print("running", flush=True)
while not select.select([sys.stdin], [], [], 0.01)[0]:
    clock.tick()
print(clock.seconds, time.monotonic() - began)
"""


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until a test moves it."""
    seconds = [1000.0]
    monkeypatch.setattr(running_clock.time, "monotonic", lambda: seconds[0])
    return seconds


def test_the_time_from_the_last_tick_to_going_on_does_not_count(now):
    clock = RunningClock(60.0)
    now[0] += 10.0
    clock.tick()
    now[0] += 3600.0
    signal.raise_signal(signal.SIGCONT)
    now[0] += 5.0
    assert clock.seconds == 60.0 + 10.0 + 5.0
    signal.raise_signal(signal.SIGCONT)  # stopped again within the same step
    assert clock.seconds == 60.0 + 10.0
    clock.restart(7.0)
    now[0] += 1.0
    assert clock.seconds == 8.0
    clock.close()


def test_the_records_of_a_run_leave_stops_out(now, tmp_path):
    recorder = RunRecorder(
        RunFolder(tmp_path),
        device=torch.device("cpu"),
        tokens_per_step=1,
        writes=False,
        tensorboard=False,
        first_step=0,
    )
    now[0] += 10.0
    recorder.finish_step()
    now[0] += 3600.0
    signal.raise_signal(signal.SIGCONT)
    assert recorder.seconds == recorder.state()["seconds"] == 10.0
    recorder.close()


def test_another_handler_is_called_too_and_comes_back(now):
    called = []
    before = signal.signal(signal.SIGCONT, lambda number, frame: called.append(number))
    try:
        clock = RunningClock()
        signal.raise_signal(signal.SIGCONT)
        clock.close()
        clock.close()
        signal.raise_signal(signal.SIGCONT)
    finally:
        signal.signal(signal.SIGCONT, before)
    assert called == [signal.SIGCONT] * 2


def test_outside_of_the_main_thread_it_counts_without_signals(now):
    counted = []

    def work():
        clock = RunningClock(1.0)
        now[0] += 2.0
        counted.append(clock.seconds)
        clock.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert counted == [3.0]


def test_a_process_that_was_stopped_leaves_the_stop_out():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    child = subprocess.Popen([sys.executable, "-c", CHILD], **pipes)
    assert child.stdout.readline() == "running\n"
    child.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED)
    time.sleep(1.0)
    child.send_signal(signal.SIGCONT)
    counted, passed = map(float, child.communicate("end\n")[0].split())
    # It stood still for the whole sleep, and its time after the last tick is left out as well.
    assert passed - counted >= 1.0
