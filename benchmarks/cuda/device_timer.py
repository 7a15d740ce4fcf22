"""Times of calls on the device: contenders take turns, and their work is queued back to back."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "cuda"))

from gpu_machine import is_gpu, wait


def one_sample(device: torch.device, call: Callable[[], object], calls: int) -> float:
    """Mean milliseconds of calls that follow each other in one stream."""
    if not is_gpu(device):
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        return 1e3 * (time.perf_counter() - begun) / calls
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(calls):
        call()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / calls


def taking_turns(
    device: torch.device,
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 9,
    sample_ms: float = 30.0,
) -> dict[str, list[float]]:
    """Milliseconds of every contender in every round.

    Args:
        device: where the calls do their work.
        calls: name -> function without arguments.
        rounds: samples of each.
        sample_ms: calls are repeated until a sample takes about this long, at most 500 times.
    """
    repeats = {}
    for name, call in calls.items():
        for _ in range(3):  # first calls: allocation, dispatch, clocks
            call()
        wait(device)
        once = min(one_sample(device, call, 3) for _ in range(2))
        repeats[name] = max(1, min(500, round(sample_ms / max(once, 1e-6))))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            samples[name].append(one_sample(device, call, repeats[name]))
    return samples


def ceilings(device: torch.device, size: int) -> dict[str, float]:
    """What the device does at most: copying, and a square bfloat16 product of random numbers.

    Args:
        device: to be measured.
        size: rows and columns of the product; a copy moves 8 times as many elements as it has.

    Returns:
        bytes per second, read and written together, and operations per second.
    """
    a, b = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    source = torch.randn(8 * size * size, device=device)
    target = torch.empty_like(source)
    taken = taking_turns(
        device,
        {"product": lambda: a @ b, "copy": lambda: target.copy_(source)},
        rounds=7,
        sample_ms=40,
    )
    return {
        "bytes_per_second": 2e3 * source.nbytes / min(taken["copy"]),
        "flops_per_second": 2e3 * size**3 / min(taken["product"]),
    }
