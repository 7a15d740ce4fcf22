"""The CUDA kernels where there is no GPU: they load, and say why they cannot run."""

from __future__ import annotations

import pytest
import torch

from aero._library import cuda_obstacle

OPERATORS = [
    "attention_entropy",
    "attention_entropy_backward",
    "temperature_softmax",
    "temperature_softmax_backward",
    "entropy_regularization",
    "entropy_regularization_backward",
    "scaled_ffn",
    "scaled_ffn_backward",
]


def has_kernel(operator: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"aero::{operator}", "CUDA")


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_kernels_are_registered_where_they_were_built(operator: str) -> None:
    was_built = "without CUDA kernels" not in cuda_obstacle()
    assert has_kernel(operator) == was_built


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
def test_what_keeps_the_kernels_from_running_is_said_in_words() -> None:
    obstacle = cuda_obstacle()
    assert "without CUDA kernels" in obstacle or "CUDA" in obstacle
