"""The ends of a run of two parties, with workers that only pretend to compute."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.python.refusals import assert_refused

from aero.private.links import channel as channels
from aero.private.links.channel import Channel
from aero.private.parties.events import Done, Event, Stage, Unpadded
from aero.private.parties.passes import Passes, Request
from aero.private.parties.supervision import TimeLimits, supervise
from aero.private.parties.worker_pipe import Worker, first_report
from aero.private.party_errors import PartyError

# Reads its job, says its terms, waits for "go", walks through stages.
PRETENDER = """
import json, os, signal, socket, sys, time
def say(event, **values): print(json.dumps({"event": event, **values}), flush=True)
job = json.loads(sys.stdin.readline())
if job.get("die_at") == "loading":
    os._exit(7)
time.sleep(job.get("loading_seconds", 0))
say("terms", terms={"threads": 1})
told = json.loads(sys.stdin.readline())
if "told" in job:
    open(job["told"], "w").write(json.dumps(told))
if job.get("deaf"):
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(told["own"].removeprefix("unix:"))
    listener.listen()
    connection, _ = listener.accept()
for number in range(job.get("stages", 3)):
    say("stage", stage=f"layer {number}")
    if job.get("die_at") == number:
        os.kill(os.getpid(), signal.SIGKILL)
    if job.get("stuck_at") == number:
        sys.stdin.read()
        os._exit(1)
    if job.get("fail_at") == number:
        say("failed", reason="ValueError")
    time.sleep(job.get("seconds", 0))
if "weights" in job:
    say("stage", stage="weights")
    say("piece", index=0, call={"name": "weights", "seconds": 0.5, "traffic": job["weights"]})
