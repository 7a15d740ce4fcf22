"""Results and gradients on the device against float64 on the same inputs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from gpu_cases import (
    ELEMENTS,
    SAMPLES,
    Attention,
    Draw,
    Inputs,
    compared,
    cotangents_on,
    inputs_on,
    named,
    on,
    relative_error,
    truncation,
    unit,
    with_digits_of_products,
)
from gpu_machine import free_bytes, is_gpu
from torch import Tensor

from aero.ops import attention_entropy

dtypes = pytest.mark.parametrize("dtype", ELEMENTS, indirect=True)
halves = pytest.mark.parametrize("dtype", ("bfloat16", "float16"), indirect=True)
samples = pytest.mark.parametrize("sample", **named(SAMPLES))

#: Around the widths and lengths where a kernel's tiles end.
WIDTHS = (64, 1, 8, 31, 32, 40, 72, 96, 128, 200, 256)
LENGTHS = ((128, 128), (1, 129), (65, 65), (129, 129), (5, 300), (257, 257), (300, 5))
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"is_causal": False, "temperature": "H"},
    {"mask": True, "layout": "BHTD", "temperature": "BHT"},
    {"heads": 4, "temperature": None},
    {"layout": "offset"},
    {"layout": "sliced", "is_causal": False, "mask": True},
    {"window": (40, 3), "is_causal": False},
    {"window": (70, None), "softcap": 2.0, "sinks": True, "heads": 4, "temperature": "BHT"},
)
CASES = [
    Attention(*length, width, **OPTIONS[(i + j) % len(OPTIONS)])
    for i, width in enumerate(WIDTHS)
    for j, length in enumerate(LENGTHS)
] + [
    Attention(1024, 1024, 64, batch=1),
    Attention(1031, 1031, 64, batch=1, temperature="BHT"),
    Attention(2048, 2048, 128, batch=1, heads=4),
    Attention(2048, 2048, 128, batch=1, heads=4, window=(256, 0)),
    Attention(1031, 1031, 64, batch=1, softcap=5.0, sinks=True),
]


@samples
@dtypes
def test_every_operator_is_at_most_twice_as_wrong_as_plain_torch(
    sample: Any, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = inputs_on(device, sample.inputs(dtype))
    cotangent = cotangents_on(device, inputs.run())[0]
    for pair in compared(inputs, cotangent):
        pair.check(truncation(inputs))


@samples
@dtypes
def test_entropies_and_gradients_of_single_numbers_keep_their_digits(
    sample: Any, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = inputs_on(device, sample.inputs(dtype))
    exact = inputs.double()
    native, oracle = inputs.run(), exact.run("reference")
    cotangents = cotangents_on(device, native)
    allowed = 1e-5 if unit(dtype) < 1e-4 else 1e-4
    for got, want in zip(native[1:], oracle[1:], strict=True):
        assert relative_error(got, want) <= allowed
    gradients = inputs.gradients(native, cotangents)
    expected = exact.gradients(oracle, cotangents)
    if "temperature" in gradients:
        assert relative_error(gradients["temperature"], expected["temperature"]) <= allowed
    if "sinks" in gradients:  # out as it was rounded is in it
        error = relative_error(gradients["sinks"], expected["sinks"])
        assert error <= max(4 * unit(dtype), 1e-5)
    for name in gradients.keys() & {"alpha", "beta"}:
        # A sum over dy times the result: a rounding of each of its terms.
        terms = cotangents[0].double().norm() * oracle[0].norm()
        allowed = 8 * unit(dtype) * terms + 1e-6
        assert (gradients[name] - expected[name]).abs().max() <= allowed, name


@pytest.mark.parametrize("case", [c for c in CASES if c.softcap is None], ids=str)
@dtypes
def test_the_largest_score_is_found_with_its_key_and_gradient(
    case: Attention, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = case.inputs(dtype, device)
    t = inputs.tensors
    found = attention_entropy(**t, **inputs.options, return_max_logits=True)
    exact = inputs.double()
    want = attention_entropy(
        **exact.tensors, **exact.options, return_max_logits=True, backend="reference"
    )
    largest, key = found[3:]
    seen = want[4] >= 0
    assert torch.equal(key >= 0, seen)
    allowed = (1e-5 if unit(dtype) < 1e-4 else 1e-4) + truncation(inputs)
    assert relative_error(largest[seen], want[3][seen]) <= allowed
    # Where scores are alike to rounding either key may be named; the gradient goes to that one.
    cotangent = cotangents_on(device, (largest,))[0]
    of_q, of_k = torch.autograd.grad(largest, (t["q"], t["k"]), cotangent)
    q, k = exact.tensors["q"].detach(), exact.tensors["k"].detach()
    of_score = torch.where(seen, cotangent.double(), 0) / q.shape[-1] ** 0.5
    if "temperature" in t:
        temperature = exact.tensors["temperature"].detach()
        of_score = of_score / (temperature[:, None] if temperature.dim() == 1 else temperature)
    weights = torch.zeros(*q.shape[:3], k.shape[2], dtype=q.dtype, device=device)
    weights.scatter_(3, key.clamp(min=0)[..., None], of_score[..., None])
    shared = k.repeat_interleave(case.heads // case.key_heads, 1)
    parts = (weights.mT @ q).view(case.batch, case.key_heads, -1, *k.shape[2:])
    assert relative_error(of_q, weights @ shared) <= 4 * unit(dtype) + allowed
    assert relative_error(of_k, parts.sum(2)) <= 4 * unit(dtype) + allowed


@pytest.mark.parametrize("case", CASES, ids=str)
@dtypes
def test_attention_of_awkward_sizes_is_at_most_twice_as_wrong_as_plain_torch(
    case: Attention, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = case.inputs(dtype, device)
    for pair in compared(inputs, cotangents_on(device, inputs.run())[0]):
        pair.check(truncation(inputs))


@pytest.mark.parametrize("width", (40, 128, 200))
@dtypes
def test_dropout_drops_what_the_reference_drops_in_both_directions(
    width: int, dtype: torch.dtype, device: torch.device
) -> None:
    case = Attention(70, 150, width, heads=4, window=(100, 0), sinks=True, dropout_p=0.3)
    inputs = case.inputs(dtype, device)
    exact = inputs.double()

    def run(one: Any, *backend: str) -> tuple[Tensor, ...]:
        torch.manual_seed(11)  # of which the kernels and the reference draw the same seeds
        results: tuple[Tensor, ...] = one.run(*backend)
        return results

    found, expected = run(inputs), run(exact, "reference")
    allowed = 8 * unit(dtype) + truncation(inputs)
    assert relative_error(found[0], expected[0]) <= allowed
    for got, want in zip(
        found[1:], run(replace(inputs, options=_undropped(inputs)))[1:], strict=True
    ):
        torch.testing.assert_close(got, want)  # entropy and logsumexp are those of whole rows
    cotangents = cotangents_on(device, found)
    gradients, wanted = inputs.gradients(found, cotangents), exact.gradients(expected, cotangents)
    for name, gradient in gradients.items():
        assert relative_error(gradient, wanted[name]) <= allowed, name


def _undropped(inputs: Any) -> dict[str, Any]:
    return {name: value for name, value in inputs.options.items() if name != "dropout_p"}


@dtypes
def test_packed_sequences_are_calls_of_their_own(dtype: torch.dtype, device: torch.device) -> None:
    case = Attention(200, 260, 40, batch=1, heads=4, window=(50, 0), softcap=3.0, sinks=True)
    inputs = case.inputs(dtype, device)
    starts = [
        torch.tensor(x, dtype=torch.int32) for x in ([0, 1, 70, 70, 200], [0, 30, 30, 41, 260])
    ]
    leaves = inputs.tensors
    packed = attention_entropy(
        **leaves, **inputs.options, cu_seqlens=(starts[0], starts[1]), return_max_logits=True
    )
    parts = []
    for n in range(4):
        queries, keys = (slice(int(x[n]), int(x[n + 1])) for x in starts)
        rows = {"q": queries, "temperature": queries, "k": keys, "v": keys}
        own = {
            name: x
            if name == "sinks"
            else x[..., rows[name]]
            if x.dim() == 2
            else x[:, :, rows[name]]
            for name, x in leaves.items()
        }
        parts.append(attention_entropy(**own, **inputs.options, return_max_logits=True))
    alone = [torch.cat(x, 2) for x in zip(*parts, strict=True)]
    for got, want in zip(packed, alone, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)
    cotangents = [x.nan_to_num(0, 0, 0) for x in cotangents_on(device, packed[:4])]
    gradients = [
        torch.autograd.grad(results, list(leaves.values()), cotangents)
        for results in (packed[:4], alone[:4])
    ]
    for name, got, want in zip(leaves, *gradients, strict=True):
        if name == "sinks":  # sums in another order
            assert relative_error(got, want.double()) <= 1e-5
        else:
            assert torch.equal(got, want), name


# Odd widths and addresses that only two bytes divide: cublasLt may have no algorithm for them.
@pytest.mark.parametrize("product", ("", "torch"))
@pytest.mark.parametrize("width", (1, 3, 67, 129, 128))
@pytest.mark.parametrize("offset", (0, 1))
@dtypes
def test_scaled_ffn_takes_every_width_and_address(
    product: str,
    width: int,
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AERO_FFN_PRODUCT", product)
    draw = Draw(3, dtype)

    def drawn(*shape: int) -> Tensor:
        memory = on(device, draw.normal(math.prod(shape) + offset))
        return memory[offset:].view(shape).requires_grad_()

    tensors = {"x": drawn(5, width), "weight": drawn(width, width), "bias": drawn(width)}
    scales = {n: torch.tensor([v], device=device) for n, v in (("alpha", 1.7), ("beta", -0.6))}
    leaves = {n: t.requires_grad_() for n, t in scales.items()}
    inputs = with_digits_of_products(Inputs("scaled_ffn", tensors | leaves, {}))
    for pair in compared(inputs, cotangents_on(device, inputs.run())[0]):
        pair.check(2 * unit(dtype))


# Over N keys out and dq are summed, over N queries dk and dv.
@pytest.mark.parametrize("summed", (256, 1024, 4096, 16384))
@pytest.mark.parametrize("head_dim", (64, 32, 128, 256))
@pytest.mark.parametrize("dtype", ("float32",), indirect=True)
def test_the_error_of_float32_does_not_grow_with_what_is_summed(
    head_dim: int, summed: int, dtype: torch.dtype, device: torch.device
) -> None:
    for queries, keys in ((16, summed), (summed, 16)):
        case = Attention(queries, keys, head_dim, is_causal=False, temperature=None)
        inputs = case.inputs(dtype, device)
        for pair in compared(inputs, cotangents_on(device, inputs.run())[0]):
            error = relative_error(pair.got, pair.exact)
            assert error <= truncation(inputs) + 1e-6, f"{pair.name}: error {error:.2e}"


# These calls have too few heads for a block to do whole ones, unless it is told to.
@pytest.mark.parametrize(
    "case", [c for c in CASES if c.head_dim <= 64 and not (c.window or c.softcap)], ids=str
)
@halves
def test_gradients_by_whole_heads_are_at_most_twice_as_wrong_as_those_of_plain_torch(
    case: Attention, dtype: torch.dtype, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AERO_CUDA_BACKWARD", "heads")
    inputs = case.inputs(dtype, device)
    for pair in compared(inputs, cotangents_on(device, inputs.run())[0]):
        pair.check(truncation(inputs))


@halves
def test_both_schemes_of_the_backward_direction_agree_on_the_temperatures_gradients(
    dtype: torch.dtype, gpu: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = Attention(600, 600, 64, heads=4, temperature="BHT").inputs(dtype, gpu)
    results = inputs.run()
    cotangents = cotangents_on(gpu, results)
    found = []
    for scheme in ("heads", "split"):
        monkeypatch.setenv("AERO_CUDA_BACKWARD", scheme)
        found.append(inputs.gradients(inputs.run(), cotangents)["temperature"])
    assert relative_error(*found) <= 1e-4


@pytest.mark.parametrize("low", (0.1, 0.01))
@dtypes
def test_entropy_and_the_temperatures_gradient_keep_their_digits_at_small_temperatures(
    low: float, dtype: torch.dtype, device: torch.device
) -> None:
    inputs = Attention(256, 256, 64, low=low).inputs(dtype, device)
    exact = inputs.double()
    native, oracle = inputs.run(), exact.run("reference")
    cotangents = cotangents_on(device, native)
    # At t = 0.01 the scores' own rounding is a hundred times larger.
    allowed = (1e-5 if unit(dtype) < 1e-4 else 1e-4) * (10 if low < 0.1 else 1)
    gradient = inputs.gradients(native, cotangents)["temperature"]
    expected = exact.gradients(oracle, cotangents)["temperature"]
    assert relative_error(native[1], oracle[1]) <= allowed
    assert relative_error(gradient, expected) <= allowed
    visible = torch.arange(1, 257, device=device).log()
    assert (native[1] >= 0).all()
    assert (native[1] <= visible * (1 + 1e-6) + 1e-7).all()


@dtypes
def test_gradients_are_the_slopes_of_the_float64_reference(
    dtype: torch.dtype, device: torch.device
) -> None:
    """Central differences along random directions, as gradcheck takes them, for every input."""
    inputs = Attention(33, 33, 24).inputs(dtype, device)
    exact = inputs.double()
    results = inputs.run()
    cotangents = cotangents_on(device, results)
    gradients = inputs.gradients(results, cotangents)
    generator = torch.Generator().manual_seed(5)

    def value(name: str, change: torch.Tensor) -> torch.Tensor:
        moved = dict(exact.tensors) | {name: exact.tensors[name].detach() + change}
        moved_results = type(exact)(exact.operator, moved, exact.options).run("reference")
        terms = zip(moved_results, cotangents, strict=True)
        return torch.stack([(r * c.double()).sum() for r, c in terms]).sum().detach()

    for name, gradient in gradients.items():
        drawn = torch.randn(gradient.shape, generator=generator, dtype=torch.float64)
        direction = drawn.to(device)
        step = 1e-5 * direction
        slope = (value(name, step) - value(name, -step)) / 2e-5
        got = (gradient.double() * direction).sum()
        # A rounding of every element of the gradient, in quadrature, along the direction.
        rounding = unit(dtype) if name != "temperature" else 1e-4
        allowed = 8 * rounding * gradient.double().norm() + 1e-6 * slope.abs()
        assert (got - slope).abs() <= allowed, name


@dtypes
def test_uniform_and_one_hot_rows_have_their_closed_forms(
    dtype: torch.dtype, device: torch.device
) -> None:
    zeros = torch.zeros(1, 2, 77, 16, dtype=dtype, device=device)
    _, entropy, logsumexp = attention_entropy(zeros, zeros, zeros, is_causal=True)
    expected = torch.arange(1, 78, device=device).log().expand(1, 2, 77)
    torch.testing.assert_close(entropy, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(logsumexp, expected, rtol=1e-6, atol=1e-6)
    one_hot = torch.eye(77, dtype=dtype, device=device)[None, None] * 100
    out, entropy, _ = attention_entropy(one_hot, one_hot, one_hot)
    assert entropy.abs().max() == 0
    assert torch.equal(out, one_hot)


def test_a_temperature_of_zero_makes_its_row_nan_and_no_other(gpu: torch.device) -> None:
    if not is_gpu(gpu):
        pytest.skip("the CPU raises an error")
    inputs = Attention(70, 70, 64).inputs(torch.bfloat16, gpu)
    with torch.no_grad():
        inputs.tensors["temperature"][1, 3] = 0
    out, entropy, _ = inputs.run()
    is_nan = entropy.isnan()
    assert is_nan[:, 1, 3].all()
    assert is_nan.sum() == 2
    assert out[:, 1, 3].isnan().all()
    assert out.isnan().sum() == 2 * 64


def test_tensors_of_more_than_2_to_the_31_elements_are_read_and_written_right(
    gpu: torch.device,
) -> None:
    if free_bytes(gpu) < 40e9:
        pytest.skip("needs 40 GB of free device memory")
    batch, heads, rows, width = 66_000, 8, 64, 64  # 2.16e9 elements
    assert batch * heads * rows * width > 2**31
    q, k, v = (
        torch.empty(batch, heads, rows, width, dtype=torch.bfloat16, device=gpu).normal_()
        for _ in range(3)
    )
    out, entropy, _ = attention_entropy(q, k, v, is_causal=True)
    for part in (slice(0, 3), slice(32_700, 32_800), slice(batch - 3, batch)):
        alone, its_entropy, _ = attention_entropy(
            *(x[part].clone() for x in (q, k, v)), is_causal=True
        )
        assert torch.equal(out[part], alone)
        assert torch.equal(entropy[part], its_entropy)
    assert math.isfinite(entropy.sum().item())
