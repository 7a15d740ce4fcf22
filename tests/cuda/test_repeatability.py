"""The same bits every time: alone, on streams beside each other, and replayed from a graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from gpu_cases import (
    SAMPLES,
    Attention,
    all_results,
    bits,
    cotangents_on,
    inputs_on,
    named,
    same_bits,
)
from gpu_machine import captured, in_stream, is_gpu, keep_busy, new_stream, peak_bytes, wait
from torch import Tensor

SAMPLE = {(s.operator, s.name): s for s in SAMPLES}
#: One sample of each operator with work for many blocks, and attention on both sides of T = 1024.
REPEATED: dict[str, Callable[[torch.device], Any]] = {
    "attention T=128": lambda d: Attention(128, 128, 64, batch=8).inputs(torch.bfloat16, d),
    "attention T=1024": lambda d: Attention(1024, 1024, 64, batch=1).inputs(torch.bfloat16, d),
    "attention T=600 by heads": lambda d: Attention(600, 600, 64, batch=8, heads=4).inputs(
        torch.bfloat16, d
    ),
    "attention T=1024 split": lambda d: Attention(1024, 1024, 64, batch=8, heads=12).inputs(
        torch.float16, d
    ),
    "attention T=1500": lambda d: Attention(1500, 1500, 64, batch=1, heads=4).inputs(
        torch.bfloat16, d
    ),
    "attention in a window": lambda d: Attention(
        300, 300, 64, window=(100, 0), softcap=5.0, sinks=True
    ).inputs(torch.bfloat16, d),
    "attention float32": lambda d: Attention(300, 300, 128, batch=2).inputs(torch.float32, d),
    "temperature_softmax": lambda d: from_sample("temperature_softmax", "model", d),
    "entropy_regularization": lambda d: from_sample("entropy_regularization", "masked rows", d),
    "scaled_ffn": lambda d: from_sample("scaled_ffn", "layer", d),
}
repeated = pytest.mark.parametrize("name", REPEATED, ids=lambda n: n.replace(" ", "_"))
samples = pytest.mark.parametrize("sample", **named(SAMPLES))


@pytest.fixture(autouse=True)
def _backward_scheme(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheme of the backward direction that a call's name ends with, whatever its size."""
    parameters = getattr(request.node, "callspec", None)
    name = parameters.params.get("name", "") if parameters else ""
    for scheme in ("heads", "split"):
        if name.endswith(scheme):
            monkeypatch.setenv("AERO_CUDA_BACKWARD", scheme)


def from_sample(operator: str, name: str, device: torch.device) -> Any:
    return inputs_on(device, SAMPLE[operator, name].inputs(torch.float32))


@repeated
def test_a_thousand_repeats_have_the_same_bits(name: str, device: torch.device) -> None:
    inputs = REPEATED[name](device)
    cotangents = cotangents_on(device, inputs.run())
    first = [bits(x).clone() for x in all_results(inputs, cotangents)]
    differs = torch.zeros((), dtype=torch.bool, device=device)
    for _ in range(1000 if is_gpu(device) else 3):
        for expected, got in zip(first, all_results(inputs, cotangents), strict=True):
            differs |= (bits(got) != expected).any()  # without waiting for the device
    assert not differs.item()


@samples
def test_bits_do_not_depend_on_what_memory_held_before(sample: Any, device: torch.device) -> None:
    inputs = inputs_on(device, sample.inputs(torch.bfloat16))
    cotangents = cotangents_on(device, inputs.run())
    runs = []
    for filling in (float("nan"), 3.0):
        # What the allocator hands out next is full of this.
        del_later = [torch.full((1 << n,), filling, device=device) for n in range(4, 20)]
        del del_later
        runs.append(all_results(inputs, cotangents))
    assert same_bits(*runs)


@repeated
def test_work_is_put_into_the_current_stream(name: str, gpu: torch.device) -> None:
    inputs = REPEATED[name](gpu)
    cotangents = cotangents_on(gpu, inputs.run())
    expected = all_results(inputs, cotangents)
    values = [x.detach().clone() for x in inputs.tensors.values()]
    stream = new_stream(gpu)
    with torch.no_grad():
        for x in inputs.tensors.values():
            x.fill_(2.0)
    wait(gpu)
    with in_stream(stream):
        keep_busy(gpu)  # meanwhile another stream would read the twos
        with torch.no_grad():
            for x, value in zip(inputs.tensors.values(), values, strict=True):
                x.copy_(value)
        got = all_results(inputs, cotangents)
    wait(gpu)
    assert same_bits(got, expected)


@repeated
def test_two_streams_do_not_disturb_each_other(name: str, gpu: torch.device) -> None:
    calls = [REPEATED[name](gpu) for _ in range(2)]
    with torch.no_grad():
        next(iter(calls[1].tensors.values())).mul_(0.5)
    cotangents = cotangents_on(gpu, calls[0].run())
    expected = [all_results(call, cotangents) for call in calls]
    streams = [new_stream(gpu) for _ in calls]
    wait(gpu)
    got: list[list[list[Tensor]]] = [[], []]
    for _ in range(20):
        for n, (call, stream) in enumerate(zip(calls, streams, strict=True)):
            with in_stream(stream):
                got[n].append(all_results(call, cotangents))
    wait(gpu)
    for n in range(2):
        assert all(same_bits(results, expected[n]) for results in got[n])


@samples
def test_a_replayed_graph_has_the_bits_of_an_eager_call(sample: Any, gpu: torch.device) -> None:
    inputs = inputs_on(gpu, sample.inputs(torch.bfloat16))
    cotangents = cotangents_on(gpu, inputs.run())
    replay = captured(gpu, lambda: all_results(inputs, cotangents))
    for factor in (0.5, 1.25):
        with torch.no_grad():
            for x in inputs.tensors.values():
                x.mul_(factor)
        assert same_bits(replay(), all_results(inputs, cotangents))


def test_memory_grows_linearly_with_the_length(gpu: torch.device) -> None:
    inputs = Attention(4096, 4096, 64, batch=1).inputs(torch.bfloat16, gpu)
    cotangents = cotangents_on(gpu, inputs.run())
    used = peak_bytes(gpu, lambda: all_results(inputs, cotangents))
    rows = 2 * 4096  # of all heads
    # out, dq, dk, dv; entropy, logsumexp, their gradients, three statistics, eight values of the
    # backward pass and the temperatures' gradient twice; twice that for what torch rounds up to.
    assert used < 2 * rows * (4 * 64 * 2 + (4 + 3 + 8 + 2) * 4) < 4096**2
