"""The operators on any shape, memory layout, mask, temperature and instruction set."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from aero._library import cpu_isa
from aero.ops import attention_entropy, entropy_regularization, temperature_softmax

from . import oracle

FLOATS = [torch.float32, torch.bfloat16, torch.float16]


@contextmanager
def instruction_set(name: str) -> Iterator[None]:
    """The kernels read the variable at every call."""
    before = os.environ.get("AERO_CPU_ISA")
    os.environ["AERO_CPU_ISA"] = name
    try:
        yield
    finally:
        os.environ.pop("AERO_CPU_ISA")
        if before is not None:
            os.environ["AERO_CPU_ISA"] = before


def available(name: str) -> bool:
    with instruction_set(name):
        return cpu_isa() == name


INSTRUCTION_SETS = [n for n in ("scalar", "avx2", "avx512", "avx512bf16", "amx") if available(n)]


@dataclasses.dataclass(frozen=True)
class Case:
    """One call: tensors with gradients, their layouts, and the options."""

    operator: Callable[..., Any]
    dtype: torch.dtype
    isa: str
    inputs: dict[str, Tensor]
    options: dict[str, Any]
    seed: int

    def run(self, backend: str = "native") -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """Results and gradients."""
        leaves = {name: x.detach().requires_grad_() for name, x in self.inputs.items()}
        with instruction_set(self.isa):
            results = self.operator(**leaves, **self.options, backend=backend)
            results = results if isinstance(results, tuple) else (results,)
            gradients = torch.autograd.grad(
                results,
                list(leaves.values()),
                self.cotangents(results),
                allow_unused=True,
                materialize_grads=True,
            )
        return results, dict(zip(leaves, gradients, strict=True))

    def exact(self) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
        """The same of the oracle."""
        name = self.operator.__name__
        results, _ = oracle.run(name, self.inputs, self.options)
        return oracle.run(name, self.inputs, self.options, self.cotangents(results))

    def cotangents(self, results: tuple[Tensor, ...]) -> list[Tensor]:
        """The same numbers for results of any dtype, those of the first in the call's dtype."""
        generator = torch.Generator().manual_seed(self.seed)
        drawn = [torch.randn(r.shape, generator=generator) for r in results]
        return [
            (c.to(self.dtype) if i == 0 else c).to(r.dtype)
            for i, (c, r) in enumerate(zip(drawn, results, strict=True))
        ]

    def visible_keys(self) -> Tensor:
        """[B, H, T]"""
        (batch, heads, queries, _), keys = self.inputs["q"].shape, self.inputs["k"].shape[2]
        seen = torch.ones(batch, heads, queries, keys, dtype=torch.bool)
        if self.options["is_causal"]:
            seen = seen.tril(keys - queries)
        if self.options["mask"] is not None:
            seen = seen & self.options["mask"]
        return seen.sum(-1)


def in_memory_order(x: Tensor, order: tuple[int, ...], padding: int, step: int) -> Tensor:
    """The same values, with the dimensions in this order in memory, rows apart and widened."""
    shape = [x.shape[d] for d in order]
    room = torch.full(
        [*shape[:-1], shape[-1] + padding, step], math.nan, dtype=x.dtype
    )  # NaN beside the values
    view = room[..., : shape[-1], 0].permute([order.index(d) for d in range(x.dim())])
    return view.copy_(x)


def draw_layout(draw: st.DrawFn, x: Tensor) -> Tensor:
    """The same values in some memory layout."""
    if x.shape[0] and draw(st.integers(0, 5)) == 0:
        return x[:1].expand(x.shape)  # the first entry for all
    return in_memory_order(
        x,
        tuple(draw(st.permutations(range(x.dim())))),
        draw(st.sampled_from([0, 0, 1, 3])),
        draw(st.sampled_from([1, 1, 2])),
    )


def draw_temperature(
    draw: st.DrawFn, n: dict[str, int], magnitudes: list[float], generator: torch.Generator
) -> Tensor | None:
    """About as large as one of the magnitudes, of either sign; of every legal shape."""
    letters = draw(st.sampled_from([None, "", "1", "H", "HT", "BHT"]))
    if letters is None:
        return None
    sizes = [1 if letter == "1" else n[letter] for letter in letters]
    chosen = torch.tensor(magnitudes)[torch.randint(len(magnitudes), sizes, generator=generator)]
    sign = torch.rand(sizes, generator=generator) < 0.5
    return torch.where(sign, -chosen, chosen) * (0.5 + torch.rand(sizes, generator=generator))


