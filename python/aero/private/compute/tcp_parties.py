"""One party of two or three processes, connected by SPU's link."""

from __future__ import annotations

import dataclasses
import struct
import time
from collections.abc import Callable, Mapping, Sequence
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

# What a party says of the call that ran: bytes and messages that it sent.
_SENT = struct.Struct("<QQ")


class TcpParties:
    """`Parties` of which this process is one; the others run the same program.

    Args:
        party: which one this is.
        addresses: of each party's SPU, as this one reaches it; at its own it listens.
        settings: of all.
        on_stage: called with the name of a stage before it begins.

    Attributes:
        settings: of all.
        calls: their calls so far, in order. Of two parties this one counts the bytes: those that
            it sends and receives. Of three each says what it has sent, after each call.

    Raises:
        PartyError: SPU cannot listen, or another party's cannot be reached.
    """

    def __init__(
        self,
        party: Party,
        addresses: Mapping[Party, str],
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
        count = settings.parties
        self._others = [each for each in Party if each < count and each is not party]
        for each in list(Party)[:count]:
            description.add_party(each.name, addresses[each])
        try:
            self._link = libspu.link.create_brpc(description, party.value)
        except RuntimeError as error:
            raise PartyError("SPU cannot connect with another party's") from error
        self._side = SpuParty(self._link, settings, profiled=True)
        self._io = spu.Io(count, runtime_config(settings, profiled=False))

    def put(
        self,
        name: str,
        array: NDArray[Any] | AbstractArray,
        owner: Party | None,
        *,
        private: bool = False,
    ) -> Value:
        """See `Parties.put`. Shares travel over SPU's link from their owner to the others."""
        self._on_stage(name)
        start = time.perf_counter()
        if isinstance(array, AbstractArray) and owner in (None, self.party):
            raise TypeError(f"put: {name} must be an array where its owner is, got only its shape")
        value = Value(
            self._compiler.new_name(), tuple(array.shape), np.dtype(array.dtype), owner is None
        )
        if owner is None or private:
            # The others' part of a private value is an empty place of the same shape.
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
            sent = (self._send(shares[other], other) for other in self._others)
            traffic = sum(sent, Traffic())
            own = shares[self.party]
        else:
            own, one = self._receive(owner)
            traffic = sum([one] * len(self._others), Traffic())  # the third one gets as much
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
        if len(self._others) > 1:
            call = Call(name, seconds, self._sent_by_all(call.traffic))
        self.calls.append(dataclasses.replace(call, cpu_seconds=used))
        return program.results

    def _sent_by_all(self, counted: Traffic) -> Traffic:
        """The traffic of a call among three parties, without what they send each other here."""
        at_client = self.party is Party.CLIENT
        own = (
            counted.client_bytes if at_client else counted.server_bytes,
            counted.client_messages if at_client else counted.server_messages,
        )
        for other in self._others:
            self._link.send_async(other, _SENT.pack(*own))
        told = {other: _SENT.unpack(self._link.recv(other)) for other in self._others}
        sent = (_traffic_of(party, *counts) for party, counts in {**told, self.party: own}.items())
        return sum(sent, Traffic())

    def reveal(self, value: Value) -> NDArray[Any] | None:
        """See `Parties.reveal`; None at all but the client."""
        self._on_stage("reveal")
        start = time.perf_counter()
        own, opened = self._side.runtime.get_var(value.name), None
        if self.party is not Party.CLIENT:
            traffic = self._send(own, Party.CLIENT)
        else:
            received = [self._receive(other) for other in self._others]
            traffic = sum((sent for _, sent in received), Traffic())
            opened = np.asarray(self._io.reconstruct([own, *(share for share, _ in received)]))
        self.calls.append(Call("reveal", time.perf_counter() - start, traffic))
        return opened

    def discard(self, *values: Value) -> None:
        """See `Parties.discard`."""
        for value in jax.tree_util.tree_leaves(values):
            self._side.runtime.del_var(value.name)

    def close(self) -> None:
        """Waits until the others have everything, then ends the link."""
        self._link.stop_link()
        self._log.close()

    def _send(self, share: Any, to: Party) -> Traffic:
        parts = [share.meta, *share.share_chunks]
        self._link.send_async(to, len(parts).to_bytes(4, "little"))
        for part in parts:
            self._link.send_async(to, part)
        return _sent(parts, self.party)

    def _receive(self, sender: Party) -> tuple[Any, Traffic]:
        count = int.from_bytes(self._link.recv(sender), "little")
        parts = [self._link.recv(sender) for _ in range(count)]
        share = libspu.Share()
        share.meta, share.share_chunks = parts[0], parts[1:]
        return share, _sent(parts, sender)


def _sent(parts: Sequence[bytes], sender: Party) -> Traffic:
    return _traffic_of(sender, sum(map(len, parts)), len(parts))


def _traffic_of(sender: Party, size: int, messages: int) -> Traffic:
    match sender:
        case Party.CLIENT:
            return Traffic(client_bytes=size, client_messages=messages)
        case Party.SERVER:
            return Traffic(server_bytes=size, server_messages=messages)
        case Party.HELPER:
            return Traffic(helper_bytes=size)
