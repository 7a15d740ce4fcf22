"""Signals end a party that serves or asks, wherever they find it, and after it has cleaned up."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from aero.private.parties.interrupts import run_interruptibly

# The signal finds the loop where it has taken a task's turn from its queue and not yet given it:
# an exception there loses the turn, and that task never ends.
PROGRAM = """
import asyncio, signal, sys
from aero.private.parties.interrupts import run_interruptibly

number = getattr(signal, sys.argv[1])
signal.signal(number, signal.default_int_handler)
give_turn, due = asyncio.events.Handle._run, []

def give_turn_late(handle):
    if due:
        signal.raise_signal(due.pop())
    give_turn(handle)

asyncio.events.Handle._run = give_turn_late

async def main():
    try:
        due.append(number)
        await asyncio.sleep(0)
        await asyncio.sleep(600)
    finally:
        if sys.argv[2:]:  # another signal, while it cleans up
            due.append(number)
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)
        print("cleaned up", flush=True)

try:
    run_interruptibly(main())
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(number) is signal.default_int_handler)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_between_two_turns_ends_a_party_that_cleans_up(name: str) -> None:
    command = [sys.executable, "-c", PROGRAM, name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["cleaned up", "interrupted True", ""], done.stderr


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_second_signal_between_two_turns_ends_it_too(name: str) -> None:
    command = [sys.executable, "-c", PROGRAM, name, "twice"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n") == ["interrupted True", ""], done.stderr


def interrupting(number: signal.Signals, *, ignored: bool = False) -> object:
    async def main() -> str:
        signal.raise_signal(number)
        await asyncio.sleep(0.01)
        return "not interrupted"

    before = signal.getsignal(number)
    handler = signal.SIG_IGN if ignored else signal.default_int_handler
    signal.signal(number, handler)
    try:
        return run_interruptibly(main())
    finally:
        assert signal.getsignal(number) is handler
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_raised_and_an_ignored_signal_stays_ignored(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupting(number)
    assert interrupting(number, ignored=True) == "not interrupted"


@pytest.fixture
def interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.signal(signal.SIGINT, before) is signal.default_int_handler


@pytest.mark.usefixtures("interruptible")
def test_a_second_signal_does_not_wait_for_what_cleans_up() -> None:
    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(600)
        finally:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(600)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(main())


@pytest.mark.usefixtures("interruptible")
def test_an_error_of_cleaning_up_is_not_lost() -> None:
    async def main() -> None:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(600)
        finally:
            raise ValueError("the log is not written")

    with pytest.raises(ValueError, match="log"):
        run_interruptibly(main())


@pytest.mark.usefixtures("interruptible")
def test_a_call_that_blocks_the_loop_ends_at_the_second_signal() -> None:
    reading, writing = os.pipe()
    times = [threading.Timer(at, signal.pthread_kill, (threading.get_ident(), signal.SIGINT))
             for at in (0.1, 1.5)]  # fmt: skip

    async def main() -> None:
        for each in times:
            each.start()
        os.read(reading, 1)

    with pytest.raises(KeyboardInterrupt):
        run_interruptibly(main())
    for end in (reading, writing):
        os.close(end)


def test_a_result_an_error_and_a_thread_are_as_with_asyncio_run() -> None:
    async def answer(error: Exception | None = None) -> int:
        await asyncio.sleep(0)
        if error is not None:
            raise error
        return 42

    assert run_interruptibly(answer()) == 42
    with pytest.raises(ValueError, match="wrong"):
        run_interruptibly(answer(ValueError("wrong")))
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(run_interruptibly(answer())))
    thread.start()
    thread.join()
    assert found == [42]
