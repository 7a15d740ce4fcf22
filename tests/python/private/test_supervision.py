"""What ends a run of two parties, with workers that only pretend to compute."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aero.private import supervision
from aero.private.control_channel import ControlChannel
from aero.private.party_errors import PartyError
from aero.private.supervision import TimeLimits, Worker, supervise

# Reads its job, says that it is ready, waits for "go", walks through stages.
PRETENDER = """
import os, signal, sys, time
from aero.private.worker_pipe import WorkerPipe
pipe = WorkerPipe()
job = pipe.next_message()
if job.get("die_at") == "loading":
    os._exit(7)
time.sleep(job.get("loading_seconds", 0))
pipe.say("ready", terms=job.get("terms", {"threads": 1}))
links = pipe.next_message()["go"]
for number in range(job.get("stages", 3)):
    pipe.say("stage", stage=f"layer {number}")
    print("noise of a library")
    if job.get("die_at") == number:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.get("stuck_at") == number:
        time.sleep(3600)
    if job.get("fail_at") == number:
        pipe.say("failed", reason="ValueError")
    time.sleep(job.get("seconds", 0))
pipe.say("done", links=links)
"""
# What these tests end is not ended by the clock: a busy machine may take its time.
PATIENT = TimeLimits(connect=60, ready=60, silence=60, stage=60)


class Side:
    """One party in a thread; `outcome` is its last event or its error."""

    def __init__(
        self,
        channel: ControlChannel,
        link: str,
        job: dict[str, Any],
        log: Path,
        limits: TimeLimits = PATIENT,
        while_running: Callable[[], None] = lambda: None,
    ) -> None:
        self._while_running = while_running
        self.worker = Worker([sys.executable, "-c", PRETENDER], job, log)
        self.stages: list[str] = []
        self.outcome: Any = None
        arguments = (self.worker, channel, link, limits, self._record)
        self._thread = threading.Thread(target=self._run, args=arguments)
        self._thread.start()

    def _record(self, event: dict[str, Any]) -> None:
        self.stages.append(event["stage"])
        self._while_running()

    def _run(self, *arguments: Any) -> None:
        try:
            self.outcome = supervise(*arguments)
        except PartyError as error:
            self.outcome = error

    def join(self) -> Any:
        self._thread.join(45)
        assert not self._thread.is_alive(), "this party hangs"
        assert self.worker._process.poll() is not None, "its worker still runs"
        return self.outcome


def connected() -> tuple[ControlChannel, ControlChannel]:
    """The client's and the server's end."""
    listener = socket.create_server(("127.0.0.1", 0))
    client, server = socket.create_connection(listener.getsockname()), listener.accept()[0]
    listener.close()
    return ControlChannel(client, peer="server"), ControlChannel(server, peer="client")


def run_both(
    folder: Path, client: dict[str, Any], server: dict[str, Any], **options: Any
) -> tuple[Any, Any]:
    ends = connected()
    sides = [
        Side(channel, f"{role}:1", job, folder / role, **options)
        for channel, role, job in zip(ends, ("client", "server"), (client, server), strict=True)
    ]
    return sides[0].join(), sides[1].join()


def test_both_parties_finish_and_know_each_others_link(tmp_path: Path) -> None:
    client, server = run_both(tmp_path, {"stages": 3}, {"stages": 2})
    assert client["links"] == server["links"] == ["client:1", "server:1"]


def test_a_party_that_finishes_first_waits_for_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many signs of life in the time without one that a party bears, and that the other one takes.
    monkeypatch.setattr(supervision, "_HEARTBEAT_SECONDS", 0.1)
    limits = TimeLimits(silence=2)
    client, server = run_both(tmp_path, {"stages": 0}, {"stages": 6, "seconds": 0.5}, limits=limits)
    assert client["event"] == server["event"] == "done"


def test_events_reach_the_caller_in_order(tmp_path: Path) -> None:
    ends = connected()
    client = Side(ends[0], "client:1", {}, tmp_path / "client")
    server = Side(ends[1], "server:1", {}, tmp_path / "server")
    client.join(), server.join()
    assert client.stages == server.stages == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize("dying", ["client", "server"])
@pytest.mark.parametrize(
    ("stage", "said", "where"),
    [
        ("loading", "the worker ended with exit code 7", "before the run"),
        (1, "the worker ended with signal SIGKILL", "in stage layer 1"),
    ],
)
def test_a_worker_that_dies_ends_both_parties(
    tmp_path: Path, dying: str, stage: str | int, said: str, where: str
) -> None:
    jobs = {"client": {"seconds": 0.3, "stages": 1000}, "server": {"seconds": 0.3, "stages": 1000}}
    jobs[dying]["die_at"] = stage  # type: ignore[assignment]
    start = time.monotonic()
    client, server = run_both(tmp_path, jobs["client"], jobs["server"])
    own, other = (client, server) if dying == "client" else (server, client)
    assert str(own) == f"private: {said} ({where})"
    # Where the other one stands is said as well, unless that is the same place.
    told = re.fullmatch(r"private: the (\w+) gave up ([^:]*): (.*?)( \(here [^)]*\))?", str(other))
    assert told is not None and told.groups()[:3] == (dying, where, said)
    assert where not in str(told[4])
    assert time.monotonic() - start < 45


def test_a_reported_failure_ends_both_parties(tmp_path: Path) -> None:
    client, server = run_both(tmp_path, {"fail_at": 0}, {"stages": 50, "seconds": 0.3})
    assert str(client) == "private: ValueError (in stage layer 0)"
    assert "the client gave up in stage layer 0: ValueError" in str(server)


def test_a_party_that_stands_elsewhere_says_where(tmp_path: Path) -> None:
    client, server = run_both(tmp_path, {"fail_at": 1, "seconds": 1}, {"stuck_at": 0})
    assert str(client) == "private: ValueError (in stage layer 1)"
    told = r"private: the client gave up in stage layer 1: ValueError \(here .*\)"
    assert re.fullmatch(told, str(server))


def test_a_party_whose_machine_vanishes_ends_the_other(tmp_path: Path) -> None:
    ends = connected()
    server = Side(ends[1], "server:1", {}, tmp_path / "server")
    ends[0].close()
    assert "the client closed the connection (before the run)" in str(server.join())


def test_a_silent_party_ends_the_other(tmp_path: Path) -> None:
    ends = connected()
    limits = TimeLimits(silence=0.5)
    server = Side(ends[1], "server:1", {}, tmp_path / "server", limits=limits)
    assert "no sign of life of the client for 0.5 s" in str(server.join())
    ends[0].close()


def test_a_stage_without_end_ends_both_parties(tmp_path: Path) -> None:
    limits = TimeLimits(stage=1.5)
    client, server = run_both(tmp_path, {"stuck_at": 1}, {"stuck_at": 1}, limits=limits)
    assert all("no progress for 1.5 s" in str(each) for each in (client, server))
    assert all("layer 1" in str(each) for each in (client, server))


def test_a_party_that_loads_for_too_long_ends_both(tmp_path: Path) -> None:
    late = {"loading_seconds": 30}
    client, server = run_both(tmp_path, late, {}, limits=TimeLimits(ready=0.7))
    assert all("no progress for 0.7 s" in str(each) for each in (client, server))


def test_another_configuration_is_named_at_both_parties(tmp_path: Path) -> None:
    client, server = run_both(
        tmp_path,
        {"terms": {"spu": "0.9.5", "threads": 2}},
        {"terms": {"spu": "0.9.5", "threads": 4}},
    )
    assert "threads must be 2 as here, got 4 from the server (in the handshake)" in str(client)
    assert "threads must be 4 as here, got 2 from the client (in the handshake)" in str(server)


def test_a_stranger_is_refused(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stranger = socket.create_connection(listener.getsockname())
    channel = ControlChannel(listener.accept()[0], peer="client")
    listener.close()
    server = Side(channel, "server:1", {}, tmp_path / "server")
    stranger.sendall(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
    assert "the client does not speak this protocol" in str(server.join())
    stranger.close()


def test_a_stranger_who_never_ends_a_line_is_refused(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    stranger = socket.create_connection(listener.getsockname())
    channel = ControlChannel(listener.accept()[0], peer="client")
    listener.close()
    server = Side(channel, "server:1", {}, tmp_path / "server")
    with pytest.raises(OSError):
        while True:  # until the server closes
            stranger.sendall(bytes(65536))
    assert "the client does not speak this protocol" in str(server.join())
    stranger.close()


def test_an_interrupt_ends_both_parties(tmp_path: Path) -> None:
    ends = connected()

    def interrupt() -> None:
        raise PartyError("interrupted")

    long = {"stages": 100, "seconds": 0.1}
    client = Side(ends[0], "client:1", long, tmp_path / "client", while_running=interrupt)
    server = Side(ends[1], "server:1", long, tmp_path / "server")
    assert "interrupted (in stage layer" in str(client.join())
    assert "the client gave up in stage layer 0: interrupted" in str(server.join())


def test_what_a_worker_writes_on_standard_error_is_in_the_log_alone(tmp_path: Path) -> None:
    program = "import sys, json; sys.stdin.readline(); raise SystemExit('about the prompt')"
    ends = connected()
    worker = Worker([sys.executable, "-c", program], {}, tmp_path / "log")
    with pytest.raises(PartyError) as caught:
        supervise(worker, ends[1], "server:1", PATIENT, lambda event: None)
    assert "prompt" not in str(caught.value)
    assert (tmp_path / "log").read_text() == "about the prompt\n"
    received = b"".join(iter(lambda: ends[0]._connection.recv(65536), b""))
    assert b"exit code 1" in received
    assert b"prompt" not in received
    ends[0].close()


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    # A killed supervisor can end nobody; the worker sees its standard input close.
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from aero.private.supervision import Worker\n"
        "job = {'loading_seconds': 60}\n"
        "worker = Worker([sys.executable, '-c', sys.argv[1]], job, Path(sys.argv[2]))\n"
        "print(worker._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, PRETENDER, str(tmp_path / "log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pid = int(supervisor.stdout.readline())
        assert is_running(pid)
        supervisor.kill()
    end = time.monotonic() + 30
    while is_running(pid):
        assert time.monotonic() < end, "the worker outlived its supervisor"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_time_limits_are_positive() -> None:
    with pytest.raises(ValueError, match=r"private: silence must be > 0 seconds, got 0"):
        TimeLimits(silence=0)
