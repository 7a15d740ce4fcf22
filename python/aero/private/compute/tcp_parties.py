"""One party of two processes, connected by SPU's link."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
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


class TcpParties:
    """`Parties` of which this process is one; the other runs the same program.

    Args:
        party: which one this is.
        addresses: of the client's and the server's SPU; each listens at its own.
        settings: of both.
        on_stage: called with the name of a stage before it begins.

    Attributes:
        settings: of both.
        calls: their calls so far, in order; bytes as this party counts them.

    Raises:
        PartyError: SPU cannot listen, or the other party's cannot be reached.
    """

    def __init__(
        self,
        party: Party,
        addresses: tuple[str, str],
        settings: PrivateSettings,
        on_stage: Callable[[str], None] = lambda name: None,
    ) -> None:
        self.party = party
        self.settings = settings
        self.calls: list[Call] = []
        self._on_stage = on_stage
        self._compiler = Compiler(self.settings)
        self._log = ProfileLog()
        description = libspu.link.Desc()
        # A stage may compute for minutes before it sends; that the other party lives is watched
        # elsewhere, and so is that it loads. It is about to listen: the next attempt comes soon.
        description.recv_timeout_ms = int(1000 * settings.timeout_seconds)
        description.http_timeout_ms = int(1000 * settings.timeout_seconds)
        description.connect_retry_interval_ms = 100
        description.connect_retry_times = int(10 * settings.timeout_seconds)
        for each, address in zip(Party, addresses, strict=True):
            description.add_party(each.name, address)
        try:
            self._link = libspu.link.create_brpc(description, party.value)
        except RuntimeError as error:
            raise PartyError("SPU cannot connect with the other party's") from error
        self._side = SpuParty(self._link, settings, profiled=True)
        self._io = spu.Io(len(Party), runtime_config(settings, profiled=False))

    @property
    def _peer(self) -> int:
        return 1 - self.party.value

    def put(
        self,
        name: str,
        array: NDArray[Any] | AbstractArray,
        owner: Party | None,
        *,
        private: bool = False,
    ) -> Value:
        """See `Parties.put`. Shares travel over SPU's link from their owner to the other party."""
        self._on_stage(name)
        start = time.perf_counter()
        if isinstance(array, AbstractArray) and owner in (None, self.party):
            raise TypeError(f"put: {name} must be an array where its owner is, got only its shape")
        value = Value(
            self._compiler.new_name(), tuple(array.shape), np.dtype(array.dtype), owner is None
        )
        if owner is None or private:
            # The other party's part of a private value is an empty place of the same shape.
            known = np.zeros(array.shape, array.dtype) if owner not in (None, self.party) else array
            kind = libspu.Visibility.VIS_PUBLIC if owner is None else libspu.Visibility.VIS_SECRET
            shares = self._io.make_shares(
                np.ascontiguousarray(known), kind, -1 if owner is None else owner.value
            )
            own, traffic = shares[self.party], Traffic()
        elif owner is self.party:
            shares = self._io.make_shares(
                np.ascontiguousarray(array), libspu.Visibility.VIS_SECRET, -1
            )
            traffic = self._send(shares[self._peer])
            own = shares[self.party]
        else:
            own, traffic = self._receive()
        self._side.runtime.set_var(value.name, own)
        self.calls.append(Call(name, time.perf_counter() - start, traffic))
        return value

    def run(self, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """See `Parties.run`. The time of compiling is not counted."""
        self._on_stage(name)
        program = self._compiler.program(name, function, arguments)
        start, used = time.perf_counter(), time.process_time()
        self._side.runtime.run(program.executable)
        seconds, used = time.perf_counter() - start, time.process_time() - used
        call = self._log.call(name, seconds, self.party)
        self.calls.append(dataclasses.replace(call, cpu_seconds=used))
        return program.results

    def reveal(self, value: Value) -> NDArray[Any] | None:
        """See `Parties.reveal`; None at the server."""
        self._on_stage("reveal")
        start = time.perf_counter()
        own, opened = self._side.runtime.get_var(value.name), None
        if self.party is Party.SERVER:
            traffic = self._send(own)
        else:
            other, traffic = self._receive()
            opened = np.asarray(self._io.reconstruct([own, other]))
        self.calls.append(Call("reveal", time.perf_counter() - start, traffic))
        return opened

    def discard(self, *values: Value) -> None:
        """See `Parties.discard`."""
        for value in jax.tree_util.tree_leaves(values):
            self._side.runtime.del_var(value.name)

    def close(self) -> None:
        """Waits until the other party has everything, then ends the link."""
        self._link.stop_link()
        self._log.close()

    def _send(self, share: Any) -> Traffic:
        parts = [share.meta, *share.share_chunks]
        self._link.send_async(self._peer, len(parts).to_bytes(4, "little"))
        for part in parts:
            self._link.send_async(self._peer, part)
        return _sent(parts, self.party)

    def _receive(self) -> tuple[Any, Traffic]:
        count = int.from_bytes(self._link.recv(self._peer), "little")
        parts = [self._link.recv(self._peer) for _ in range(count)]
        share = libspu.Share()
        share.meta, share.share_chunks = parts[0], parts[1:]
        return share, _sent(parts, Party(self._peer))


def _sent(parts: list[bytes], sender: Party) -> Traffic:
    size = sum(map(len, parts))
    if sender is Party.CLIENT:
        return Traffic(client_bytes=size, client_messages=len(parts))
    return Traffic(server_bytes=size, server_messages=len(parts))
