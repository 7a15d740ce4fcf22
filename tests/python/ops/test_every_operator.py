"""Properties of every operator, over the shared list of samples."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


def places(options: dict[str, Any], queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """[T, S], how far each key is ahead of the query's newest, and whether in its sequence."""
    starts = options.get("cu_seqlens", (torch.tensor([0, queries]), torch.tensor([0, keys])))
    starts = starts if isinstance(starts, tuple) else (starts, starts)
    ahead, own = torch.zeros(queries, keys), torch.zeros(queries, keys, dtype=torch.bool)
    for (first, last), (begin, end) in zip(
        *(itertools.pairwise(x.tolist()) for x in starts), strict=True
    ):
        count, rows = end - begin, last - first
        own[first:last, begin:end] = True
        ahead[first:last, begin:end] = (
            torch.arange(count) - torch.arange(rows)[:, None] - count + rows
        )
    return ahead, own


def plain(inputs: Any) -> tuple[Tensor, ...]:
    """The operator in PyTorch as people write it, every step in the dtype of the inputs."""
    t = dict(inputs.tensors)
    options = inputs.options
    if inputs.operator == "scaled_ffn":
        dtype = t["x"].dtype
        linear = torch.nn.functional.linear(t["x"], t["weight"].T, t["bias"])
        return (t["beta"].to(dtype) * t["x"] + linear / t["alpha"].to(dtype),)
    if inputs.operator == "entropy_regularization":
        return inputs.run("reference")
    if inputs.operator == "attention_entropy":
        heads = t["q"].shape[1] // t["k"].shape[1]
        k, v = (t[name].repeat_interleave(heads, 1) for name in ("k", "v"))
        scale = options["scale"] or t["q"].shape[-1] ** -0.5
        scores = t["q"] @ k.transpose(-2, -1) * scale
        if cap := options.get("softcap"):
            scores = cap * (scores / cap).tanh()
        scores = scores + t.get("bias", 0)
        if "alibi_slopes" in t:
            slopes = t["alibi_slopes"].to(scores.dtype)[..., None, None]
            scores = scores - slopes * places(options, *scores.shape[2:])[0].to(scores.dtype).abs()
        if "sinks" in t:
            sinks = t["sinks"].to(scores.dtype)[..., None, None].expand(*scores.shape[:3], 1)
            scores = torch.cat([scores, sinks], -1)
            v = torch.nn.functional.pad(v, (0, 0, 0, 1))
    else:
        scores = t["scores"]
    if "temperature" in t:
        temperature = t["temperature"].to(scores.dtype)
        if temperature.dim() == 1 and len(temperature) > 1:
            temperature = temperature[:, None]
        scores = scores / (temperature[..., None] if temperature.dim() > 1 else temperature)
    keys = scores.shape[-1] - ("sinks" in t)
    ahead, visible = places(options, scores.shape[-2], keys)
    if options["is_causal"]:
        visible = visible & (ahead <= 0)
    for n, side in zip(options.get("window", ()), (-1, 1), strict=False):
        visible = visible if n is None else visible & (side * ahead <= n)
    if options["mask"] is not None:
        visible = visible & options["mask"]
    if "sinks" in t:
        visible = torch.nn.functional.pad(visible, (0, 1), value=True)
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    p = scores.softmax(-1) * visible.any(-1, keepdim=True)
    entropy = -torch.special.xlogy(p, p.clamp(min=torch.finfo(p.dtype).tiny)).sum(-1)
    logsumexp = scores.logsumexp(-1)
    largest = (scores[..., :keys].amax(-1),) if options.get("return_max_logits") else ()
    first = p if inputs.operator == "temperature_softmax" else p @ v
    return first, entropy, logsumexp, *largest


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64], ids=str)
@pytest.mark.parametrize("backend", ["native", "reference"])
def test_results_have_the_promised_shapes_and_dtypes(
    sample: Any, dtype: torch.dtype, backend: str
) -> None:
    inputs = sample.inputs(dtype)
    results, (exact, _) = inputs.run(backend), inputs.exact()
    assert [r.shape for r in results] == [r.shape for r in exact]
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    first = next(iter(inputs.tensors.values())).dtype
    assert [r.dtype for r in results] == [first, *[statistics] * 3][: len(results)]


