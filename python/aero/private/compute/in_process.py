"""All parties in one process, over SPU's link in memory: exact bytes, no network."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import spu
from numpy.typing import NDArray
from spu import libspu

from aero.private.compute.calls import AbstractArray, Call, Party, Traffic, Value
from aero.private.compute.spu_runtime import Compiler, ProfileLog, SpuParty, runtime_config
from aero.private.party_errors import PartyError
from aero.private.settings import PrivateSettings
from aero.private.temporary import temporary_folder

# The time that one party still has to end by itself when the other has failed.
GRACE_SECONDS = 5.0


class InProcessParties:
    """`Parties` as threads of this process.

    Attributes:
        settings: of all.
        calls: their calls so far, in order. Of two parties the client counts the bytes: those that
            it sends, and those that it receives, which the server sends. Of three, as ABY3 has,
            the sum of all is counted, and each is taken to send a third.
    """

    def __init__(self, settings: PrivateSettings | None = None) -> None:
        self.settings = PrivateSettings() if settings is None else settings
        self.calls: list[Call] = []
        self._compiler = Compiler(self.settings)
        self._held = contextlib.ExitStack()
        if self.settings.cached_weights:
            self._held.enter_context(_working_folder())
        count = self.settings.parties
        self._log = ProfileLog(1 if count == 2 else count)
        description = libspu.link.Desc()
        description.recv_timeout_ms = int(1000 * self.settings.timeout_seconds)
        for rank in range(count):
            description.add_party(Party(rank).word, f"thread-{rank}")
        self._sides = _at_once(
            count,
            lambda rank: SpuParty(
                libspu.link.create_mem(description, rank),
                self.settings,
                profiled=rank == Party.CLIENT or count > 2,
            ),
        )
        self._io = spu.Io(count, runtime_config(self.settings, profiled=False))

    def put(
        self,
        name: str,
        array: NDArray[Any] | AbstractArray,
        owner: Party | None,
        *,
        private: bool = False,
    ) -> Value:
        """See `Parties.put`; the array itself, whoever owns it."""
        if isinstance(array, AbstractArray):
            raise TypeError(f"put: {name} must be an array where both parties are one process")
        start = time.perf_counter()
        kind = libspu.Visibility.VIS_PUBLIC if owner is None else libspu.Visibility.VIS_SECRET
        rank = owner.value if owner is not None and private else -1
        shares = self._io.make_shares(np.ascontiguousarray(array), kind, rank)
        value = Value(self._compiler.new_name(), array.shape, array.dtype, public=owner is None)
        for side, share in zip(self._sides, shares, strict=True):
            side.runtime.set_var(value.name, share)
        traffic = Traffic()
        if owner is not None and not private:
            # With three parties each of the two others gets two of three shares.
            count = 1 if len(self._sides) == 2 else 4
            traffic = _shares(count * array.size, sender=owner)
        self.calls.append(Call(name, time.perf_counter() - start, traffic))
        return value

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `Parties.run`. The time of compiling is not counted."""
        program = self._compiler.program(name, function, arguments)
        start = time.perf_counter()
        _at_once(len(self._sides), lambda rank: self._sides[rank].runtime.run(program.executable))
        seconds = time.perf_counter() - start
        self.calls.append(self._log.call(name, seconds, Party.CLIENT))
        return program.results

    def reveal(self, value: Value) -> NDArray[Any]:
        """See `Parties.reveal`."""
        start = time.perf_counter()
        opened = self._io.reconstruct([side.runtime.get_var(value.name) for side in self._sides])
        traffic = _shares(opened.size, sender=Party.SERVER)
        self.calls.append(Call("reveal", time.perf_counter() - start, traffic))
        return np.asarray(opened)

    def discard(self, *values: Value) -> None:
        """See `Parties.discard`."""
        for value in jax.tree_util.tree_leaves(values):
            for side in self._sides:
                side.runtime.del_var(value.name)

    def close(self) -> None:
        """See `Parties.close`."""
        self._sides.clear()
        self._log.close()
        self._held.close()


@contextlib.contextmanager
def _working_folder() -> Iterator[None]:
    """A temporary one for a block: SPU writes what it keeps of opened weights where it works."""
    before = Path.cwd()
    with temporary_folder() as folder:
        os.chdir(folder)
        try:
            yield
        finally:
            os.chdir(before)


def _shares(elements: int, sender: Party) -> Traffic:
    size = 8 * elements
    if sender is Party.CLIENT:
        return Traffic(client_bytes=size, client_messages=1)
    return Traffic(server_bytes=size, server_messages=1)


def _at_once(count: int, work: Callable[[int], Any]) -> list[Any]:
    """The results of all parties by their rank.

    Raises:
        PartyError: one failed; names the last call of all. SPU's link in memory cannot be closed
            from outside, so the others may wait on for the one that failed, in a thread that ends
            with the process.
    """
    ended: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def one(rank: int) -> None:
        try:
            ended.put((rank, work(rank), None))
        except BaseException as error:
            ended.put((rank, None, error))

    for rank in range(count):
        threading.Thread(target=one, args=(rank,), daemon=True).start()
    results: dict[int, Any] = {}
    errors: dict[int, BaseException] = {}
    with contextlib.suppress(queue.Empty):
        while len(results) + len(errors) < count:
            rank, result, error = ended.get(timeout=GRACE_SECONDS if errors else None)
            if error is None:
                results[rank] = result
            else:
                errors[rank] = error
    if errors:
        raise PartyError(_told(count, results, errors)) from next(iter(errors.values()))
    return [results[rank] for rank in range(count)]


def _told(count: int, results: dict[int, Any], errors: dict[int, BaseException]) -> str:
    """The last call of each party."""
    words = dict.fromkeys(range(count), "waited for the other until it was given up")
    words |= dict.fromkeys(results, "was done")
    words |= {rank: _reason(error) for rank, error in errors.items()}
    return "; ".join(f"{Party(rank).word}: {words[rank]}" for rank in range(count))


def _reason(error: BaseException) -> str:
    """The reason of an error of SPU, without the stack that it holds."""
    text = re.split(r"stacktrace:", str(error), maxsplit=1, flags=re.IGNORECASE)[0]
    return f"{type(error).__name__}: {' '.join(text.removeprefix('what:').split())[:300]}"
