"""entropy_regularization against the same penalty in plain PyTorch.

python benchmarks/entropy_regularization.py [--quick] [--output results/NAME.md]
"""

from __future__ import annotations

import itertools

import torch
from operator_report import Case, Contenders, run
from torch import Tensor

from aero.ops import entropy_regularization

SIZES = ((6, 16, 4, 128), (12, 32, 12, 128), (12, 8, 12, 512))  # L, B, H, T
REDUCTIONS = ("position_sum", "query_mean")
NOTES = """\
The penalty on L entropies [B, H, T] as attention leaves them, with the gradients of entropies and
thresholds. "vectorised" is plain PyTorch over one stacked tensor, "per head" the loop of the
paper's listing over layers and heads."""


def penalty(entropies: Tensor, thresholds: Tensor, largest: float, reduction: str) -> Tensor:
    """The mean over everything in front of [..., H, B, T] entropies and [..., H] thresholds."""
    if reduction == "query_mean":
        entropies = entropies.mean(dim=-1, keepdim=True)
    deviation = entropies - thresholds[..., None, None] * largest
    penalties = torch.where(deviation.abs() > 0.1 * largest, deviation**2, 0)
    heads = penalties.sum(dim=(-2, -1))
    return heads.mean() / (entropies.shape[-2] if reduction == "query_mean" else 1)


def contenders(layers: int, batch: int, heads: int, length: int, reduction: str) -> Contenders:
    generator = torch.Generator().manual_seed(0)
    largest = torch.tensor(float(length)).log().item()
    entropies = [
        (largest * torch.rand(batch, heads, length, generator=generator)).requires_grad_()
        for _ in range(layers)
    ]
    thresholds = torch.full((layers, heads), 0.5, requires_grad=True)
    leaves = (*entropies, thresholds)

    def per_head() -> Tensor:
        total = torch.zeros(())
        for layer, threshold in zip(entropies, thresholds, strict=True):
            for head in range(heads):
                total = total + penalty(layer[:, head], threshold[head], largest, reduction)
        return total / (layers * heads)

    def vectorised() -> Tensor:
        stacked = torch.stack(entropies).transpose(1, 2)
        return penalty(stacked, thresholds, largest, reduction)

    def ours() -> Tensor:
        return entropy_regularization(entropies, thresholds, reduction=reduction)  # type: ignore[arg-type]

    return {
        "ours": lambda: torch.autograd.grad(ours(), leaves),
        "vectorised": lambda: torch.autograd.grad(vectorised(), leaves),
        "per head": lambda: torch.autograd.grad(per_head(), leaves),
    }


def case(reduction: str, size: tuple[int, int, int, int]) -> Case:
    layers, batch, heads, length = size
    return Case(
        f"{reduction} L{layers} B{batch} H{heads} T{length}",
        lambda: contenders(*size, reduction),
        3 * 4 * layers * batch * heads * length,  # read forward, read and written backward
    )


CASES = [case(reduction, size) for reduction, size in itertools.product(REDUCTIONS, SIZES)]

if __name__ == "__main__":
    run(
        "entropy_regularization against plain PyTorch, forward and backward",
        NOTES,
        "entropy_regularization.py",
        CASES,
    )
