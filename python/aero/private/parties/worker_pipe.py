"""The pipes between a worker and its supervisor, both ends, and the limit of its memory.

Where an allocation fails in one of SPU's threads, a message is lost and both parties wait on. So
the supervisor ends a worker above its limit, and the system refuses memory only a quarter above.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from aero.private.parties.events import Event, Failed, Terms, decoded, encoded
from aero.private.parties.orders import heard, told
from aero.private.party_errors import PartyError

_Order = TypeVar("_Order")
_POLL_SECONDS = 0.02
# What a child needs of the environment: programs and libraries, temporary files, its threads.
_ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "TMPDIR", "LANG", "LC_ALL", "OMP_NUM_THREADS",
)  # fmt: skip


class WorkerPipe:
    """Lines of JSON from and to the supervisor; may be made once per process.

    Once `listen` was called, the process ends when the supervisor does, whatever SPU is doing: the
    supervisor's end closes. Output of libraries goes to standard error from now on.
    """

    def __init__(self) -> None:
        self._reports = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._received: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # Not sys.stdin: its lock would be waited for when the process ends.
        self._lines = os.fdopen(os.dup(sys.stdin.fileno()), "rb")

    def job(self, kind: type[_Order]) -> _Order:
        """Waits for the supervisor's first line, and starts no thread.

        Raises:
            msgspec.ValidationError: it is no such job.
        """
        line = self._lines.readline()
        if not line:  # the supervisor has ended
            sys.exit(1)
        return heard(line, kind)

    def listen(self) -> None:
        """Takes the supervisor's further lines in a thread of its own."""
        threading.Thread(target=self._listen, daemon=True).start()

    def next_order(self, kind: type[_Order]) -> _Order:
        """Waits for the supervisor's next line.

        Raises:
            msgspec.ValidationError: it is none of this kind.
        """
        return heard(self._received.get(), kind)

    def say(self, event: Event) -> None:
        """Reports an event."""
        self._reports.write(encoded(event))
        self._reports.flush()

    def _listen(self) -> None:
        for line in self._lines:
            self._received.put(line)
        os._exit(1)


def most_memory(given: int | None) -> int:
    """Bytes that a worker may take: by default four fifths of the machine's."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return machine * 4 // 5 if given is None else given


def held_memory(process: int) -> int:
    """Bytes of data that a process has asked for; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))


class Worker:
    """The child process that computes, and its lines of JSON.

    Args:
        command: program and arguments; secrets do not belong here, others can read them.
        job: its work, a record of `parties.orders` or a `PartyJob`, on its standard input.
        log: file for its standard error.
        memory_bytes: that it may take; None: four fifths of the machine's.
    """

    def __init__(
        self, command: Sequence[str], job: object, log: Path, memory_bytes: int | None = None
    ) -> None:
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
                start_new_session=True,  # an interrupt from the keyboard is the supervisor's
            )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        os.set_blocking(self._output.fileno(), False)
        self._received = b""
        self._most_bytes = most_memory(memory_bytes)
        self.tell(job)

    def fileno(self) -> int:
        """The descriptor of its reports, for select."""
        return self._output.fileno()

    def tell(self, order: object) -> None:
        """Gives it a line; a worker that has ended is found by `events`."""
        with contextlib.suppress(BrokenPipeError):
            self._input.write(told(order))
            self._input.flush()

    def events(self) -> list[Event]:
        """Its reports since the last call.

        Raises:
            PartyError: it has ended.
        """
        try:
            chunk = os.read(self._output.fileno(), 1 << 20)
        except BlockingIOError:
            return []
        if chunk:
            *lines, self._received = (self._received + chunk).split(b"\n")
            return [decoded(line) for line in lines]
        raise PartyError(f"the worker ended with {_ending(self._process.wait())}")

    def check(self) -> None:
        """Raises PartyError if it has ended."""
        code = self._process.poll()
        if code is not None:
            raise PartyError(f"private: the worker ended with {_ending(code)} (before the run)")

    def check_memory(self) -> None:
        """Raises PartyError if it holds more memory than its job says."""
        held = held_memory(self._process.pid)
        if held > self._most_bytes:
            raise PartyError(
                f"the worker took {held / 1e9:.2f} GB of memory, and it may take "
                f"{self._most_bytes / 1e9:.2f}"
            )

    def stop(self) -> None:
        """Kills it if it still runs; it is gone when this returns."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        """The same, and its pipes are closed."""
        self.stop()
        for pipe in (self._input, self._output):
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


async def first_report(worker: Worker, seconds: float) -> dict[str, object]:
    """The terms of a worker's first report: values that must be equal at both parties.

    Raises:
        PartyError: it ended, failed or took longer.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for event in worker.events():
            if isinstance(event, Terms):
                return event.terms
            raise PartyError(event.reason if isinstance(event, Failed) else "it said no terms")
        await asyncio.sleep(_POLL_SECONDS)
    raise PartyError(f"the worker was not ready within {seconds:g} s")