@pytest.mark.parametrize("backend", ["native", "reference"])
def test_float64_agrees_with_the_oracle(sample: Any, backend: str, relative_error: Any) -> None:
    inputs = sample.inputs(torch.float64)
    results = inputs.run(backend)
    cotangents = sample.cotangents(results)
    gradients = inputs.gradients(results, cotangents)
    exact, expected = inputs.exact(cotangents)
    # Both sides round about a hundred times at 1.1e-16.
    for got, want in zip(results, exact, strict=True):
        assert relative_error(got, want) < 1e-13
    for name, want in expected.items():
        assert relative_error(gradients[name], want) < 1e-12, name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_errors_are_at_most_twice_those_of_plain_torch(
    sample: Any, dtype: torch.dtype, relative_error: Any
) -> None:
    """The first result and its gradients, against float64 on the same inputs."""
    inputs = sample.inputs(dtype)
    native, usual = inputs.run(), plain(inputs)
    cotangents = (sample.cotangents(native)[0], *[None] * (len(native) - 1))
    exact, exact_gradients = inputs.exact(cotangents)
    gradients = [*(inputs.gradients(r, cotangents) for r in (native, usual)), exact_gradients]
    pairs = {"result": (native[0], usual[0], exact[0])}
    # Single numbers are a matter of luck in this comparison; they have rules of their own.
    names = inputs.tensors.keys() - {"temperature", "alpha", "beta", "alibi_slopes", "sinks"}
    pairs |= {name: tuple(g[name] for g in gradients) for name in names}
    for name, (got, other, want) in pairs.items():
        # Storing a result costs up to one unit roundoff of its dtype, even where plain torch
        # happens to be exact; a second one covers statistics formed in float32.
        allowed = 2 * relative_error(other, want) + torch.finfo(got.dtype).eps
        assert relative_error(got, want) <= allowed, name


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_entropy_and_temperature_gradient_keep_their_digits(
    sample: Any, dtype: torch.dtype, relative_error: Any
) -> None:
    """All results used at once; |t| >= 0.3 here, t = 0.01 in the attention tests."""
    inputs = sample.inputs(dtype)
    native = inputs.run()
    cotangents = sample.cotangents(native)
    exact, wanted = inputs.exact(cotangents)
    allowed = 1e-5 if dtype == torch.float32 else 1e-4
    for got, want in zip(native[1:], exact[1:], strict=True):
        assert relative_error(got, want) <= allowed
    if "temperature" in inputs.tensors:
        got = inputs.gradients(native, cotangents)["temperature"]
        assert relative_error(got, wanted["temperature"]) <= allowed


def test_gradients_match_finite_differences_for_every_subset_of_results(small_sample: Any) -> None:
    torch.manual_seed(0)  # fast mode compares along random directions
    inputs = small_sample.inputs(torch.float64)
    names = list(inputs.tensors)
    finite = [r.isfinite().all().item() for r in inputs.run()]
    numbers = [i for i, is_finite in enumerate(finite) if is_finite]

    for count in range(1, len(numbers) + 1):
        for subset in itertools.combinations(numbers, count):

            def call(*tensors: Tensor, subset: tuple[int, ...] = subset) -> tuple[Tensor, ...]:
                replaced = dict(zip(names, tensors, strict=True))
                results = type(inputs)(inputs.operator, replaced, inputs.options).run()
                return tuple(results[i] for i in subset)

            assert torch.autograd.gradcheck(call, tuple(inputs.tensors.values()), fast_mode=True)


def test_gradients_of_some_inputs_equal_those_of_all(small_sample: Any) -> None:
    inputs = small_sample.inputs(torch.float64)
    results = inputs.run()
    cotangents = small_sample.cotangents(results)
    gradients = inputs.gradients(results, cotangents)
    for wanted in inputs.tensors:
        alone = inputs.mapped(lambda x: x.detach())
        alone.tensors[wanted].requires_grad_()
        (got,) = torch.autograd.grad(alone.run(), alone.tensors[wanted], cotangents)
        assert torch.equal(got, gradients[wanted]), wanted


class RecordOperators(TorchDispatchMode):
    """Notes every call of one of our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, tuple[Any, ...]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aero":
            self.calls.append((func, args))
        return func(*args, **(kwargs or {}))


def test_opcheck_passes_forward_and_backward(small_sample: Any) -> None:
    inputs = small_sample.inputs(torch.float32)
    with RecordOperators() as record:
        results = inputs.run()
        inputs.gradients(results, small_sample.cotangents(results))
    assert len(record.calls) == 2
    for operator, args in record.calls:
        is_forward = not operator.__name__.split(".")[0].endswith("_backward")
        fresh = tuple(
            x.detach().requires_grad_(is_forward and x.is_floating_point())
            if isinstance(x, Tensor)
            else x
            for x in args
        )
        torch.library.opcheck(operator, fresh)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_what_the_compiler_expects_of_an_operator_is_what_it_returns(
    small_sample: Any, dtype: torch.dtype
) -> None:
    """The saved statistics, too, of which the public functions show nothing."""
    inputs = small_sample.inputs(dtype)
    with RecordOperators() as record:
        results = inputs.run()
        inputs.gradients(results, small_sample.cotangents(results))
    for operator, args in record.calls:
        fresh = tuple(x.detach() if isinstance(x, Tensor) else x for x in args)
        torch.library.opcheck(operator, fresh, test_utils=("test_faketensor",))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_results_and_gradients_are_bitwise_repeatable(sample: Any, dtype: torch.dtype) -> None:
    inputs = sample.inputs(dtype)

    def once() -> list[Tensor]:
        results = inputs.run()
        return [*results, *inputs.gradients(results, sample.cotangents(results)).values()]

    first = once()
    for _ in range(3):
        assert all(torch.equal(a, b) for a, b in zip(first, once(), strict=True))
