"""The one timer of all benchmarks: contenders take turns, so a busy machine slows all alike."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from aero.internals.atomic_files import write_bytes_atomically
from aero.internals.machine import processor

SAMPLE_SECONDS = 0.02

# glibc otherwise gives freed memory back to the kernel and faults it in again at the next call,
# which can double the time of either contender.
KEEP_FREED_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": "1000000000",
    "MALLOC_MMAP_THRESHOLD_": "1000000000",
}


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles of a sample."""

    median: float
    lower: float
    upper: float

    @classmethod
    def of(cls, sample: Sequence[float]) -> Quartiles:
        """Quartiles of at least two numbers."""
        lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, lower, upper)


@dataclass(frozen=True)
class Timing:
    """Times of one call in milliseconds, one per round."""

    samples_ms: tuple[float, ...]

    @property
    def quartiles_ms(self) -> Quartiles:
        return Quartiles.of(self.samples_ms)

    @property
    def median_ms(self) -> float:
        return self.quartiles_ms.median

    def ratio_to(self, other: Timing) -> Quartiles:
        """How many times longer this takes than `other`: quartiles over the rounds' own ratios."""
        pairs = zip(self.samples_ms, other.samples_ms, strict=True)
        return Quartiles.of([mine / theirs for mine, theirs in pairs])

    def __str__(self) -> str:
        q = self.quartiles_ms
        return f"{q.median:.3f} ({q.lower:.3f} .. {q.upper:.3f})"


def seconds_per_call(function: Callable[[], object], calls: int, cpu_time: bool) -> float:
    """Mean time of `calls` calls in a row."""
    clock = time.process_time if cpu_time else time.perf_counter
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def interleaved(
    contenders: Mapping[str, Callable[[], object]],
    rounds: int,
    *,
    cpu_time: bool = False,
    sample_seconds: float = SAMPLE_SECONDS,
) -> dict[str, Timing]:
    """Times every contender once per round, each sample long enough to be above the clock's noise.

    Args:
        contenders: name -> function without arguments.
        rounds: samples of each, at least 2.
        cpu_time: count this process's CPU time, not the wall clock's: with one thread the figure
            that a busy machine disturbs least.
        sample_seconds: calls are repeated until a sample takes about this long.

    Returns:
        name -> the samples of all rounds.
    """
    calls = {}
    for name, function in contenders.items():
        function()  # first call: allocation, dispatch
        once = min(seconds_per_call(function, 1, cpu_time) for _ in range(2))
        calls[name] = max(1, round(sample_seconds / once))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            samples[name].append(1e3 * seconds_per_call(function, calls[name], cpu_time))
    return {name: Timing(tuple(times)) for name, times in samples.items()}


def in_child(arguments: Sequence[str], environment: Mapping[str, str]) -> Any:
    """Runs this script again with `arguments` under `environment`; returns the JSON it prints last.

    The allocator and the instruction sets are chosen when a process starts, so each choice needs
    a process of its own.
    """
    done = subprocess.run(
        [sys.executable, sys.argv[0], *arguments],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def machine() -> str:
    """One line on the machine and the software of the numbers."""
    return (
        f"{processor()}, {torch.get_num_threads()} threads, torch {torch.__version__} "
        f"({torch.backends.cpu.get_cpu_capability()}), Python {platform.python_version()}"
    )


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that all benchmarks share: --threads, --rounds, --cpu-time, --quick, --output."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--rounds", type=int, default=21, help="samples of each contender")
    arguments.add_argument("--cpu-time", action="store_true", help="CPU time, not wall clock")
    arguments.add_argument("--quick", action="store_true", help="a part of it, for `make bench`")
    arguments.add_argument("--output", type=Path, help="also write the table to this file")
    return arguments


def publish(text: str, output: Path | None) -> None:
    """Prints the text and writes it to `output` if that is given, whole or not at all."""
    print(text)
    if output is not None:
        write_bytes_atomically(output, (text + "\n").encode())