def draw_mask(draw: st.DrawFn, n: dict[str, int], generator: torch.Generator) -> Tensor | None:
    if draw(st.booleans()):
        return None
    sizes = [draw(st.sampled_from([1, n[letter]])) for letter in "BHTS"]
    sizes = sizes[draw(st.integers(0, 3)) :]
    mask = torch.rand(sizes, generator=generator) < draw(st.sampled_from([0.1, 0.6, 0.95]))
    if len(sizes) >= 2 and draw(st.booleans()):
        mask = mask.transpose(-1, -2).contiguous().transpose(-1, -2)
    return mask


@st.composite
def cases(
    draw: st.DrawFn,
    dtypes: list[torch.dtype],
    magnitudes: list[float],
    operator: Callable[..., Any] = attention_entropy,
) -> Case:
    dtype = draw(st.sampled_from(dtypes))
    groups, per_group = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    n = {
        "B": draw(st.integers(0, 3)),
        "H": groups * per_group,
        "T": draw(st.integers(0, 40)),
        "S": draw(st.integers(0, 70)),
    }
    head_dim, seed = draw(st.integers(1, 70)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return draw_layout(draw, torch.randn(shape, generator=generator).to(dtype))

    if operator is attention_entropy:
        inputs = {
            "q": normal(n["B"], n["H"], n["T"], head_dim),
            "k": normal(n["B"], groups, n["S"], head_dim),
            "v": normal(n["B"], groups, n["S"], head_dim),
        }
    else:
        inputs = {"scores": normal(n["B"], n["H"], n["T"], n["S"])}
    temperature = draw_temperature(draw, n, magnitudes, generator)
    if temperature is not None:
        inputs["temperature"] = temperature.double() if dtype == torch.float64 else temperature
    options = {"mask": draw_mask(draw, n, generator), "is_causal": draw(st.booleans())}
    return Case(operator, dtype, draw(st.sampled_from(INSTRUCTION_SETS)), inputs, options, seed)


@st.composite
def penalties(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    layers, batch, heads = (draw(st.integers(0, 3)) for _ in range(3))
    queries, seed = draw(st.integers(0, 150)), draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed)
    entropies = 5 * torch.rand(layers, batch, heads, queries, generator=generator)
    thresholds = 1.5 * torch.rand(layers, heads, generator=generator)
    by_row = draw(st.booleans())
    options: dict[str, Any] = {
        "margin": draw(st.sampled_from([0.0, 0.1, 0.3])),
        "reduction": draw(st.sampled_from(["position_sum", "query_mean"])),
        "max_entropy": "log_visible" if by_row else "log_context",
    }
    if by_row and draw(st.booleans()):
        options["visible_keys"] = torch.randint(0, 99, (batch, queries), generator=generator)
    elif not by_row:
        options["context_length"] = draw(st.integers(2, 200))
    if draw(st.booleans()):
        options["row_mask"] = torch.rand(batch, queries, generator=generator) < 0.7
    inputs = {
        "entropies": draw_layout(draw, entropies.to(dtype)),
        "thresholds": thresholds.to(dtype),
    }
    isa = draw(st.sampled_from(INSTRUCTION_SETS))
    return Case(entropy_regularization, dtype, isa, inputs, options, seed)


def error(got: Tensor, want: Tensor, floor: float) -> float:
    """Difference in the Euclidean norm over that of `want`, whose entries count `floor` at least.

    The floor is the size of the terms that cancel: the gradient of k with a single key is zero.
    """
    got, want = got.detach().double(), want.detach().double()
    finite = want.isfinite()
    assert torch.equal(got[~finite], want[~finite])
    scale = want[finite].norm().item() + floor * max(finite.sum().item(), 1) ** 0.5
    return (got[finite] - want[finite]).norm().item() / scale


def size_of_terms(case: Case, name: str) -> float:
    """Of the terms of one entry of a gradient: for a temperature, gradients of whole rows."""
    temperature = case.inputs.get("temperature")
    if name != "temperature" or temperature is None or not temperature.numel():
        return 1.0
    rows = next(iter(case.inputs.values())).shape[:3]
    of_rows = temperature[:, None] if temperature.dim() == 1 else temperature
    inputs = case.inputs | {"temperature": of_rows.expand(rows).clone()}
    _, gradients = dataclasses.replace(case, inputs=inputs).exact()
    return max(1.0, gradients["temperature"].abs().sum().item() / temperature.numel())


# Where |t| >= 0.15, scores stay below 6 sqrt(D) / 0.15 / sqrt(D) * 4 = 160 and are rounded by less
# than 1e-5 in float32, to which all else is small; bfloat16 and float16 also round P, dS and the
# results, each by half a unit.
COARSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 2e-3}
FINE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-4, torch.float16: 1e-4}


