"""Products of float32 follow torch's switch for TF32, in every direction and when compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from gpu_cases import (
    SAMPLES,
    Attention,
    all_results,
    cotangents_on,
    inputs_on,
    relative_error,
    round_to_tf32,
    same_bits,
)
from gpu_machine import is_gpu
from torch import Tensor

from aero.ops import attention_entropy

WIDTHS = (32, 64, 96, 128, 256)


@pytest.fixture
def tensor_cores(gpu: torch.device) -> Iterator[torch.device]:
    """A device that has TF32; torch's switch is as it was afterwards."""
    if not is_gpu(gpu):
        pytest.skip("the CPU has no TF32")
    yield gpu
    torch.set_float32_matmul_precision("highest")


def results_with(precision: str, inputs: Any, cotangents: tuple[Tensor, ...]) -> list[Tensor]:
    torch.set_float32_matmul_precision(precision)
    return all_results(inputs, cotangents)


@pytest.mark.parametrize("head_dim", WIDTHS)
def test_tf32_sees_its_digits_of_every_operand_and_exact_sees_all(
    head_dim: int, tensor_cores: torch.device
) -> None:
    inputs = Attention(150, 150, head_dim).inputs(torch.float32, tensor_cores)
    dout, *others = cotangents_on(tensor_cores, inputs.run())
    cotangents = (round_to_tf32(dout), *others)  # as it is it is in dO . O alone
    before = {p: results_with(p, inputs, cotangents) for p in ("highest", "high", "medium")}
    for name in ("q", "k", "v"):
        round_to_tf32(inputs.tensors[name])
    after = {p: results_with(p, inputs, cotangents) for p in before}
    assert same_bits(before["high"], after["high"])
    assert same_bits(before["medium"], before["high"])
    for exact, rounded in zip(before["highest"], after["highest"], strict=True):
        assert 0 < relative_error(exact, rounded) < 0.1


def test_scaled_ffn_rounds_where_torch_does(tensor_cores: torch.device) -> None:
    sample = next(s for s in SAMPLES if (s.operator, s.name) == ("scaled_ffn", "layer"))
    inputs = inputs_on(tensor_cores, sample.inputs(torch.float32))
    cotangents = cotangents_on(tensor_cores, inputs.run())
    exact, rounded = (results_with(p, inputs, cotangents) for p in ("highest", "high"))
    for name, a, b in zip(("y", "dx", "dweight"), exact, rounded, strict=False):
        assert 1e-6 < relative_error(b, a) < 2**-9, name


def test_a_compiled_call_follows_the_switch(tensor_cores: torch.device) -> None:
    inputs = Attention(130, 130, 64).inputs(torch.float32, tensor_cores)
    q, k, v, temperature = inputs.tensors.values()

    def function() -> Tensor:
        out, entropy, _ = attention_entropy(q, k, v, temperature=temperature, is_causal=True)
        return torch.cat([out.flatten(), entropy.flatten()])

    graph = torch.compile(function, fullgraph=True)
    seen = []
    for precision in ("highest", "high", "highest"):
        torch.set_float32_matmul_precision(precision)
        seen.append(graph())
        assert torch.equal(seen[-1], function())
    assert torch.equal(seen[0], seen[2])
    assert not torch.equal(seen[0], seen[1])
