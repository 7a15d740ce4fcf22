"""Ctrl-C, SIGTERM and SIGHUP as a request to stop after the step; running time without stops."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any

import torch

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """While open, turns SIGINT, SIGTERM or SIGHUP into a flag; a second SIGINT stops at once.

    SIGHUP says that the terminal is gone; one that is ignored, as under `nohup`, stays so.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: dict[int, Any] = {}
        self._terminals: list[int] = []

    def __enter__(self) -> StopRequest:
        """Installs the handlers; outside of the main thread there are none to install."""
        if threading.current_thread() is threading.main_thread():
            self._terminals = [number for number in (1, 2) if os.isatty(number)]
            self._previous = {
                number: signal.signal(number, self._note)
                for number in _SIGNALS
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Puts the earlier handlers back; a request around this one has the flag too."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
            outer = getattr(handler, "__self__", None)
            if isinstance(outer, StopRequest):
                outer.requested |= self.requested

    def agreed(self, device: torch.device) -> bool:
        """Whether any process was asked; collective under `torchrun`, so that all stop together."""
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return self.requested
        flag = torch.tensor([float(self.requested)], device=device)
        torch.distributed.all_reduce(flag)
        self.requested = bool(flag.item())
        return self.requested

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.requested and number == signal.SIGINT:
            raise KeyboardInterrupt
        if number == signal.SIGHUP:
            self._leave_terminals()
        self.requested = True

    def _leave_terminals(self) -> None:
        """Writing to a terminal that is gone is an error, which would end the step."""
        for number in self._terminals:
            if not os.isatty(number):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, number)
                os.close(nowhere)


class RunningClock:
    """Seconds of work, over all parts of a run.

    A process that is stopped (Ctrl-Z, SIGSTOP) is told when it goes on, by SIGCONT, but not since
    when it stood still: that is taken from its latest `tick`, so that at most the work between two
    ticks is lost. Outside of the main thread Python has no signals, and stops count as work.

    Args:
        seconds: of the parts before this one.
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
