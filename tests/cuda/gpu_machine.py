"""What the tests ask of a GPU besides our kernels, in one place.

On a GPU every function is a line or two of torch.cuda. On the CPU each does the plain thing, so
that the tests' own code runs before it meets a GPU (`--stand-in`); that proves nothing about
streams and graphs, and without the option those tests are "not run".
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"


def wait(device: torch.device) -> None:
    """Until all work on the device is done."""
    if is_gpu(device):
        torch.cuda.synchronize(device)


def new_stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if is_gpu(device) else None


def in_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[object]:
    """Work is put into the stream inside."""
    return nullcontext() if stream is None else torch.cuda.stream(stream)


def keep_busy(device: torch.device) -> None:
    """Puts some 50 ms of work into the current stream."""
    if is_gpu(device):
        torch.cuda._sleep(100_000_000)


def captured(device: torch.device, call: Callable[[], list[Tensor]]) -> Callable[[], list[Tensor]]:
    """A function that replays a graph of the call and returns its results."""
    if not is_gpu(device):
        return call
    side = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        for _ in range(2):
            call()
    torch.cuda.current_stream(device).wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = call()

    def replay() -> list[Tensor]:
        graph.replay()
        return [x.clone() for x in results]

    return replay


def peak_bytes(device: torch.device, call: Callable[[], object]) -> int:
    """Memory that a call takes at its peak, its results included."""
    wait(device)
    if not is_gpu(device):
        call()
        return 0
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def free_bytes(device: torch.device) -> int:
    """Free memory of the device."""
    return torch.cuda.mem_get_info(device)[0] if is_gpu(device) else 0