def agrees_with_the_oracle(backend: str, case: Case) -> None:
    results, gradients = case.run(backend)
    exact, wanted = case.exact()
    coarse, fine = COARSE[case.dtype], FINE[case.dtype]
    for got, want, allowed in zip(results, exact, (coarse, fine, fine), strict=True):
        assert error(got, want, 0.1) <= allowed
    for name, want in wanted.items():
        allowed = fine if name == "temperature" else coarse
        assert error(gradients[name], want, size_of_terms(case, name)) <= allowed, name


@pytest.mark.parametrize("backend", ["native", "reference"])
@settings(max_examples=150)
@given(cases([*FLOATS, torch.float64], [0.3, 1.0, 1.5]))
def test_any_call_agrees_with_the_oracle_forward_and_backward(backend: str, case: Case) -> None:
    agrees_with_the_oracle(backend, case)


@pytest.mark.parametrize("backend", ["native", "reference"])
@settings(max_examples=150)
@given(cases([*FLOATS, torch.float64], [0.3, 1.0, 1.5], temperature_softmax))
def test_any_softmax_agrees_with_the_oracle_forward_and_backward(backend: str, case: Case) -> None:
    agrees_with_the_oracle(backend, case)


@pytest.mark.parametrize("backend", ["native", "reference"])
@settings(max_examples=100)
@given(penalties())
def test_any_penalty_agrees_with_the_oracle_forward_and_backward(backend: str, case: Case) -> None:
    (loss,), gradients = case.run(backend)
    (exact,), wanted = case.exact()
    # Largest entropies are logarithms of whole numbers, rounded as the entropies are.
    assert error(loss, exact, 1.0) <= FINE[case.dtype]
    for name, want in wanted.items():
        assert error(gradients[name], want, 1.0) <= FINE[case.dtype], name


# The same loops in float64 with the temperatures that float32 cannot follow: 1e-4 beside 100.
@settings(max_examples=100)
@given(cases([torch.float64], [1e-4, 1e-2, 1.0, 100.0]))
def test_tiny_huge_and_mixed_temperatures_agree_in_float64(case: Case) -> None:
    results, gradients = case.run()
    exact, wanted = case.exact()
    # Scores reach 2e5 and are rounded by 1e-10; gradients of q and k are 1e4 times those of v, that
    # of the temperature 1e9 times.
    for got, want in zip(results, exact, strict=True):
        assert error(got, want, 1.0) <= 1e-8
    for name, floor in (("q", 1e4), ("k", 1e4), ("v", 1.0), ("temperature", 1e9)):
        if name in wanted:
            assert error(gradients[name], wanted[name], floor) <= 1e-8, name


@settings(max_examples=100)
@given(cases(FLOATS, [1e-4, 1e-2, 1.0, 100.0]))
def test_any_temperature_gives_entropies_in_range_and_finite_gradients(case: Case) -> None:
    (out, entropy, logsumexp), gradients = case.run()
    visible = case.visible_keys()
    assert (entropy >= 0).all()
    assert (entropy <= visible.clamp(min=1).log() * (1 + 1e-6) + 1e-7).all()
    assert torch.equal(logsumexp == -math.inf, visible == 0)
    assert torch.equal(out[visible == 0], torch.zeros_like(out[visible == 0]))
    if case.inputs["v"].numel():
        largest = case.inputs["v"].abs().max().float()
        assert (out.float().abs() <= largest * (1 + 2 * torch.finfo(case.dtype).eps)).all()
    for name, gradient in gradients.items():
        # float16 itself ends at 65504.
        assert gradient.isnan().sum() == 0, name
        if case.dtype != torch.float16 or name == "temperature":
            assert gradient.isfinite().all(), name


@settings(max_examples=60)
@given(
    st.one_of(
        cases([*FLOATS, torch.float64], [0.3, 1.0, 100.0]),
        cases([*FLOATS, torch.float64], [0.3, 1.0, 100.0], temperature_softmax),
        penalties(),
    )
)
def test_any_call_is_bitwise_repeatable(case: Case) -> None:
    first, second = case.run(), case.run()
    for a, b in zip(first[0], second[0], strict=True):
        assert torch.equal(a, b)
    for name, gradient in first[1].items():
        assert torch.equal(gradient, second[1][name]), name


def test_the_oracle_is_the_dense_definition() -> None:
    """The facts behind the properties above, in two lines of PyTorch."""
    q, k, v = torch.randn(3, 2, 3, 7, 5, dtype=torch.float64)
    p = (q @ k.transpose(-1, -2) / 5**0.5 / 0.3).softmax(-1)
    out, entropy, _ = oracle.attention_entropy(q, k, v, temperature=torch.tensor(0.3).double())
    torch.testing.assert_close(out, p @ v)
    torch.testing.assert_close(entropy, -(p * p.log()).sum(-1))
