"""The one timer of all benchmarks: contenders take turns, so a busy machine slows all alike."""

from __future__ import annotations

import argparse
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

SAMPLE_SECONDS = 0.02


@dataclass(frozen=True)
class Timing:
    """Median and quartiles of the time of one call, in milliseconds."""

    median_ms: float
    lower_ms: float
    upper_ms: float

    def __str__(self) -> str:
        return f"{self.median_ms:.3f} ({self.lower_ms:.3f} .. {self.upper_ms:.3f})"


def seconds_per_call(function: Callable[[], object], calls: int, cpu_time: bool) -> float:
    """Mean time of `calls` calls in a row."""
    clock = time.process_time if cpu_time else time.perf_counter
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


def interleaved(
    contenders: Mapping[str, Callable[[], object]], rounds: int, *, cpu_time: bool = False
) -> dict[str, Timing]:
    """Times every contender once per round, each sample long enough to be above the clock's noise.

    Args:
        contenders: name -> function without arguments.
        rounds: samples of each, at least 2.
        cpu_time: count this process's CPU time, not the wall clock's: with one thread the figure
            that a busy machine disturbs least.

    Returns:
        name -> median and quartiles over the rounds.
    """
    calls = {}
    for name, function in contenders.items():
        function()  # first call: allocation, dispatch
        once = min(seconds_per_call(function, 1, cpu_time) for _ in range(3))
        calls[name] = max(1, round(SAMPLE_SECONDS / once))
    samples: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, function in contenders.items():
            samples[name].append(1e3 * seconds_per_call(function, calls[name], cpu_time))
    timings = {}
    for name, times in samples.items():
        lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
        timings[name] = Timing(median, lower, upper)
    return timings


def machine() -> str:
    """One line on what the numbers were measured with."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        model = names[0].partition(":")[2].strip() if names else model
    return (
        f"{model}, {torch.get_num_threads()} threads, torch {torch.__version__} "
        f"({torch.backends.cpu.get_cpu_capability()}), Python {platform.python_version()}"
    )


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def parser(description: str) -> argparse.ArgumentParser:
    """Arguments that all benchmarks share: --threads, --rounds, --cpu-time, --output."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments.add_argument("--rounds", type=int, default=21, help="samples of each contender")
    arguments.add_argument("--cpu-time", action="store_true", help="CPU time, not wall clock")
    arguments.add_argument("--output", type=Path, help="also write the table to this file")
    return arguments


def publish(text: str, output: Path | None) -> None:
    """Prints the text and writes it to `output` if that is given."""
    print(text)
    if output is not None:
        output.write_text(text + "\n", encoding="utf-8")
