"""scaled_ffn against the same layer composed of torch's matrix products.

python benchmarks/scaled_ffn.py [--quick] [--output results/NAME.md]
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from operator_report import Case, Contenders, run
from torch import Tensor

from aero.nn.linear import linear
from aero.ops import scaled_ffn

SIZES = ((2048, 128), (512, 768), (2048, 768))  # M, C
NOTES = """\
`y = beta * x + (x W + b) / alpha` on M rows of width C, with the gradients of all five tensors.
"F.linear", "addmm" and "oneDNN linear" (`aero.nn.linear`, for float32) compose it of torch's
operators around one product, and differ in its library. "product" is the fastest product alone.
The difference between ours and it is the price of everything else."""


def contenders(rows: int, width: int, dtype: torch.dtype, back: bool) -> Contenders:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(rows, width, generator=generator).to(dtype) for _ in range(2))
    weight = (torch.randn(width, width, generator=generator) / width**0.5).to(dtype)
    bias = torch.randn(width, generator=generator).to(dtype)
    alpha, beta = torch.tensor([1.5]), torch.tensor([0.7])
    leaves = (x, weight, bias, alpha, beta)
    for leaf in leaves:
        leaf.requires_grad_(back)

    def composed(product: Callable[[], Tensor]) -> Tensor:
        return (beta * x + product() / alpha).to(dtype)

    def call(function: Callable[[], Tensor], used: tuple[Tensor, ...]) -> Callable[[], object]:
        return (lambda: torch.autograd.grad(function(), used, dy)) if back else function

    return {
        "ours": call(lambda: scaled_ffn(x, weight, bias, alpha=alpha, beta=beta), leaves),
        "F.linear": call(lambda: composed(lambda: F.linear(x, weight.t(), bias)), leaves),
        "addmm": call(lambda: composed(lambda: torch.addmm(bias, x, weight)), leaves),
        "oneDNN linear": call(lambda: composed(lambda: linear(x, weight.t(), bias)), leaves),
        "product": call(lambda: linear(x, weight.t(), bias), leaves[:3]),
    }


def case(dtype: torch.dtype, back: bool, size: tuple[int, int]) -> Case:
    rows, width = size
    direction = "forward + backward" if back else "forward"
    # x, W, y; then dy, x, W, dx, dW.
    elements = (2 * rows * width + width**2) + back * (3 * rows * width + 2 * width**2)
    return Case(
        f"{str(dtype)[6:]} M{rows} C{width} {direction}",
        lambda: contenders(rows, width, dtype, back),
        elements * dtype.itemsize,
    )


CASES = [
    case(dtype, back, size)
    for dtype, back, size in itertools.product(
        (torch.float32, torch.bfloat16), (False, True), SIZES
    )
]

if __name__ == "__main__":
    run("scaled_ffn against torch's products", NOTES, "scaled_ffn.py", CASES)
