"""Bad input gets words, and neither a device nor a stream is left changed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_cases import SAMPLES, Attention, all_results, cotangents_on, inputs_on, same_bits
from gpu_machine import in_stream, is_gpu, new_stream, wait

from aero import ops

PLAIN = {
    "attention_entropy": "mask",
    "temperature_softmax": "mask",
    "entropy_regularization": "masked rows",
    "scaled_ffn": "vector",
}
operators = pytest.mark.parametrize("operator", PLAIN)


def plain_call(operator: str, device: torch.device) -> Any:
    sample = next(s for s in SAMPLES if (s.operator, s.name) == (operator, PLAIN[operator]))
    return inputs_on(device, sample.inputs(torch.float32))


@operators
def test_tensors_of_two_devices_are_refused_by_name(operator: str, gpu: torch.device) -> None:
    inputs = plain_call(operator, gpu)
    names = list(inputs.tensors)
    other = torch.device("cpu" if is_gpu(gpu) else "meta")
    for name in names[1:]:
        mixed = dict(inputs.tensors) | {name: inputs.tensors[name].detach().to(other)}
        with pytest.raises(ValueError, match=f"{operator}: {name} must be on .*, got {other}"):
            getattr(ops, operator)(**mixed, **inputs.options)


@pytest.mark.parametrize("operator", ("attention_entropy", "temperature_softmax", "scaled_ffn"))
def test_float64_is_refused_on_a_gpu(operator: str, gpu: torch.device) -> None:
    if not is_gpu(gpu):
        pytest.skip("the CPU takes float64")
    inputs = plain_call(operator, gpu).double()
    with pytest.raises(ValueError, match=f"{operator}: .* on CUDA, got float64"):
        inputs.run()


def test_a_scheme_of_the_backward_direction_that_is_none_is_refused(
    gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_gpu(gpu):
        pytest.skip("the CPU has one scheme")
    inputs = plain_call("attention_entropy", gpu)
    results = inputs.run()
    monkeypatch.setenv("AERO_CUDA_BACKWARD", "sideways")
    with pytest.raises(ValueError, match="AERO_CUDA_BACKWARD must be heads or split, got sideways"):
        inputs.gradients(results, cotangents_on(gpu, results))


BAD: tuple[tuple[Callable[[torch.device], Any], str], ...] = (
    (lambda d: Attention(5, 5, 513).inputs(torch.float32, d), "D must be from 1 to 512, got 513"),
    (
        lambda d: Attention(5, 5, 8, heads=3, key_heads=2).inputs(torch.float32, d),
        "H must be a multiple of k's heads (2), got 3",
    ),
)


@pytest.mark.parametrize(("build", "message"), BAD, ids=["width", "heads"])
def test_what_no_kernel_takes_is_said_in_words(
    build: Callable[[torch.device], Any], message: str, device: torch.device
) -> None:
    with pytest.raises(ValueError, match=re.escape(f"attention_entropy: {message}")):
        build(device).run()


@pytest.mark.parametrize(
    "given",
    [
        {"alibi_slopes": torch.zeros(2)},
        {"bias": torch.zeros(5, 5)},
    ],
    ids=lambda given: next(iter(given)),
)
def test_what_only_the_cpu_computes_is_said_in_words(
    given: dict[str, Any], gpu: torch.device
) -> None:
    if not is_gpu(gpu):
        pytest.skip("the CPU computes it")
    q, k, v = torch.zeros(3, 1, 2, 5, 8, device=gpu)
    given = {n: x.to(gpu) if isinstance(x, torch.Tensor) else x for n, x in given.items()}
    with pytest.raises(ValueError, match="must be left out on CUDA"):
        ops.attention_entropy(q, k, v, **given)


def test_where_sequences_begin_has_to_be_on_the_cpu(gpu: torch.device) -> None:
    if not is_gpu(gpu):
        pytest.skip("the CPU is there")
    q, k, v = torch.zeros(3, 1, 2, 5, 8, device=gpu)
    starts = torch.tensor([0, 5], dtype=torch.int32, device=gpu)
    with pytest.raises(ValueError, match="cu_seqlens_q must be on the CPU"):
        ops.attention_entropy(q, k, v, cu_seqlens=starts)


@operators
def test_after_a_refusal_the_next_call_is_right(operator: str, device: torch.device) -> None:
    inputs = plain_call(operator, device)
    cotangents = cotangents_on(device, inputs.run())
    expected = all_results(inputs, cotangents)
    name = next(iter(inputs.tensors))
    with pytest.raises(ValueError, match=operator):
        getattr(ops, operator)(
            **dict(inputs.tensors) | {name: inputs.tensors[name].detach()[..., :0, :0, :0]}
            if inputs.tensors[name].dim() > 2
            else dict(inputs.tensors) | {name: inputs.tensors[name].detach()[None, :0]},
            **inputs.options,
        )
    assert same_bits(all_results(inputs, cotangents), expected)


@operators
def test_the_tensors_device_is_used_and_the_current_one_kept(
    operator: str, gpu: torch.device
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    other = torch.device("cuda", 1)
    inputs, there = plain_call(operator, gpu), plain_call(operator, other)
    cotangents = cotangents_on(gpu, inputs.run())
    expected = all_results(inputs, cotangents)
    got = all_results(there, tuple(c.to(other) for c in cotangents))
    assert torch.cuda.current_device() == 0
    assert all(x.device == other for x in got)
    assert same_bits([x.to(gpu) for x in got], expected)


@operators
def test_a_call_leaves_device_and_stream_as_they_were(operator: str, gpu: torch.device) -> None:
    stream = new_stream(gpu)
    with in_stream(stream):
        inputs = plain_call(operator, gpu)
        all_results(inputs, cotangents_on(gpu, inputs.run()))
        if is_gpu(gpu):
            assert torch.cuda.current_stream(gpu) == stream
            assert torch.cuda.current_device() == 0
    wait(gpu)
