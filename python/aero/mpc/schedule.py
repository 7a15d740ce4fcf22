"""When every operation runs, what limits the pass, and the gain of another speed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aero import _core
from aero.mpc.cost import Operation

ROUNDS = "rounds"

Segment = _core.Segment
_Times = tuple[_core.OperationTime, ...]


@dataclass(frozen=True)
class ScheduledOperation:
    """When one operation runs, in seconds; the parts add up to the time from start to finish.

    Attributes:
        operation: The operation.
        start_seconds: When its inputs are finished.
        finish_seconds: When its result is there.
        compute_seconds: Spent computing. With overlap computing and sending run at once, and only
            the one that ended last counts.
        transfer_seconds: Spent sending, likewise.
        rounds_seconds: Spent waiting for messages to arrive.
        waiting_seconds: Spent behind other operations, with overlap.
        bound: The slowest part: a resource of `Schedule.utilization`, or "rounds".
    """

    operation: Operation
    start_seconds: float
    finish_seconds: float
    compute_seconds: float
    transfer_seconds: float
    rounds_seconds: float
    waiting_seconds: float
    bound: str


@dataclass(frozen=True)
class Schedule:
    """A schedule over both parties' processors and both directions of the link.

    Attributes:
        overlap: Whether operations, and computing and sending within them, overlap.
        full_duplex: Whether both directions carry bytes at once.
        makespan_ns: From the first start to the last finish, in nanoseconds.
        operations: Every operation's times.
        critical_path: Indices of operations, each starting when the one before it finishes; their
            times add up to the makespan.
        busy_seconds: Per resource: client compute, server compute, client to server, server to
            client.
        segments: Every piece of work: operation, resource, start and finish in nanoseconds.
    """

    overlap: bool
    full_duplex: bool
    makespan_ns: int
    operations: tuple[ScheduledOperation, ...]
    critical_path: tuple[int, ...]
    busy_seconds: dict[str, float]
    _times: _Times
    segments: tuple[Segment, ...]

    @staticmethod
    def of(
        operations: Sequence[Operation], times: _Times, overlap: bool, full_duplex: bool
    ) -> Schedule:
        """Schedules operations whose times are known; see `Latency.schedule`."""
        inputs = [operation.inputs for operation in operations]
        found = _core.schedule(list(times), inputs, overlap, full_duplex)
        return Schedule(
            overlap=overlap,
            full_duplex=full_duplex,
            makespan_ns=found.makespan,
            operations=tuple(
                ScheduledOperation(
                    operation,
                    start_seconds=one.start / 1e9,
                    finish_seconds=one.finish / 1e9,
                    compute_seconds=one.compute / 1e9,
                    transfer_seconds=one.transfer / 1e9,
                    rounds_seconds=one.rounds / 1e9,
                    waiting_seconds=one.waiting / 1e9,
                    bound=one.bound,
                )
                for operation, one in zip(operations, found.operations, strict=True)
            ),
            critical_path=tuple(found.critical_path),
            busy_seconds={name: busy / 1e9 for name, busy in found.busy.items() if name != ROUNDS},
            _times=times,
            segments=tuple(found.segments),
        )

    @property
    def seconds(self) -> float:
        """The time from the first start to the last finish."""
        return self.makespan_ns / 1e9

    @property
    def minutes(self) -> float:
        """The time from the first start to the last finish."""
        return self.makespan_ns / 60e9

    @property
    def utilization(self) -> dict[str, float]:
        """Per resource the share of the makespan in which it is busy, from 0 to 1."""
        return {name: busy / max(self.seconds, 1e-9) for name, busy in self.busy_seconds.items()}

    def bounds(self) -> dict[str, float]:
        """Seconds of the critical path spent computing, sending, in rounds and waiting.

        Example:
            >>> from aero import mpc
            >>> bounds = mpc.simulate("SM+ScFuFFN").latency("wan-100mbps").schedule().bounds()
            >>> max(bounds, key=bounds.get)
            'rounds'
        """
        path = [self.operations[index] for index in self.critical_path]
        return {
            "compute": math.fsum(operation.compute_seconds for operation in path),
            "transfer": math.fsum(operation.transfer_seconds for operation in path),
            "rounds": math.fsum(operation.rounds_seconds for operation in path),
            "waiting": math.fsum(operation.waiting_seconds for operation in path),
        }

    def what_if(
        self,
        *,
        kind: str | None = None,
        layer: int | None = None,
        name: str | None = None,
        operation: int | None = None,
        times_faster: float = math.inf,
    ) -> float:
        """The makespan in seconds if the named operations were faster, or not there at all.

        Args:
            kind: Operations of this part of the cost report, such as "softmax".
            layer: Operations of this layer.
            name: Operations of this name, such as "FFN, in".
            operation: The operation with this index. Of several conditions all must hold.
            times_faster: On every resource; 0.001 to infinity, which leaves the operations out.

        Raises:
            ValueError: Without a condition, where no operation fulfils them, and for a factor out
                of range.

        Example:
            >>> from aero import mpc
            >>> schedule = mpc.simulate("SM+LN+G").latency().schedule(overlap=False)
            >>> schedule.what_if(kind="act", times_faster=2) < schedule.seconds
            True
        """
        wanted = {"kind": kind, "layer": layer, "name": name}
        conditions = {key: value for key, value in wanted.items() if value is not None}
        if not conditions and operation is None:
            raise ValueError("what_if: one of kind, layer, name and operation must be given")
        chosen = [
            (operation is None or index == operation)
            and all(getattr(entry.operation, key) == value for key, value in conditions.items())
            for index, entry in enumerate(self.operations)
        ]
        if not any(chosen):
            given = conditions | ({} if operation is None else {"operation": operation})
            text = ", ".join(f"{key}={value!r}" for key, value in given.items())
            raise ValueError(f"what_if: no operation has {text}")
        return self._makespan([times_faster if one else 1.0 for one in chosen])

    def what_if_each(
        self, by: str = "kind", *, times_faster: float = math.inf
    ) -> dict[str | int | None, float]:
        """`what_if` for every kind, layer (None: outside), name or operation index in turn.

        Raises:
            ValueError: If `by` is not "kind", "layer", "name" or "operation".

        Example:
            >>> from aero import mpc
            >>> schedule = mpc.simulate("SM+LN+G").latency().schedule(overlap=False)
            >>> without = schedule.what_if_each("kind")
            >>> min(without, key=without.get)
            'act'
        """
        keys = self._keys(by)
        return {
            key: self._makespan([times_faster if other == key else 1.0 for other in keys])
            for key in dict.fromkeys(keys)
        }

    def to_dict(self) -> dict[str, Any]:
        """Everything but the trace as JSON-ready values."""
        return {
            "overlap": self.overlap,
            "seconds": self.seconds,
            "utilization": self.utilization,
            "critical_path": list(self.critical_path),
            "bounds": self.bounds(),
            "operations": [
                {
                    "name": entry.operation.name,
                    "layer": entry.operation.layer,
                    "kind": entry.operation.kind,
                    "start_seconds": entry.start_seconds,
                    "finish_seconds": entry.finish_seconds,
                    "waiting_seconds": entry.waiting_seconds,
                    "bound": entry.bound,
                }
                for entry in self.operations
            ],
        }

    def __repr__(self) -> str:
        return f"<Schedule of {len(self.operations)} operations: {self.minutes:.2f} min>"

    def _keys(self, by: str) -> list[Any]:
        readers: dict[str, Callable[[int], Any]] = {
            "kind": lambda index: self.operations[index].operation.kind,
            "layer": lambda index: self.operations[index].operation.layer,
            "name": lambda index: self.operations[index].operation.name,
            "operation": lambda index: index,
        }
        if by not in readers:
            raise ValueError(f"what_if_each: by must be one of {', '.join(readers)}, got {by!r}")
        return [readers[by](index) for index in range(len(self.operations))]

    def _makespan(self, times_faster: list[float]) -> float:
        inputs = [entry.operation.inputs for entry in self.operations]
        makespan = _core.makespan(
            list(self._times), inputs, self.overlap, self.full_duplex, times_faster
        )
        return makespan / 1e9
