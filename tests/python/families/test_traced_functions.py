"""Einsum, functions of elements and the largest of a row, as programs call them."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from aero import mpc

from .programs import Called, exported


class Queried(nn.Module):
    """Attention of [batch, position, head, channel], its products and its softmax as given."""

    def __init__(self, attended: Callable[[Tensor, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.attended = attended
        self.queries, self.keys, self.values, self.after = (nn.Linear(24, 24) for _ in range(4))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        q, k, v = (
            product(given).unflatten(-1, (3, 8))
            for product, given in ((self.queries, x), (self.keys, y), (self.values, y))
        )
        return self.after(self.attended(q, k, v).flatten(-2))


def by_matmul(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (one.transpose(1, 2) for one in (q, k, v))
    scores = q @ k.transpose(-2, -1) / math.sqrt(8)
    return (functional.softmax(scores, dim=-1) @ v).transpose(1, 2)


def by_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(8)
    return torch.einsum("bhqk,bkhd->bqhd", functional.softmax(scores, dim=-1), v)


def by_open_einsum(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("...qhd, ...khd -> ...hqk", q, k) / math.sqrt(8)
    return torch.einsum("bkhd,bhqk->bqhd", v, functional.softmax(scores, dim=-1))


def written_out(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(8)
    grown = torch.exp(scores - scores.amax(-1, keepdim=True))
    return torch.einsum("bhqk,bkhd->bqhd", grown / grown.sum(-1, keepdim=True), v)


@pytest.mark.parametrize("stack", ["spu-2024", "spu-0.9.5", "spu-semi2k"])
def test_attention_by_einsum_costs_what_its_products_cost(stack: str) -> None:
    inputs = (torch.zeros(2, 7, 24), torch.zeros(2, 5, 24))
    expected, *others = (
        mpc.simulate(exported(Queried(attended), *inputs), stack=stack)
        for attended in (by_matmul, by_einsum, by_open_einsum)
    )
    assert {"QK", "softmax", "PV"} < {*expected.by_kind}
    for found in others:
        assert (found.total, found.by_kind) == (expected.total, expected.by_kind)
        assert found.notes == expected.notes
        [name] = [one.name for one in found.operations if one.kind == "PV"]
        assert name.startswith("test_traced_functions.py:") and "self.attended(q, k, v)" in name


@pytest.mark.parametrize("stack", ["spu-0.9.5", "openbumblebee", "spu-semi2k"])
def test_a_softmax_written_out_costs_what_a_softmax_costs(stack: str) -> None:
    inputs = (torch.zeros(2, 7, 24), torch.zeros(2, 5, 24))
    found, expected = (
        mpc.simulate(exported(Queried(attended), *inputs), stack=stack)
        for attended in (written_out, by_einsum)
    )
    assert {name: found.by_kind[name] for name in ("QK", "PV", "qkv/proj")} == {
        name: expected.by_kind[name] for name in ("QK", "PV", "qkv/proj")
    }
    written, fused = found.by_kind["act"], expected.by_kind["softmax"]
    # Each step of the maximum fills up its own messages here.
    assert written.comm_bytes == pytest.approx(fused.comm_bytes, rel=1e-4)
    assert written.rounds == fused.rounds
    assert not any("no price" in note for note in found.notes)


@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("bsd,df->bsf", "12x8x8"),
        ("df,bsd->bsf", "12x8x8"),
        ("bsd,fd->fsb", "12x8x8"),
        ("...d,df", "12x8x8"),
        ("bsd,df->bf", "3x8x8"),
        ("bsd,df->bsdf", "768"),
    ],
)
def test_an_einsum_with_a_weight_is_a_product_with_it(equation: str, shape: str) -> None:
    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            first = equation.startswith("df")
            operands = (self.weight, x) if first else (x, self.weight)
            return functional.relu(torch.einsum(equation, *operands))

    report = mpc.simulate(exported(Weighted(), torch.zeros(3, 4, 8)))
    shapes = [one.shape for one in report.operations if one.kind != "setup"]
    assert shapes[0] == shape and len(shapes) == 2


@pytest.mark.parametrize(
    ("function", "operation", "sizes"),
    [
        (torch.sigmoid, "logistic", (32,)),
        (torch.exp, "exp", (32,)),
        (torch.reciprocal, "reciprocal", (32,)),
        (torch.rsqrt, "reciprocal_square_root", (32,)),
        (lambda x: 1 / x, "reciprocal", (32,)),
        (lambda x: 1 / torch.sqrt(x), "reciprocal_square_root", (32,)),
        (lambda x: x.pow(-0.5), "reciprocal_square_root", (32,)),
        (lambda x: torch.exp(torch.einsum("ij->ji", x)), "exp", (32,)),
        (lambda x: torch.maximum(x, x.flip(0)), "relu", (32,)),
        (lambda x: torch.max(x, x.flip(0)), "relu", (32,)),
        (lambda x: torch.clamp(x, min=-1.0), "relu", (32,)),
        (lambda x: x.clamp_max(1.0), "relu", (32,)),
        (functional.relu, "relu", (32,)),
    ],
)
def test_a_function_of_elements_costs_what_its_operation_costs(
    function: Callable[[Tensor], Tensor], operation: str, sizes: tuple[int, ...]
) -> None:
    for stack in ("spu-0.9.5", "spu-semi2k"):
        report = mpc.simulate(exported(Called(function), torch.zeros(4, 8)), stack=stack)
        expected = mpc.operation_cost(operation, *sizes, stack=stack)
        assert report.by_kind["act"].comm_bytes == pytest.approx(expected.comm_bytes, abs=1)
        assert not any("no price" in note for note in report.notes)


@pytest.mark.parametrize(
    ("function", "comparisons"),
    [
        (lambda x: x.amax(-1), [16, 8, 4]),
        (lambda x: x.max(-1).values, [16, 8, 4]),
        (lambda x: x.amin(0), [16, 8]),
        (lambda x: x.max(), [16, 8, 4, 2, 1]),
        (lambda x: x[:, :7].amax(-1), [12, 4, 4, 4]),  # 3 pairs, 1, and two left over
        (lambda x: torch.clamp(x, -1.0, 1.0), [32, 32]),
        (functional.relu6, [32, 32]),
        (functional.hardsigmoid, [32, 32]),
        (functional.hardswish, [32, 32, 32]),  # and a product
        (lambda x: functional.glu(x, -1), [16, 16]),
        (lambda x: x / x.flip(0), [32, 32]),
        (lambda x: x / x.sum(-1, keepdim=True), [4, 32]),
    ],
)
def test_the_largest_of_a_row_is_a_tree_of_comparisons(
    function: Callable[[Tensor], Tensor], comparisons: list[int]
) -> None:
    report = mpc.simulate(exported(Called(function), torch.zeros(4, 8)))
    found = [one.shape for one in report.operations if one.kind == "act"]
    assert found == [str(count) for count in comparisons]
