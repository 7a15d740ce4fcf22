"""Every tensor argument of every operator in any memory layout: strides, offsets, expanded and
zero-sized dimensions, in both directions, with both backends, against the oracle.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from aero import ops

from . import oracle

Sizes = dict[str, int]
#: The parts of a call: arguments with gradients, and the others.
Call = tuple[dict[str, Tensor], dict[str, Any]]


class Memory:
    """Draws tensors in odd places of memory, beside values that nothing may read."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.choose = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype
        self.statistics = torch.float64 if dtype == torch.float64 else torch.float32

    def placed(self, values: Tensor) -> Tensor:
        """The same values elsewhere: offset, permuted, with gaps in any dimension."""
        order = self.choose.sample(range(values.dim()), values.dim())
        room = [
            (self.choose.randint(0, 2), values.shape[d], self.choose.choice([1, 1, 2, 3]))
            for d in order
        ]
        fill = math.nan if values.is_floating_point() else 1
        memory = torch.full([before + n * step for before, n, step in room], fill)
        view = memory.to(values.dtype)[
            tuple(slice(before, before + n * step, step) for before, n, step in room)
        ]
        return view.permute([order.index(d) for d in range(values.dim())]).copy_(values)

    def tensor(self, shape: list[int], kind: str = "normal") -> Tensor:
        """Placed values, some dimensions of which are expanded from one entry."""
        expanded = [n > 0 and self.one_in(4) for n in shape]
        values = self.values([1 if e else n for e, n in zip(expanded, shape, strict=True)], kind)
        return self.placed(values).expand(shape)

    def values(self, shape: list[int], kind: str) -> Tensor:
        uniform = torch.rand(shape, generator=self.generator, dtype=torch.float64)
        if kind == "bool":
            return uniform < 0.7
        if kind == "count":
            return (uniform * 9).long()
        if kind == "scale":  # the divisor, and its target
            return ((uniform + 0.5) * (-1 if self.one_in(3) else 1)).to(self.statistics)
        if kind == "entropy":
            return (2 * uniform).to(self.statistics)
        normal = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return normal.to(self.dtype)

    def one_in(self, n: int) -> bool:
        return self.choose.randrange(n) == 0

    def rows(self, n: Sizes) -> Call:
        """Temperature, mask and causal rule of B, H, T and S."""
        letters = self.choose.choice([None, "", "1", "H", "HT", "BHT"])
        shape = [1 if x == "1" else n[x] for x in letters or ""]
        tensors = {} if letters is None else {"temperature": self.tensor(shape, "scale")}
        mask = None
        if self.one_in(2):
            kept = "BHTS"[self.choose.randint(0, 3) :]
            mask = self.tensor([self.choose.choice([1, n[x]]) for x in kept], "bool")
        return tensors, {"mask": mask, "is_causal": self.one_in(2)}


def softmax(memory: Memory, n: Sizes) -> Call:
    tensors, options = memory.rows(n)
    return {"scores": memory.tensor([n[x] for x in "BHTS"]), **tensors}, options


def attention(memory: Memory, n: Sizes) -> Call:
    tensors, options = memory.rows(n)
    heads = {"q": "BHTD", "k": "BGSD", "v": "BGSD"}
    drawn = {name: memory.tensor([n[x] for x in letters]) for name, letters in heads.items()}
    return {**drawn, **tensors}, options


def penalty(memory: Memory, n: Sizes) -> Call:
    rows = [n["B"], n["T"]]
    options: dict[str, Any] = {"reduction": memory.choose.choice(["position_sum", "query_mean"])}
    if memory.one_in(2):
        options["row_mask"] = memory.tensor(rows, "bool")
    if memory.one_in(2):
        options["max_entropy"] = "log_visible"
        options["visible_keys"] = memory.tensor(rows, "count")
    else:
        options["context_length"] = 7
    return {
        "entropies": memory.tensor([n[x] for x in "LBHT"], "entropy"),
        "thresholds": memory.tensor([n["L"], n["H"]], "scale"),
    }, options


def layer(memory: Memory, n: Sizes) -> Call:
    x = memory.tensor([n[x] for x in "BTC"][memory.choose.randint(0, 2) :])
    if memory.dtype == torch.float32 and memory.one_in(3):
        memory.dtype = torch.bfloat16  # half weights beside a float32 stream
    tensors = {"x": x, "weight": memory.tensor([n["C"]] * 2), "bias": memory.tensor([n["C"]])}
    return tensors | {
        name: memory.tensor(memory.choose.choice([[], [1]]), "scale") for name in ("alpha", "beta")
    }, {}


CALLS: dict[str, Callable[[Memory, Sizes], Call]] = {
    "temperature_softmax": softmax,
    "attention_entropy": attention,
    "entropy_regularization": penalty,
    "scaled_ffn": layer,
}


class PlaceAnew(TorchDispatchMode):
    """Hands our operators all their tensors, those of the backward pass too, in odd places."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self.memory = memory
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aero":
            self.calls.append(func.__name__)
            args = [self.memory.placed(x) if isinstance(x, Tensor) else x for x in args]
        return func(*args, **(kwargs or {}))


# At |t| >= 0.5 and up to 5 terms: a few roundings of the dtype, those of bfloat16 also of the
# products inside.
ALLOWED = {torch.float64: 1e-12, torch.float32: 2e-5, torch.bfloat16: 0.1}


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("operator", CALLS)
@settings(max_examples=120)
@given(
    st.fixed_dictionaries({x: st.sampled_from([0, 1, 2, 3, 5, 17]) for x in "BTSCL"}),
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(1, 5)),
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    st.integers(0, 2**31),
)
def test_tensors_may_lie_anyhow_in_memory(
    operator: str, backend: str, sizes: Sizes, heads: Any, dtype: torch.dtype, seed: int
) -> None:
    groups, per_group, head_dim = heads
    sizes = sizes | {"G": groups, "H": groups * per_group, "D": head_dim}
    memory = Memory(seed, dtype)
    tensors, options = CALLS[operator](memory, sizes)
    leaves = {name: x.requires_grad_() for name, x in tensors.items()}
    with PlaceAnew(memory) as mode:
        results = getattr(ops, operator)(**leaves, **options, backend=backend)
        results = results if isinstance(results, tuple) else (results,)
        memory.dtype = results[0].dtype
        cotangents = [
            memory.tensor(list(r.shape), "normal" if i == 0 else "entropy")
            for i, r in enumerate(results)
        ]
        gradients = torch.autograd.grad(
            results, list(leaves.values()), cotangents, allow_unused=True, materialize_grads=True
        )
    assert len(mode.calls) == (2 if backend == "native" else 0)
    exact, wanted = oracle.run(operator, tensors, options, cotangents)
    allowed = max(ALLOWED.get(x.dtype, 0) for x in tensors.values())
    names = [*range(len(results)), *leaves]
    for name, got, want in zip(
        names, (*results, *gradients), (*exact, *wanted.values()), strict=True
    ):
        finite = want[want.isfinite()]
        size = max(1.0, finite.abs().max().item() if finite.numel() else 1.0)
        if name in ("alpha", "beta"):  # sums over the terms of the weight's gradient
            size = max(1.0, wanted["weight"].abs().sum().item())
        torch.testing.assert_close(got.double(), want, rtol=0, atol=allowed * size)
