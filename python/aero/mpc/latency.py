"""How long a private forward pass takes: the closed form, summed like the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from aero import _core
from aero.mpc.cost import Operation
from aero.mpc.profiles import ComputeProfile, NetworkProfile
from aero.mpc.schedule import Schedule


@dataclass(frozen=True)
class Duration:
    """Time of a piece of work that runs alone, in whole nanoseconds, so that sums are exact.

    Attributes:
        compute_ns: The slower party's computing; both parties compute at once.
        transfer_ns: Sending; a full-duplex link sends both ways at once.
        rounds_ns: Waiting for messages: rounds (RTT / 2 + software).
    """

    compute_ns: int
    transfer_ns: int
    rounds_ns: int

    @property
    def total_ns(self) -> int:
        """The three parts together."""
        return self.compute_ns + self.transfer_ns + self.rounds_ns

    @property
    def seconds(self) -> float:
        """The three parts together, in seconds."""
        return self.total_ns / 1e9

    @property
    def minutes(self) -> float:
        """The three parts together, in minutes."""
        return self.total_ns / 60e9

    def __add__(self, other: Duration) -> Duration:
        return Duration(
            self.compute_ns + other.compute_ns,
            self.transfer_ns + other.transfer_ns,
            self.rounds_ns + other.rounds_ns,
        )

    def to_dict(self) -> dict[str, float]:
        """Seconds by part."""
        return {
            "seconds": self.seconds,
            "compute_seconds": self.compute_ns / 1e9,
            "transfer_seconds": self.transfer_ns / 1e9,
            "rounds_seconds": self.rounds_ns / 1e9,
        }


_NOTHING = Duration(0, 0, 0)


@dataclass(frozen=True)
class Latency:
    """A report timed on a network and two machines, one operation after the other.

    `schedule(overlap=True)` lets operations overlap.

    Attributes:
        label: The network.
        priced: Its operations.
        network: The link.
        compute: The machines.
        total: The sum over the operations.
    """

    label: str
    priced: tuple[Operation, ...]
    network: NetworkProfile
    compute: ComputeProfile
    total: Duration

    @staticmethod
    def of(
        label: str,
        operations: tuple[Operation, ...],
        network: NetworkProfile,
        compute: ComputeProfile,
    ) -> Latency:
        """Times priced operations; see `CostReport.latency`."""
        machines = network.values(), compute.values()
        total = Duration(*_core.total_time(operations, *machines, network.full_duplex))
        return Latency(label, operations, network, compute, total)

    @cached_property
    def operation_times(self) -> tuple[_core.OperationTime, ...]:
        """Per operation the nanoseconds that it asks of every resource."""
        machines = self.network.values(), self.compute.values()
        return tuple(_core.operation_times(self.priced, *machines))

    @cached_property
    def operations(self) -> tuple[Duration, ...]:
        """Per operation its time alone."""
        duplex = self.network.full_duplex
        return tuple(
            Duration(one.compute_alone, one.transfer_alone(duplex), one.rounds)
            for one in self.operation_times
        )

    @property
    def seconds(self) -> float:
        """The time of the whole forward pass."""
        return self.total.seconds

    @property
    def minutes(self) -> float:
        """The time of the whole forward pass."""
        return self.total.minutes

    @cached_property
    def by_kind(self) -> dict[str, Duration]:
        """The sum per part of the cost report, in the order of the operations."""
        return self._sums("kind")

    @cached_property
    def by_layer(self) -> tuple[Duration, ...]:
        """The sum per layer; with `outside_layers` they make the total."""
        layers = 1 + max((o.layer for o in self.priced if o.layer is not None), default=-1)
        return tuple(self._by_place.get(layer, _NOTHING) for layer in range(layers))

    @cached_property
    def outside_layers(self) -> Duration:
        """The operations that belong to no layer."""
        return self._by_place.get(None, _NOTHING)

    @cached_property
    def _by_place(self) -> dict[Any, Duration]:
        return self._sums("layer")

    @property
    def unchecked(self) -> tuple[str, ...]:
        """The parts of these minutes that no publication or measurement confirms."""
        return unchecked_minutes(self.network, self.compute)

    def schedule(self, *, overlap: bool = True) -> Schedule:
        """When every operation runs on both processors and both directions of the link.

        Args:
            overlap: On: an operation starts when its inputs are finished, and its computing and
                sending run at once, as where ciphertexts are streamed: what an ideal runtime could
                reach. Off: one operation after the other, which is `total` exactly.

        Example:
            >>> from aero import mpc
            >>> latency = mpc.simulate("SM+ScFuFFN").latency()
            >>> latency.schedule(overlap=False).seconds == latency.seconds
            True
            >>> latency.schedule().seconds < latency.seconds
            True
        """
        return Schedule.of(self.priced, self.operation_times, overlap, self.network.full_duplex)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON-ready values, in seconds."""
        return {
            "network": self.network.to_dict(),
            "compute": self.compute.to_dict(),
            "unchecked": list(self.unchecked),
            "minutes": self.minutes,
            **self.total.to_dict(),
            "by_kind": {kind: duration.to_dict() for kind, duration in self.by_kind.items()},
            "by_layer": [duration.to_dict() for duration in self.by_layer],
            "outside_layers": self.outside_layers.to_dict(),
            "operations": [duration.to_dict() for duration in self.operations],
        }

    def __repr__(self) -> str:
        return f"<Latency {self.label} on {self.network.name}: {self.minutes:.2f} min>"

    def _sums(self, attribute: str) -> dict[Any, Duration]:
        found: dict[Any, Duration] = {}
        for operation, time in zip(self.priced, self.operations, strict=True):
            where = getattr(operation, attribute)
            found[where] = found.get(where, _NOTHING) + time
        return found


def unchecked_minutes(network: NetworkProfile, compute: ComputeProfile) -> tuple[str, ...]:
    """What no publication or measurement confirms of minutes on these machines."""
    fitted = "paper-testbed"
    if network.name == compute.name == fitted:
        return ()
    notes = [
        f"network {network.name}: {network.source}",
        f"compute {compute.name}: {compute.source}",
        "no run confirms minutes on this network with these machines",
    ]
    if network.software_seconds == 0:
        notes.append("rounds: software between messages counts as nothing")
    return tuple(notes)
