"""Signals that interrupt a party while it serves or asks."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Coroutine
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# A loop that has not come to its next turn by then waits in a call that blocks.
_BLOCKED_SECONDS = 1.0


def run_interruptibly(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine as `asyncio.run` does, and lets it clean up when a signal interrupts it.

    `KeyboardInterrupt` in the middle of the loop's own code can lose a task's turn: that task never
    ends, and the program waits for it forever. So a signal whose handler raises it cancels the
    coroutine instead, and a further one every task, also those that clean up. It is raised when
    they have ended, or at once where the loop itself is held up by a call that blocks. Outside of
    the main thread, where no signal arrives, nothing is different.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came, and its handler was `signal.default_int_handler`.
            An error of the coroutine, as of its cleaning up, is raised in place of it.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    interrupts = _Interrupts()
    taken = [each for each in _SIGNALS if signal.getsignal(each) is signal.default_int_handler]
    try:
        try:
            for each in taken:
                signal.signal(each, interrupts.handle)
            result = asyncio.run(interrupts.cancelling(main))
        finally:
            # One that arrives in between is raised after all handlers are as they were.
            before = signal.pthread_sigmask(signal.SIG_BLOCK, taken)
            for each in taken:
                signal.signal(each, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
    except asyncio.CancelledError as error:
        if interrupts.count:
            raise KeyboardInterrupt from error
        raise
    if interrupts.count:
        raise KeyboardInterrupt
    return result


class _Interrupts:
    """Signals that cancel tasks of a loop, in a turn of the loop."""

    def __init__(self) -> None:
        self.count = 0
        self._unheard: float | None = None  # when the first came that has had no turn
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[Any] | None = None

    async def cancelling(self, main: Coroutine[Any, Any, _Result]) -> _Result:
        """Awaits a coroutine that signals cancel."""
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        if self.count:  # before there was anything to cancel
            self._cancel()
        return await main

    def handle(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        now = time.monotonic()
        if self._unheard is None:
            self._unheard = now
        elif now - self._unheard > _BLOCKED_SECONDS:
            raise KeyboardInterrupt
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._unheard = None
        assert self._main is not None
        is_first = self.count == 1 and not self._main.done()
        for task in [self._main] if is_first else asyncio.all_tasks(self._loop):
            task.cancel()
