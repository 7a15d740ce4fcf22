"""Signals that interrupt a party while it serves or asks."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_interruptibly(main: Coroutine[Any, Any, _Result]) -> _Result:
    """Runs a coroutine as `asyncio.run` does, and lets it clean up when a signal interrupts it.

    `KeyboardInterrupt` in the middle of the loop's own code can lose a task's turn: that task never
    ends, and the program waits for it forever. So a signal whose handler raises it cancels the
    coroutine instead, and it is raised when the coroutine has ended. A second signal raises it at
    once. Outside of the main thread, where no signal arrives, nothing is different.

    Raises:
        KeyboardInterrupt: SIGINT or SIGTERM came, and its handler was `signal.default_int_handler`.
    """
    if threading.current_thread() is not threading.main_thread():
        return asyncio.run(main)
    interrupted = False
    cancel: Callable[[], object] | None = None

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal interrupted
        if interrupted:
            raise KeyboardInterrupt
        interrupted = True
        if cancel is not None:
            cancel()

    async def cancelled_by_signals() -> _Result:
        nonlocal cancel
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None
        cancel = lambda: loop.call_soon_threadsafe(task.cancel)  # noqa: E731
        if interrupted:  # before there was anything to cancel
            task.cancel()
        try:
            return await main
        finally:
            cancel = None

    both = (signal.SIGINT, signal.SIGTERM)
    taken = [each for each in both if signal.getsignal(each) is signal.default_int_handler]
    for each in taken:
        signal.signal(each, interrupt)
    try:
        result = asyncio.run(cancelled_by_signals())
    except BaseException as error:
        if interrupted:
            raise KeyboardInterrupt from error
        raise
    finally:
        for each in taken:
            signal.signal(each, signal.default_int_handler)
    if interrupted:
        raise KeyboardInterrupt
    return result
