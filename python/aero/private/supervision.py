"""One party's supervisor: a plain process above the one that computes.

SPU's calls cannot be interrupted, and SPU ends the process when a message cannot be sent. So the
computing is a child process, the worker: it is told what to do on its standard input, reports on
its standard output and ends when that input closes. The supervisor watches it, the other party and
the clock, and whatever ends the run, it ends the worker and tells the other party.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aero.private.control_channel import ControlChannel
from aero.private.handshake import check_hello, hello
from aero.private.party_errors import PartyError

Event = dict[str, Any]

TICK_SECONDS = 0.25
_HEARTBEAT_SECONDS = 1.0


@dataclass(frozen=True)
class TimeLimits:
    """How long a party waits before it gives up, in seconds, each > 0.

    Attributes:
        connect: for the other party to appear.
        ready: for both workers to load and compile.
        silence: without a sign of life of the other party's supervisor.
        stage: without any progress of the run.

    Raises:
        ValueError: one is not positive.

    Example:
        >>> TimeLimits(stage=0.0)
        Traceback (most recent call last):
        ValueError: private: stage must be > 0 seconds, got 0.0
    """

    connect: float = 60.0
    ready: float = 180.0
    silence: float = 15.0
    stage: float = 600.0

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if not getattr(self, name) > 0:
                raise ValueError(f"private: {name} must be > 0 seconds, got {getattr(self, name)}")


class Worker:
    """The child process that computes, and its lines of JSON.

    Args:
        command: program and arguments; secrets do not belong here, others can read them.
        job: what it is to do, as JSON values, on its standard input.
        log: file for what it writes to standard error.
    """

    def __init__(self, command: Sequence[str], job: Event, log: Path) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,  # an interrupt from the keyboard is the supervisor's
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._received = b""
        self.tell(job)

    def fileno(self) -> int:
        """The descriptor of its reports, for select."""
        return self._output.fileno()

    def tell(self, message: Event) -> None:
        """Gives it a line; a worker that has ended is found by `events`."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(json.dumps(message).encode() + b"\n")
            self._input.flush()

    def events(self) -> list[Event]:
        """What it reported since the last call.

        Raises:
            PartyError: it has ended.
        """
        try:
            chunk = os.read(self._output.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if chunk:
            *lines, self._received = (self._received + chunk).split(b"\n")
            return [json.loads(line) for line in lines]
        raise PartyError(f"the worker ended with {_ending(self._process.wait())}")

    def check(self) -> None:
        """Raises PartyError if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise PartyError(f"private: the worker ended with {_ending(code)} (before the run)")

    def end(self) -> None:
        """Kills it if it still runs; it is gone when this returns."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def supervise(
    worker: Worker,
    channel: ControlChannel,
    link_address: str,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> Event:
    """Takes a worker through a run together with the other party's.

    The worker reports {"event": "ready", "terms": ..., "request": ...}, the request at the client;
    when both parties' terms agree it is told {"go": [client's link, server's link], "request":
    ...}, reports any events, of which "stage" names where it stands, and last {"event": "done",
    ...}. {"event": "failed", "reason": ...} ends the run.

    Args:
        worker: started; ended in every case.
        channel: to the other party's supervisor; closed in every case.
        link_address: HOST:PORT for this party's SPU.
        limits: of time.
        on_event: called with every event but the first and the last.

    Returns:
        The last event.

    Raises:
        PartyError: the worker or the other party ended or stands still; both sides name the stage.
    """
    run = _Run(worker, channel, link_address, limits, on_event)
    try:
        while True:
            result = run.step()
            if result is not None:
                return result
    except BaseException as error:
        run.tell_failure(error)
        if isinstance(error, PartyError):
            raise PartyError(f"private: {error}{run.own_place}") from error
        raise
    finally:
        worker.end()
        channel.close()


class _Run:
    """The state of a supervised run."""

    def __init__(
        self,
        worker: Worker,
        channel: ControlChannel,
        link_address: str,
        limits: TimeLimits,
        on_event: Callable[[Event], None],
    ) -> None:
        self._worker, self._channel, self._limits = worker, channel, limits
        self._link_address = link_address
        self._on_event = on_event
        self._own_hello: Event | None = None
        self._peer_hello: Event | None = None
        self._peer_done = False
        self._started = False
        self.result: Event | None = None
        self.where = "before the run"
        self._peer_where: str | None = None  # where the other party gave up
        self._heard = self._progress = time.monotonic()
        self._beaten = 0.0

    def step(self) -> Event | None:
        """Waits a moment for either side, then looks at the clock; the last event at the end."""
        computing = self.result is None
        watched = [self._channel.fileno(), *([self._worker.fileno()] if computing else [])]
        select.select(watched, [], [], TICK_SECONDS)
        if computing:
            for event in self._worker.events():
                self._take_event(event)
        while not (self._peer_done and self.result):
            message = self._channel.poll()
            if message is None:
                self._watch_the_clock()
                return None
            self._take_message(message)
        return self.result

    @property
    def own_place(self) -> str:
        """Where this party stands, unless what ends it has said so."""
        if self._peer_where is None:
            return f" ({self.where})"
        return "" if self._peer_where == self.where else f" (here {self.where})"

    def tell_failure(self, error: BaseException) -> None:
        """Tells the other party why this one ends, in words of this package, without secrets."""
        told = str(error) if isinstance(error, PartyError) else "stopped"
        with contextlib.suppress(PartyError):
            self._channel.send({"failed": told, "where": self.where}, seconds=1.0)

    def _take_event(self, event: Event) -> None:
        self._progress = time.monotonic()
        match event.get("event"):
            case "ready":
                role = "server" if self._channel.peer == "client" else "client"
                self._own_hello = hello(
                    role, event["terms"], self._link_address, event.get("request")
                )
                self._channel.send({"hello": self._own_hello})
                self._start_if_agreed()
            case "done":
                self.result = event
                self.where = "after the last stage"
                self._channel.send({"done": True})
            case "failed":
                raise PartyError(str(event["reason"]))
            case _:
                self.where = f"in stage {event['stage']}" if "stage" in event else self.where
                self._on_event(event)

    def _take_message(self, message: Event) -> None:
        self._heard = time.monotonic()
        if "failed" in message:
            self._peer_where = str(message.get("where", "without saying where"))[:100]
            told = f"the {self._channel.peer} gave up {self._peer_where}: {message['failed']}"
            raise PartyError(told[:400])
        self._peer_done = self._peer_done or bool(message.get("done"))
        if isinstance(message.get("hello"), dict):
            self._peer_hello = message["hello"]
            self._start_if_agreed()

    def _start_if_agreed(self) -> None:
        if self._started or self._own_hello is None or self._peer_hello is None:
            return
        self.where = "in the handshake"
        check_hello(self._own_hello, self._peer_hello, self._channel.peer)
        self._started = True
        self.where = "at the start of the run"
        self._progress = time.monotonic()
        links = {each["role"]: each["link"] for each in (self._own_hello, self._peer_hello)}
        request = self._own_hello.get("request") or self._peer_hello.get("request")
        self._worker.tell({"go": [links["client"], links["server"]], "request": request})

    def _watch_the_clock(self) -> None:
        now, limits, peer = time.monotonic(), self._limits, self._channel.peer
        if now - self._beaten > _HEARTBEAT_SECONDS:
            self._beaten = now
            with contextlib.suppress(PartyError):  # reading tells better why it has gone
                self._channel.send({"alive": True})
        if now - self._heard > limits.silence:
            raise PartyError(f"no sign of life of the {peer} for {limits.silence:g} s")
        limit = limits.stage if self._started else limits.ready
        if now - self._progress > limit:
            raise PartyError(f"no progress for {limit:g} s")