say("done")
sys.stdin.read()
"""
# The clock ends none of these tests: a busy machine may take its time.
PATIENT = TimeLimits(connect=60, ready=60, silence=60, stage=60)
REQUEST = Request(3, 1)

Outcome = Any


class Side:
    """One party; `outcome` is its last event or its error."""

    def __init__(
        self,
        job: dict[str, Any],
        log: Path,
        limits: TimeLimits = PATIENT,
        while_running: Callable[[], None] = lambda: None,
        most_sent: int | None = 100_000,
    ) -> None:
        self._limits, self._while_running, self._most_sent = limits, while_running, most_sent
        self.unpadded: list[str] = []
        memory = job.get("memory_bytes")
        self.worker = Worker([sys.executable, "-c", PRETENDER], job, log, memory)
        self.stages: list[str] = []

    def _record(self, event: Event) -> None:
        if isinstance(event, Unpadded):
            self.unpadded.append(event.reason)
        elif isinstance(event, Stage):
            self.stages.append(event.stage)
            self._while_running()

    async def run(self, channel: Channel) -> Outcome:
        try:
            await first_report(self.worker, 60)
            passes = Passes(32, REQUEST)
            return await supervise(
                self.worker,
                [channel],
                self._limits,
                self._record,
                passes,
                lambda _: self._most_sent,
            )
        except PartyError as error:
            return error
        finally:
            assert self.worker._process.poll() is not None, "its worker still runs"


async def connected() -> tuple[Channel, Channel]:
    """The client's and the server's end, with signs of life."""
    ends = [
        Channel(*await asyncio.open_connection(sock=end), peer, "here", dialled=peer == "server")
        for end, peer in zip(socket.socketpair(), ("server", "client"), strict=True)
    ]
    for end in ends:
        end.beat()
    return ends[0], ends[1]


def run_both(client: Side, server: Side) -> tuple[Outcome, Outcome]:
    async def both() -> tuple[Outcome, Outcome]:
        ends = await connected()
        return await asyncio.gather(client.run(ends[0]), server.run(ends[1]))

    return asyncio.run(asyncio.wait_for(both(), 45))


@pytest.fixture
def both(tmp_path: Path) -> Callable[..., tuple[Outcome, Outcome]]:
    def run(client: dict[str, Any], server: dict[str, Any], **options: Any) -> Any:
        sides = (Side(client, tmp_path / "client", **options), Side(server, tmp_path / "server"))
        return run_both(*sides)

    return run


def test_both_workers_learn_the_request_and_where_spu_is_to_listen(
    both: Any, tmp_path: Path
) -> None:
    files = [tmp_path / "one.json", tmp_path / "other.json"]
    both(*({"stages": 2, "told": str(file)} for file in files))
    for file, other in zip(files, ("server", "client"), strict=True):
        told = json.loads(file.read_text())
        assert told["request"] == msgspec.to_builtins(REQUEST)
        assert told["own"].startswith("unix:") and told["own"].endswith("/own")
        assert told["others"] == {other: told["own"].removesuffix("own") + other}


def test_a_party_that_finishes_first_waits_for_the_other(
    both: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Many signs of life in the time without one that a party bears, and that the other one takes.
    monkeypatch.setattr(channels, "_HEARTBEAT_SECONDS", 0.25)
    limits = TimeLimits(silence=2)
    client, server = both({"stages": 0}, {"stages": 6, "seconds": 0.5}, limits=limits)
    assert client == server == Done()


def padded(folder: Path, most: int | None, *jobs: dict[str, Any]) -> tuple[list[int], list[Side]]:
    """Bytes that both send in a run, as the other received them, and both sides."""

    async def both() -> list[int]:
        ends = await connected()
        counts = []
        for end in ends:
            read = end._reader.feed_data

            def counted(data: bytes, read: Any = read, at: int = len(counts)) -> None:
                counts[at] += len(data)
                read(data)

            counts.append(0)
            end._reader.feed_data = counted  # type: ignore[method-assign]
        await asyncio.gather(*(side.run(end) for side, end in zip(sides, ends, strict=True)))
        assert [ends[1].sent, ends[0].sent] == counts
        return counts

    sides = [Side(job, folder / str(at), most_sent=most) for at, job in enumerate(jobs)]
    return asyncio.run(asyncio.wait_for(both(), 45)), sides


@pytest.mark.parametrize("most", [1000, 1007, 50_000, 16_384 + 113, 3_000_001])
def test_a_run_is_padded_to_its_bound_however_long_it_takes(tmp_path: Path, most: int) -> None:
    counts, sides = padded(tmp_path, most, {"stages": 1}, {"stages": 3, "seconds": 0.4})
    assert counts == [most, most]
    assert not sides[0].unpadded and not sides[1].unpadded


def test_what_cannot_be_padded_is_told(tmp_path: Path) -> None:
    for most, expected in ((20, "20"), (None, "unknown")):
        counts, sides = padded(tmp_path, most, {"stages": 0}, {"stages": 0})
        for count, side in zip(reversed(counts), sides, strict=True):
            assert side.unpadded == [f"this party sent {count:,} bytes, expected {expected}"]


def test_a_peer_that_leaves_after_the_run_loses_the_padding_alone(tmp_path: Path) -> None:
    side = Side({"stages": 0}, tmp_path / "log", limits=TimeLimits(silence=2))
    outcome, _ = run_server(side, lambda client: client.post(done=True))
    assert outcome == Done()
    assert side.unpadded == ["no sign of life of the client for 2 s"]


def test_the_shares_of_weights_are_padded_too(tmp_path: Path) -> None:
    job = {"stages": 0, "weights": {"server_bytes": 7000, "client_bytes": 0}}
    counts, _ = padded(tmp_path, 5000, job, job)
    assert counts == [12_000, 5000]  # as the client and the server received them


def test_events_reach_the_caller_in_order(tmp_path: Path) -> None:
    client, server = Side({}, tmp_path / "client"), Side({}, tmp_path / "server")
    run_both(client, server)
    assert client.stages == server.stages == ["layer 0", "layer 1", "layer 2"]


@pytest.mark.parametrize("dying", ["client", "server"])
def test_a_worker_that_dies_ends_both_parties(both: Any, dying: str) -> None:
    jobs = {"client": {"seconds": 0.3, "stages": 1000}, "server": {"seconds": 0.3, "stages": 1000}}
    jobs[dying]["die_at"] = 1
    client, server = both(jobs["client"], jobs["server"])
    own, other = (client, server) if dying == "client" else (server, client)
    said, where = "the worker ended with signal SIGKILL", "in stage layer 1"
    assert str(own) == f"{said} ({where})"
    # Where the other one stands is said as well, unless that is the same place.
    told = re.fullmatch(r"the (\w+) gave up ([^:]*): (.*?)( \(here [^)]*\))?", str(other))
    assert told is not None and told.groups()[:3] == (dying, where, said)
    assert where not in str(told[4])


@pytest.mark.parametrize(
    ("told", "seconds", "named"),
    [
        ({"die_at": "loading"}, 60.0, "exit code 7"),
        ({"loading_seconds": 30}, 0.3, "not ready within 0.3 s"),
    ],
)
def test_a_worker_that_does_not_load_is_named(
    tmp_path: Path, told: dict[str, Any], seconds: float, named: str
) -> None:
    worker = Worker([sys.executable, "-c", PRETENDER], told, tmp_path / "log")
    first = first_report(worker, seconds)
    assert_refused(lambda: asyncio.run(first), "the worker", named, error=PartyError)
    worker.end()


def test_a_reported_failure_ends_both_parties(both: Any) -> None:
    client, server = both({"fail_at": 0}, {"stages": 50, "seconds": 0.3})
    assert str(client) == "ValueError (in stage layer 0)"
    assert "the client gave up in stage layer 0: ValueError" in str(server)


def test_a_party_that_stands_elsewhere_says_where(both: Any) -> None:
    client, server = both({"fail_at": 1, "seconds": 1}, {"stuck_at": 0})
    assert str(client) == "ValueError (in stage layer 1)"
    told = r"the client gave up in stage layer 1: ValueError \(here .*\)"
    assert re.fullmatch(told, str(server))


def run_server(side: Side, attack: Callable[[Channel], Any]) -> tuple[Outcome, Channel]:
    """A server whose client is in our hands."""

    async def run() -> tuple[Outcome, Channel]:
        client, server = await connected()
        running = asyncio.create_task(side.run(server))
        client._beating.cancel()  # type: ignore[union-attr]
        attack(client)
        outcome = await running
        client._writer.transport.abort()
        return outcome, client

    return asyncio.run(asyncio.wait_for(run(), 45))


LONG = {"stages": 1000, "seconds": 0.05}


def test_a_party_whose_machine_vanishes_ends_the_other(tmp_path: Path) -> None:
    side = Side(LONG, tmp_path / "log")
    outcome, _ = run_server(side, lambda client: client._writer.transport.abort())
    assert str(outcome).startswith("the client closed the connection (")


def test_who_leaves_is_noticed_while_nothing_is_taken_of_what_it_sent(tmp_path: Path) -> None:
    """Its SPU may be stopped or out of memory: only the stage's limit, of 60 s, would end it."""

    async def run() -> tuple[Outcome, float]:
        client, server = await connected()
        serving = asyncio.create_task(side.run(server))
        # Until SPU listens, streams are turned away.
        stream = 1
        while not side.stages:
            await client.send(stream, b"x")
            await asyncio.sleep(0.05)
            stream += 0 if side.stages else 2
        for _ in range(16):  # 4 MB, more than sockets hold
            await asyncio.wait_for(client.send(stream, bytes(1 << 18)), 20)
        start = time.monotonic()
        client._writer.transport.abort()
        return await serving, time.monotonic() - start

    side = Side({"deaf": True, "stuck_at": 0}, tmp_path / "server")
    outcome, seconds = asyncio.run(asyncio.wait_for(run(), 50))
    assert "the client closed the connection" in str(outcome)
    assert "in stage layer 0" in str(outcome)
    assert seconds < 30


