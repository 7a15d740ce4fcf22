"""The operators under torch.compile, export, autocast, vmap and activation checkpointing."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from aero import ops

# One call of each operator with everything switched on.
EVERYTHING = [
    ("attention_entropy", "causal"),
    ("attention_entropy", "left padding"),
    ("temperature_softmax", "mask"),
    ("entropy_regularization", "masked rows"),
    ("entropy_regularization", "counted means"),
    ("scaled_ffn", "three dimensions"),
]


def block(x: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """All operators in one differentiable function, as a small model uses them; x is [B, T, C]."""
    batch, length, _ = x.shape
    q, k, v = (y.view(batch, length, 2, -1).transpose(1, 2) for y in (x @ p["qkv"]).chunk(3, -1))
    temperature = p["temperature"][:, :length]
    out, entropy, _ = ops.attention_entropy(q, k, v, temperature=temperature, is_causal=True)
    y = x + out.transpose(1, 2).flatten(2)
    y = ops.scaled_ffn(y, p["weight"], p["bias"], alpha=p["alpha"], beta=p["beta"])
    _, mixed, _ = ops.temperature_softmax(
        q @ k.transpose(-2, -1), temperature=temperature, is_causal=True
    )
    penalty = ops.entropy_regularization([entropy, mixed], p["thresholds"], margin=0.0)
    return y, penalty


@pytest.fixture
def parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"qkv": (8, 24), "weight": (8, 8), "bias": (8,), "thresholds": (2, 2)}
    drawn = {n: torch.randn(s, generator=generator) / 3 for n, s in shapes.items()}
    drawn |= {"temperature": torch.full((2, 16), 0.5)}
    drawn |= {"alpha": torch.ones(1), "beta": torch.ones(1)}
    return {name: value.requires_grad_() for name, value in drawn.items()}


def gradients(function: Any, x: Tensor, p: dict[str, Tensor]) -> list[Tensor]:
    y, penalty = function(x, p)
    return [y, penalty, *torch.autograd.grad(y.square().sum() + penalty, [x, *p.values()])]


def stream(batch: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(batch, length, 8, generator=generator).requires_grad_()


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_takes_the_whole_graph_with_dynamic_shapes(
    backend: str, parameters: dict[str, Tensor]
) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(block, backend=backend, fullgraph=True, dynamic=True)
    # No size equals another at first: dynamo takes equal sizes for one symbol.
    gradients(compiled, stream(3, 9), parameters)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for batch, length in ((3, 9), (5, 13), (2, 7)):
            x = stream(batch, length)
            for got, want in zip(
                gradients(compiled, x, parameters), gradients(block, x, parameters), strict=True
            ):
                torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("operator", "name"), EVERYTHING)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_every_operator_compiles_with_fixed_shapes(
    backend: str, operator: str, name: str, named_sample: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_to_be_traced(device_type: str) -> bool:
        raise AssertionError("not every torch can trace this")

    monkeypatch.setattr(torch.amp, "is_autocast_available", not_to_be_traced)
    torch._dynamo.reset()
    inputs = named_sample(operator, name).inputs(torch.float32)
    compiled = torch.compile(inputs.run, backend="aot_eager", fullgraph=True)
    for got, want in zip(compiled(backend), inputs.run(backend), strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        ("attention_entropy", "causal"),
        ("temperature_softmax", "mask"),
        ("entropy_regularization", "masked rows"),
        ("scaled_ffn", "three dimensions"),
    ],
)
def test_a_compiled_call_gives_the_gradients_that_are_asked_for(
    operator: str, name: str, named_sample: Any
) -> None:
    sample = named_sample(operator, name)
    inputs = sample.inputs(torch.float32)
    results = inputs.run()
    cotangents = sample.cotangents(results)
    gradients = inputs.gradients(results, cotangents)
    for wanted in inputs.tensors:
        torch._dynamo.reset()
        alone = inputs.mapped(lambda x: x.detach())
        leaf = alone.tensors[wanted].requires_grad_()
        compiled = torch.compile(alone.run, backend="aot_eager", fullgraph=True)
        used = [(r, c) for r, c in zip(compiled(), cotangents, strict=True) if c is not None]
        (got,) = torch.autograd.grad([r for r, _ in used], leaf, [c for _, c in used])
        torch.testing.assert_close(got, gradients[wanted], msg=wanted)


def test_compiled_call_reports_a_zero_temperature() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(ops.temperature_softmax, backend="aot_eager", fullgraph=True)
    temperature = torch.ones(2, 3)
    temperature[1, 2] = 0
    with pytest.raises(ValueError, match="got 0 at head 1, position 2"):
        compiled(torch.zeros(1, 2, 3, 4), temperature=temperature)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpointing_recomputes_the_same_bits(
    use_reentrant: bool, parameters: dict[str, Tensor]
) -> None:
    def recomputed(x: Tensor, p: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        names = list(p)
        return checkpoint(  # type: ignore[no-any-return]
            lambda x, *values: block(x, dict(zip(names, values, strict=True))),
            x,
            *p.values(),
            use_reentrant=use_reentrant,
        )

    x = stream(2, 9)

    def backward(function: Any) -> list[Tensor]:
        for tensor in (x, *parameters.values()):
            tensor.grad = None
        y, penalty = function(x, parameters)
        (y.square().sum() + penalty).backward()
        return [t.grad for t in (x, *parameters.values()) if t.grad is not None]

    plain = backward(block)
    assert len(plain) == 1 + len(parameters)
    for got, want in zip(backward(recomputed), plain, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_autocast_casts_the_large_tensors_and_leaves_the_statistics(
    dtype: torch.dtype, backend: str, named_sample: Any
) -> None:
    attention = named_sample("attention_entropy", "causal").inputs(torch.float32)
    ffn = named_sample("scaled_ffn", "three dimensions").inputs(torch.float32)
    # The stream x of scaled_ffn stays as exact as it is, and so does y.
    for inputs, large, first_dtype in (
        (attention, {"q", "k", "v"}, dtype),
        (ffn, {"weight", "bias"}, torch.float32),
    ):
        with torch.autocast("cpu", dtype):
            results = inputs.run(backend)
        tensors = {n: x.to(dtype) if n in large else x for n, x in inputs.tensors.items()}
        by_hand = type(inputs)(inputs.operator, tensors, inputs.options).run(backend)
        for got, want in zip(results, by_hand, strict=True):
            assert torch.equal(got, want)
        assert results[0].dtype == first_dtype
        assert all(r.dtype == torch.float32 for r in results[1:])
        found = torch.autograd.grad(results[0], list(inputs.tensors.values()), results[0])
        assert all(gradient.dtype == torch.float32 for gradient in found)


def test_autocast_leaves_float64_alone(named_sample: Any) -> None:
    inputs = named_sample("attention_entropy", "causal").inputs(torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        assert inputs.run()[0].dtype == torch.float64


@pytest.mark.parametrize("temperature", ["", "1", "H", "HT", "BHT"])
@pytest.mark.parametrize("temperature_dim", [None, 0])
@pytest.mark.parametrize("mask_dim", [None, 1])
def test_vmap_over_an_outer_batch_is_a_loop(
    temperature: str, temperature_dim: int | None, mask_dim: int | None
) -> None:
    generator = torch.Generator().manual_seed(0)
    sizes = [{"1": 1, "B": 2, "H": 3, "T": 5}[letter] for letter in temperature]
    q, k = torch.randn(2, 4, 2, 3, 5, 5, generator=generator)
    q.requires_grad_()
    v = torch.randn(2, 3, 5, 5, generator=generator)  # shared by all
    if temperature_dim is not None:
        sizes.insert(0, 4)
    t = 0.5 + torch.rand(sizes, generator=generator)
    mask = torch.rand(2, 1, 5, 5, generator=generator) < 0.7
    if mask_dim is not None:
        mask = torch.stack([mask, ~mask, mask, ~mask], dim=1)

    def fused(q: Tensor, k: Tensor, t: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return ops.attention_entropy(q, k, v, temperature=t, mask=mask)

    def softmax(q: Tensor, k: Tensor, t: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        return ops.temperature_softmax(q @ k.mT, temperature=t, mask=mask)

    in_dims = (0, 0, temperature_dim, mask_dim)
    for function in (fused, softmax):
        mapped = torch.vmap(function, in_dims)(q, k, t, mask)
        looped = [
            function(
                q[i],
                k[i],
                t if temperature_dim is None else t[i],
                mask if mask_dim is None else mask[:, i],
            )
            for i in range(4)
        ]
        for got, want in zip(mapped, map(torch.stack, zip(*looped, strict=True)), strict=True):
            assert torch.equal(got, want)
        (got,) = torch.autograd.grad(mapped[0], q, torch.ones_like(mapped[0]))
        (want,) = torch.autograd.grad(
            [results[0] for results in looped], q, [torch.ones_like(r[0]) for r in looped]
        )
        torch.testing.assert_close(got, want)


def test_vmap_of_the_feed_forward_layer_shares_or_maps_its_parameters() -> None:
    x, weight, bias = torch.randn(3, 4, 5), torch.randn(3, 5, 5), torch.randn(5)
    scales = {"alpha": torch.tensor([1.5]), "beta": torch.tensor(0.5)}
    for in_dims in ((0, None), (0, 0), (None, 0), (1, None)):
        operands = (
            x if in_dims[0] is not None else x[0],
            weight if in_dims[1] is not None else weight[0],
        )
        mapped = torch.vmap(lambda x, w: ops.scaled_ffn(x, w, bias, **scales), in_dims)(*operands)
        looped = [
            ops.scaled_ffn(
                *(
                    y if d is None else y.select(d, i)
                    for y, d in zip(operands, in_dims, strict=True)
                ),
                bias,
                **scales,
            )
            for i in range(mapped.shape[0])
        ]
        torch.testing.assert_close(mapped, torch.stack(looped))


def test_vmap_over_no_values_gives_no_results() -> None:
    x, one = torch.randn(4, 5), torch.ones(1)

    def layer(weight: Tensor, bias: Tensor) -> Tensor:
        return ops.scaled_ffn(x, weight, bias, alpha=one, beta=one).sum()

    def penalty(entropies: Tensor, thresholds: Tensor) -> Tensor:
        return ops.entropy_regularization(entropies, thresholds, context_length=4)

    for function, *arguments in (
        (layer, torch.randn(0, 5, 5), torch.randn(0, 5)),
        (penalty, torch.randn(0, 2, 1, 3, 4), torch.randn(0, 2, 3)),
    ):
        assert torch.vmap(function)(*arguments).shape == (0,)
        for got, of in zip(
            torch.vmap(torch.func.grad(function, (0, 1)))(*arguments), arguments, strict=True
        ):
            assert got.shape == of.shape


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_meta_tensors_give_shapes_without_numbers(backend: str, named_sample: Any) -> None:
    for operator, name in EVERYTHING:
        inputs = named_sample(operator, name).inputs(torch.bfloat16)
        real = inputs.run()
        options = {
            n: x.to("meta") if isinstance(x, Tensor) else x for n, x in inputs.options.items()
        }
        meta = type(inputs)(
            operator, {n: x.detach().to("meta") for n, x in inputs.tensors.items()}, options
        )
        for got, want in zip(meta.run(backend), real, strict=True):
            assert (got.device.type, got.shape, got.dtype) == ("meta", want.shape, want.dtype)
