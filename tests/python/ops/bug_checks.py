"""What holds a fault that attention had elsewhere, and how our operator is judged at its inputs.

Each fault comes with our operator as it would be if it had the same fault, which the check must
refuse.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import oracle

Results = tuple[Tensor, Tensor, Tensor]
Attend = Callable[..., Results]


@dataclass(frozen=True)
class Bug:
    """A fault of another library.

    Attributes:
        thread: "owner/name#number" of a GitHub repository.
        fault: what went wrong there.
        check: raises AssertionError where the operator that it gets has the fault.
        faulty: our operator with it.
    """

    thread: str
    fault: str
    check: Callable[[Attend], None]
    faulty: Attend


BUGS: list[Bug] = []


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(
    queries: int, keys: int, heads: int = 2, groups: int = 2, width: int = 8
) -> dict[str, Tensor]:
    shapes = {"q": (heads, queries), "k": (groups, keys), "v": (groups, keys)}
    return {
        name: draw(2, *shape, width, seed=seed) for seed, (name, shape) in enumerate(shapes.items())
    }


def compare(
    attend: Attend,
    tensors: dict[str, Tensor],
    *,
    learned: tuple[str, ...] | None = None,
    douts: tuple[Tensor | None, ...] | None = None,
    tolerance: float = 3e-5,
    **options: Any,
) -> None:
    """Results and gradients beside those of the tests' oracle in float64."""
    learned = tuple(tensors) if learned is None else learned
    leaves = {n: x.detach().requires_grad_(n in learned) for n, x in tensors.items()}
    results = attend(**leaves, **options)
    assert any(x.requires_grad for x in results), "no gradient"
    cotangents = [draw(*x.shape, seed=7 + n) for n, x in enumerate(results)]
    cotangents[2] = torch.where(results[2] == -math.inf, 0, cotangents[2])
    cotangents = [c if d is None else d for c, d in zip(cotangents, douts or [None] * 3)]  # noqa: B905
    found = torch.autograd.grad(
        results, [leaves[n] for n in learned], cotangents, allow_unused=True, materialize_grads=True
    )
    exact, gradients = oracle.run("attention_entropy", tensors, options, cotangents)
    pairs = [*zip(results, exact, strict=True)]
    pairs += [(x, gradients[n]) for n, x in zip(learned, found, strict=True)]
    for got, wanted in pairs:
        size = float(torch.where(wanted.isfinite(), wanted, 0).detach().abs().amax())
        torch.testing.assert_close(
            got.double(), wanted, rtol=0, atol=tolerance * (1 + size), equal_nan=True
        )


def bug(thread: str, fault: str, check: Callable[[Attend], None]) -> Callable[[Attend], Attend]:
    """Adds a fault whose `faulty` is the decorated function."""

    def add(faulty: Attend) -> Attend:
        BUGS.append(Bug(thread, fault, check, faulty))
        return faulty

    return add


def beside_oracle(tensors: dict[str, Tensor], **options: Any) -> Callable[[Attend], None]:
    return lambda attend: compare(attend, tensors, **options)


def with_gradient(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """The same tensor, whose gradient is changed on its way back."""
    x = x.clone() if x.is_contiguous() else x * 1
    if x.requires_grad:
        x.register_hook(change)
    return x


def as_contiguous(x: Tensor) -> Tensor:
    """The numbers that a kernel finds that takes a tensor for contiguous."""
    last = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True))
    flat = x.as_strided((last + 1,), (1,))
    return flat[torch.arange(x.numel()) % (last + 1)].view(x.shape)