def test_a_worker_above_its_memory_ends_both_parties(both: Any) -> None:
    client, server = both({"stuck_at": 1}, {"stuck_at": 1, "memory_bytes": 1_000_000})
    assert re.search(r"the worker took 0\.\d\d GB of memory, and it may take 0\.00", str(server))
    assert "the server gave up" in str(client) and "of memory" in str(client)


def test_a_silent_party_ends_the_other(tmp_path: Path) -> None:
    side = Side(LONG, tmp_path / "log", limits=TimeLimits(silence=0.5))
    outcome, _ = run_server(side, lambda client: None)
    assert "no sign of life of the client for 0.5 s" in str(outcome)


FOREIGN = {
    "hello": lambda client: client.post(hello={"protocol": "", "role": "", "terms": {}}),
    "go": lambda client: client.post(go="again"),
    "flood": lambda client: [client.post(alive=True) for _ in range(10_000)],
    "own stream": lambda client: client._writer.write(bytes([0, 0, 0, 2, 0, 0, 0, 1, 7])),
    "not this protocol": lambda client: client._writer.write(b"PRPC" * 100),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_has_no_place_in_a_run_ends_it(tmp_path: Path, name: str) -> None:
    outcome, _ = run_server(Side(LONG, tmp_path / "log"), FOREIGN[name])
    assert "the client does not speak this protocol: got " in str(outcome)


@pytest.mark.parametrize(
    ("told", "limits", "named"),
    [
        ({"stuck_at": 1}, TimeLimits(stage=1.5), ("no progress for 1.5 s", "layer 1")),
        (LONG, TimeLimits(run=1.0), ("the run took longer than 1 s",)),
    ],
)
def test_a_stage_or_a_run_without_end_ends_both_parties(
    tmp_path: Path, told: dict[str, Any], limits: TimeLimits, named: tuple[str, ...]
) -> None:
    sides = [Side(told, tmp_path / name, limits) for name in ("client", "server")]
    for outcome in run_both(sides[0], sides[1]):
        assert all(text in str(outcome) for text in named)


def test_an_interrupt_ends_both_parties(tmp_path: Path) -> None:
    def interrupt() -> None:
        raise PartyError("interrupted")

    client = Side(LONG, tmp_path / "client", while_running=interrupt)
    outcomes = run_both(client, Side(LONG, tmp_path / "server"))
    assert "interrupted (in stage layer" in str(outcomes[0])
    assert "the client gave up in stage layer 0: interrupted" in str(outcomes[1])


def test_what_a_worker_writes_on_standard_error_is_in_the_log_alone(tmp_path: Path) -> None:
    program = (
        'import sys; sys.stdin.readline(); print(\'{"event": "terms", "terms": {}}\', flush=True); '
        "sys.stdin.readline(); raise SystemExit('about the prompt')"
    )
    side = Side({}, tmp_path / "unused")
    side.worker.end()
    side.worker = Worker([sys.executable, "-c", program], {}, tmp_path / "log")

    async def run() -> tuple[Outcome, bytes]:
        client, server = await connected()
        client._beating.cancel()  # type: ignore[union-attr]
        running = asyncio.create_task(side.run(server))
        received = await client._reader.read()
        client._writer.transport.abort()
        return await running, received

    outcome, received = asyncio.run(asyncio.wait_for(run(), 45))
    assert "prompt" not in str(outcome)
    assert (tmp_path / "log").read_text() == "about the prompt\n"
    assert b"exit code 1" in received
    assert b"prompt" not in received


def test_a_worker_ends_with_its_supervisor(tmp_path: Path) -> None:
    # A killed supervisor can end nobody; the worker sees its standard input close.
    waiting = (
        "import time\nfrom aero.private.parties.worker_pipe import WorkerPipe\n"
        "pipe = WorkerPipe(); pipe.job(dict); pipe.listen(); time.sleep(60)\n"
    )
    program = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from aero.private.parties.worker_pipe import Worker\n"
        "worker = Worker([sys.executable, '-c', sys.argv[1]], {}, Path(sys.argv[2]))\n"
        "print(worker._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, waiting, str(tmp_path / "log")]
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
