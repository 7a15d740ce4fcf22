"""The time that a run takes: wall time, less that in which its process was stopped."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

__all__ = ["RunningClock"]


class RunningClock:
    """Seconds of work, over all parts of a run.

    A process that is stopped (Ctrl-Z, SIGSTOP) is told when it goes on, by SIGCONT, but not since
    when it stood still: that is taken from its latest `tick`, so that at most the work between two
    ticks is lost. Outside of the main thread Python has no signals, and stops count as work.

    Args:
        seconds: of the parts before this one.

    Example:
        >>> from aero.train.running_clock import RunningClock
        >>> clock = RunningClock(60.0)
        >>> clock.seconds >= 60.0
        True
        >>> clock.close()
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._begin = self._seen = time.monotonic()
        self._before = seconds
        self._handler: Any = None
        self._listens = threading.current_thread() is threading.main_thread()
        if self._listens:
            self._handler = signal.signal(signal.SIGCONT, self._go_on)

    @property
    def seconds(self) -> float:
        """So far."""
        return self._before + time.monotonic() - self._begin

    def tick(self) -> None:
        """Says that the process runs; once per step."""
        self._seen = time.monotonic()

    def restart(self, seconds: float) -> None:
        """Begins again after `seconds` of earlier parts."""
        self._before = seconds
        self._begin = self._seen = time.monotonic()

    def close(self) -> None:
        """Puts the earlier handler of SIGCONT back."""
        if self._listens:
            signal.signal(signal.SIGCONT, self._handler)
            self._listens = False

    def _go_on(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        self._begin += now - self._seen
        self._seen = now
        if callable(self._handler):
            self._handler(number, frame)
