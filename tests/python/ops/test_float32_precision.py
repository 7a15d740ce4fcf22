"""torch's switch for TF32: read at every call, and without a meaning on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from aero._library import library_path
from aero.ops import attention_entropy


def allows_tf32() -> bool:
    """Whether CUDA kernels may round operands of float32 products to TF32, as torch says now."""
    return bool(ctypes.CDLL(str(library_path())).aero_allows_tf32())


@pytest.fixture(autouse=True)
def _switch_is_put_back() -> Iterator[None]:
    before = torch.backends.fp32_precision
    yield
    torch.backends.fp32_precision = before
    torch.set_float32_matmul_precision("highest")


def by_legacy_flag(allowed: bool) -> None:
    torch.backends.cuda.matmul.allow_tf32 = allowed


def by_matmul_precision(allowed: bool) -> None:
    torch.set_float32_matmul_precision("high" if allowed else "highest")


def by_matmul_backend(allowed: bool) -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32" if allowed else "ieee"


SWITCHES = (by_legacy_flag, by_matmul_precision, by_matmul_backend)


@pytest.mark.parametrize("switch", SWITCHES, ids=lambda f: f.__name__)
def test_every_way_to_allow_tf32_is_seen(switch: Callable[[bool], None]) -> None:
    for allowed in (True, False, True):
        switch(allowed)
        assert allows_tf32() == allowed


def test_medium_precision_allows_tf32_too() -> None:
    torch.set_float32_matmul_precision("medium")
    assert allows_tf32()


# torch itself refuses to read its old switch after this.
def test_old_and_new_switches_may_be_mixed() -> None:
    torch.set_float32_matmul_precision("highest")
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    assert allows_tf32()
    torch.backends.cuda.matmul.fp32_precision = "ieee"
    assert not allows_tf32()


def drawn() -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(4)
    return tuple(torch.randn(1, 2, 9, 8, generator=generator).requires_grad_() for _ in range(3))


def results_of(function: Callable[..., Any], inputs: tuple[Tensor, ...]) -> list[Tensor]:
    out, entropy, _ = function(*inputs)
    return [out, entropy, *torch.autograd.grad(out.sum() + entropy.sum(), inputs)]


def test_on_the_cpu_attention_is_exact_eager_and_compiled() -> None:
    inputs = drawn()
    graph = torch.compile(attention_entropy, fullgraph=True, backend="aot_eager")
    exact = results_of(attention_entropy, inputs)
    for precision in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(precision)
        for function in (attention_entropy, graph):
            for a, b in zip(results_of(function, inputs), exact, strict=True):
                assert torch.equal(a, b)
