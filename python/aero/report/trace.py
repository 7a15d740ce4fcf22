"""A schedule in the Trace Event Format, for ui.perfetto.dev and chrome://tracing.

One process, a thread per resource, a slice per piece of work, an arrow per dependency; times are
microseconds. Rounds occupy nothing, so any number of them are under way at once: they fill as many
threads as that takes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from aero.mpc.schedule import ROUNDS, Schedule, Segment

_PROCESS = {"pid": 1}


def trace_json(schedule: Schedule) -> str:
    """A schedule in the Trace Event Format.

    One thread per resource, threads for rounds, arrows for dependencies; microseconds.
    """
    segments, resources = schedule.segments, [*schedule.busy_seconds]
    threads = _threads(segments, resources)
    slices = [
        _slice(schedule, segment, thread) for segment, thread in zip(segments, threads, strict=True)
    ]
    names = _names(resources, max(threads, default=0))
    events = [*names, *slices, *_arrows(schedule, slices)]
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


def _names(resources: list[str], threads: int) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", **_PROCESS, "name": "process_name", "args": {"name": "forward pass"}}
    for thread in range(1, max(threads, len(resources)) + 1):
        lane = thread - len(resources)
        name = resources[thread - 1] if lane < 1 else ROUNDS + (f" {lane}" if lane > 1 else "")
        about = {"ph": "M", **_PROCESS, "tid": thread}
        yield about | {"name": "thread_name", "args": {"name": name}}
        yield about | {"name": "thread_sort_index", "args": {"sort_index": thread}}


def _slice(schedule: Schedule, segment: Segment, thread: int) -> dict[str, Any]:
    operation = schedule.operations[segment.operation].operation
    where = "" if operation.layer is None else f"layer {operation.layer}: "
    return {
        "ph": "X",
        **_PROCESS,
        "tid": thread,
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


def _arrows(schedule: Schedule, slices: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Arrows from the slice that ends last of each input to the slice that starts first."""
    first: dict[int, dict[str, Any]] = {}
    last: dict[int, dict[str, Any]] = {}
    for entry in slices:
        index = entry["args"]["operation"]
        if index not in first or entry["ts"] < first[index]["ts"]:
            first[index] = entry
        if index not in last or entry["ts"] + entry["dur"] > last[index]["ts"] + last[index]["dur"]:
            last[index] = entry
    arrow = 0
    for index, scheduled in enumerate(schedule.operations):
        for source in scheduled.operation.inputs:
            if source in last and index in first:
                arrow += 1
                about = {**_PROCESS, "name": "needs", "cat": "dependency", "id": arrow}
                for ph, end in (("s", last[source]), ("f", first[index])):
                    # A flow belongs to the slice of its thread in which its time lies.
                    bound = about | {"ph": ph, "tid": end["tid"], "ts": end["ts"]}
                    yield bound if ph == "s" else bound | {"bp": "e"}
