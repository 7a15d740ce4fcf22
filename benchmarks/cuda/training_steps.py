"""A training step of GPT-2 small with the entropy penalty: ours against the paper's listing.

Networks and listing are those of ../training_step.py: forward, backward, clipping, fused AdamW and
zero_grad under bfloat16 autocast. "sdpa" is Hugging Face's GPT-2 without entropy or penalty.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from gpu_run import ROOT
from torch import nn

sys.path.insert(0, str(ROOT / "benchmarks"))
sys.path.insert(0, str(Path(ROOT, "tests", "cuda")))

from device_timer import is_gpu, one_sample, wait

if TYPE_CHECKING:
    from training_step import Case

STEPS = ("ours", "listing", "sdpa")
GPT2 = ("gpt2", 32, 512, "bfloat16 autocast", 1)
MINI = ("mini", 1, 16, "bfloat16 autocast", 1)
WARM_UP, TIMED = 3, 7


def step_of(case: Case, name: str, device: torch.device) -> Callable[[], None]:
    """One optimizer step of a network on the device."""
    from training_step import WEIGHT, Listing, model_of  # imports transformers: seconds

    model = model_of(case, name).to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=is_gpu(device))
    vocabulary = case.config.spec.vocab_size
    tokens = torch.randint(vocabulary, (case.batch, case.length), device=device)
    listings = [module for module in model.modules() if isinstance(module, Listing)]

    def step() -> None:
        # The listing makes its masks and sums on the default device.
        with device if is_gpu(device) else nullcontext():
            with torch.autocast(device.type, torch.bfloat16):
                loss = model(tokens, labels=tokens).loss
            for listing in listings:
                loss = loss + WEIGHT * listing.penalty() / len(listings)
            loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def training_step(device: torch.device, name: str, is_tiny: bool) -> dict[str, Any]:
    """Median milliseconds of a step, its peak memory and what of that stays between steps."""
    from training_step import Case

    case = Case(*(MINI if is_tiny else GPT2))
    torch.manual_seed(0)
    step = step_of(case, name, device)
    for _ in range(1 if is_tiny else WARM_UP):
        step()
    wait(device)
    memory = {}
    if is_gpu(device):
        resting = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        step()
        wait(device)
        memory = {"resting": resting, "peak": torch.cuda.max_memory_allocated(device)}
    times = [one_sample(device, step, 1) for _ in range(2 if is_tiny else TIMED)]
    return {
        "batch": case.batch,
        "length": case.length,
        "ms": times,
        "median_ms": statistics.median(times),
        **memory,
    }
