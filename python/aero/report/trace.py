"""A schedule in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

One process, a thread per resource, a slice per piece of work, an arrow per dependency; times are
microseconds. Rounds occupy nothing, so any number of them are under way at once: they fill as many
threads as that takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aero.mpc.schedule import ROUNDS, Schedule, Segment

Event = dict[str, object]

_PROCESS: Event = {"pid": 1}


class _Slice(NamedTuple):
    segment: Segment
    thread: int


def trace_json(schedule: Schedule) -> str:
    """A schedule in the Trace Event Format.

    One thread per resource, threads for rounds, arrows for dependencies; microseconds.
    """
    segments, resources = schedule.segments, [*schedule.busy_seconds]
    threads = _threads(segments, resources)
    slices = [_Slice(*one) for one in zip(segments, threads, strict=True)]
    events = [
        *_names(resources, max(threads, default=0)),
        *(_event(schedule, one) for one in slices),
        *_arrows(schedule, slices),
    ]
    return json.dumps({"displayTimeUnit": "ms", "traceEvents": events})


def _threads(segments: Sequence[Segment], resources: list[str]) -> list[int]:
    """The thread of every segment: its resource's, or the first one free of rounds."""
    free_from: list[int] = []
    threads = [0] * len(segments)
    for index in sorted(range(len(segments)), key=lambda index: segments[index].start):
        one = segments[index]
        if one.resource != ROUNDS:
            threads[index] = 1 + resources.index(one.resource)
            continue
        lane = next((i for i, free in enumerate(free_from) if free <= one.start), len(free_from))
        free_from[lane:] = [one.finish, *free_from[lane + 1 :]]
        threads[index] = 1 + len(resources) + lane
    return threads


def _names(resources: list[str], threads: int) -> Iterator[Event]:
    yield {"ph": "M", **_PROCESS, "name": "process_name", "args": {"name": "forward pass"}}
    for thread in range(1, max(threads, len(resources)) + 1):
        lane = thread - len(resources)
        name = resources[thread - 1] if lane < 1 else ROUNDS + (f" {lane}" if lane > 1 else "")
        about = {"ph": "M", **_PROCESS, "tid": thread}
        yield about | {"name": "thread_name", "args": {"name": name}}
        yield about | {"name": "thread_sort_index", "args": {"sort_index": thread}}


def _event(schedule: Schedule, one: _Slice) -> Event:
    segment = one.segment
    operation = schedule.operations[segment.operation].operation
    where = "" if operation.layer is None else f"layer {operation.layer}: "
    return {
        "ph": "X",
        **_PROCESS,
        "tid": one.thread,
        "name": where + operation.name,
        "cat": operation.kind,
        "ts": segment.start / 1e3,
        "dur": (segment.finish - segment.start) / 1e3,
        "args": {
            "operation": segment.operation,
            "shape": operation.shape,
            "bytes": operation.cost.comm_bytes,
            "rounds": operation.cost.rounds,
            "on critical path": segment.operation in schedule.critical_path,
        },
    }


def _arrows(schedule: Schedule, slices: Sequence[_Slice]) -> Iterator[Event]:
    """Arrows from the slice that ends last of each input to the slice that starts first."""
    first: dict[int, _Slice] = {}
    last: dict[int, _Slice] = {}
    for one in slices:
        index = one.segment.operation
        if one.segment.start < first.setdefault(index, one).segment.start:
            first[index] = one
        if one.segment.finish > last.setdefault(index, one).segment.finish:
            last[index] = one
    arrow = 0
    for index, scheduled in enumerate(schedule.operations):
        for source in scheduled.operation.inputs:
            if source in last and index in first:
                arrow += 1
                about: Event = {**_PROCESS, "name": "needs", "cat": "dependency", "id": arrow}
                for ph, end in (("s", last[source]), ("f", first[index])):
                    # A flow belongs to the slice of its thread in which its time lies.
                    bound = about | {"ph": ph, "tid": end.thread, "ts": end.segment.start / 1e3}
                    yield bound if ph == "s" else bound | {"bp": "e"}
