"""A few calls of every operator, for compute-sanitizer to watch: see sanitizers.py.

    python3 tests/cuda/sanitized_calls.py cuda [few]

Tensors are made on the CPU and nothing else runs on the device but copies and the operators.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from gpu_cases import SAMPLES, Attention, cotangents_on, inputs_on

ATTENTION = (
    (Attention(130, 130, 64), torch.bfloat16),
    (Attention(128, 128, 64, batch=1), torch.float16),
    (Attention(33, 70, 40, is_causal=False, mask=True, heads=4), torch.float16),
    (Attention(70, 33, 128, layout="offset"), torch.bfloat16),
    (Attention(40, 40, 96, temperature=None), torch.float32),
    (Attention(35, 35, 256, batch=1), torch.bfloat16),
    (Attention(35, 35, 200, batch=1), torch.float32),
    (Attention(70, 130, 64, window=(33, 0), softcap=3.0, sinks=True), torch.bfloat16),
    (Attention(40, 70, 96, window=(9, 2), is_causal=False, heads=4), torch.float32),
    (Attention(70, 130, 40, dropout_p=0.2), torch.float16),
)
OTHERS = ("mask", "left padding", "masked rows", "masked means", "three dimensions", "vector")


TF32 = (Attention(70, 70, 64, batch=1), Attention(35, 35, 200, batch=1))


def calls(device: torch.device) -> list[Any]:
    """The inputs of every call."""
    others = [s for s in SAMPLES if s.name in OTHERS and s.operator != "attention_entropy"]
    return [case.inputs(dtype, device) for case, dtype in ATTENTION] + [
        inputs_on(device, sample.inputs(dtype))
        for sample in others
        for dtype in (torch.float32, torch.bfloat16)
    ]


def few(device: torch.device) -> list[Any]:
    """Two of attention and one of every other operator, for when minutes are short."""
    chosen: list[Any] = []
    for inputs in calls(device):
        known = sum(other.operator == inputs.operator for other in chosen)
        if known < 1 + (inputs.operator == "attention_entropy"):
            chosen.append(inputs)
    return chosen


def make(inputs: Any, device: torch.device) -> None:
    """One call in both directions."""
    results = inputs.run()
    inputs.gradients(results, cotangents_on(device, results))


def make_others(device: torch.device) -> None:
    """Calls by what is set around them: TF32, and the backward direction by heads."""
    torch.set_float32_matmul_precision("high")
    for case in TF32:
        make(case.inputs(torch.float32, device), device)
    torch.set_float32_matmul_precision("highest")
    # So few heads are only done whole if that is asked for.
    os.environ["AERO_CUDA_BACKWARD"] = "heads"
    for case, dtype in ATTENTION:
        make(case.inputs(dtype, device), device)


def main(chosen: str = "cuda", how_many: str = "all") -> None:
    device = torch.device(chosen)
    for inputs in few(device) if how_many == "few" else calls(device):
        make(inputs, device)
    if how_many != "few":
        make_others(device)
    if device.type == "cuda":
        torch.cuda.synchronize()
    print("sanitized calls: all done")


if __name__ == "__main__":
    main(*sys.argv[1:])
