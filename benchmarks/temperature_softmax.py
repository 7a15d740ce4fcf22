"""temperature_softmax against torch.softmax, alone and with separate temperature and entropy.

python benchmarks/temperature_softmax.py [--quick] [--output results/NAME.md]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from operator_report import Case, Contenders, run
from torch import Tensor

from aero.ops import temperature_softmax

SIZES = ((8, 12, 128), (4, 12, 512), (2, 12, 1024))  # B, H, T
NOTES = """\
Scores [B, H, T, T]. Ours returns probabilities and entropy, with a temperature per head and
position, and gradients of both. "softmax" is `torch.softmax` alone, without temperature and
entropy. "separate" divides by the temperature, calls it, and computes the entropy from the
probabilities. "ours, causal" skips hidden keys but writes their zeros. The others get no mask."""


def contenders(batch: int, heads: int, length: int, dtype: torch.dtype, back: bool) -> Contenders:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, heads, length, length)
    scores, dprobabilities = (torch.randn(shape, generator=generator).to(dtype) for _ in range(2))
    temperature = 0.5 + torch.rand(heads, length, generator=generator)
    dentropy = torch.randn(shape[:3], generator=generator)
    scores.requires_grad_(back)
    temperature.requires_grad_(back)

    def ours(is_causal: bool) -> tuple[Tensor, Tensor]:
        return temperature_softmax(scores, temperature=temperature, is_causal=is_causal)[:2]

    def separate() -> tuple[Tensor, Tensor]:
        probabilities = torch.softmax(scores / temperature[..., None].to(dtype), dim=-1)
        return probabilities, -(probabilities * torch.log(probabilities + 1e-9)).sum(dim=-1)

    def call(function: Callable[[], tuple[Tensor, ...]]) -> Callable[[], object]:
        def with_backward() -> object:
            results = function()
            used = (scores, temperature)[: len(results)]
            given = zip(results, (dprobabilities, dentropy), strict=False)
            return torch.autograd.grad(results, used, [g.to(r.dtype) for r, g in given])

        return with_backward if back else function

    return {
        "ours": call(lambda: ours(False)),
        "ours, causal": call(lambda: ours(True)),
        "softmax": call(lambda: (torch.softmax(scores, dim=-1),)),
        "separate": call(separate),
    }


def case(dtype: torch.dtype, back: bool, size: tuple[int, int, int]) -> Case:
    batch, heads, length = size
    elements = batch * heads * length * length
    direction = "forward + backward" if back else "forward"
    name = f"{str(dtype)[6:]} B{batch} H{heads} T{length} {direction}"
    return Case(
        name,
        lambda: contenders(batch, heads, length, dtype, back),
        (5 if back else 2) * elements * dtype.itemsize,
    )


CASES = [
    case(dtype, back, size)
    for dtype, back, size in itertools.product(
        (torch.float32, torch.bfloat16), (False, True), SIZES
    )
]

if __name__ == "__main__":
    run("temperature_softmax against torch.softmax", NOTES, "temperature_softmax.py", CASES)
