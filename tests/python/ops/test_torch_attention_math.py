"""What torch computes without its flash attention, with this library's kernels in its place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils.flop_counter import FlopCounterMode

from aero.ops import _torch_math
from aero.ops.torch_attention import accelerate

from .torch_calls import OURS, errors, ran

T = 37
Q, K, V = (2, 3, T, 16), (2, 3, T, 16), (2, 3, T, 16)


@pytest.fixture(autouse=True)
def _few_scores_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_FEWEST_SCORES", "_FEWEST_MASKED_SCORES"):
        monkeypatch.setattr(_torch_math, name, 0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def some_hidden(*shape: int) -> Tensor:
    """A mask of numbers, of which some rows and keys are hidden."""
    mask = drawn(*shape)
    mask[..., 5, :] = mask[..., 7] = -math.inf
    return mask


#: Case -> shapes of q, k and v, and what the call says beside them.
TAKEN: dict[str, tuple[tuple[Any, Any, Any], dict[str, Any]]] = {
    "narrower values": ((Q, K, (2, 3, T, 5)), {"is_causal": True}),
    "wider values": ((Q, K, (2, 3, T, 24)), {"scale": -0.3}),
    "grouped heads, other values": (
        ((2, 6, T, 16), (2, 3, T, 16), (2, 3, T, 5)), {"enable_gqa": True, "is_causal": True},
    ),
    "other values and a mask": ((Q, K, (2, 3, T, 5)), {"attn_mask": some_hidden(T, T) > 0}),
    "a mask of each head": ((Q, K, V), {"attn_mask": some_hidden(3, T, T)}),
    "a mask of booleans of each head": ((Q, K, V), {"attn_mask": some_hidden(3, T, T) > 0}),
    "heads alone": ((Q[1:], K[1:], V[1:]), {"is_causal": True}),
    "heads alone, fewer queries and a mask": (
        ((3, 19, 16), K[1:], (3, T, 5)), {"attn_mask": some_hidden(19, T)},
    ),
    "one head alone": (((59, 16), (59, 16), (59, 5)), {}),
    "two batches": (((2, 2, *Q[1:]), (2, 2, *K[1:]), (2, 2, *V[1:])), {"is_causal": True}),
    "two batches and their masks": (
        ((2, 2, *Q[1:]), (2, 2, *K[1:]), (2, 2, *V[1:])), {"attn_mask": some_hidden(2, 1, 1, T, T)},
    ),
    "a batch of the queries alone": ((Q, (1, *K[1:]), (1, *V[1:])), {}),
    "a batch of the keys alone": (((1, *Q[1:]), K, V), {}),
    "one head of keys": ((Q, (2, 1, T, 16), (2, 1, T, 16)), {"is_causal": True}),
}  # fmt: skip
LEARNED = {
    "of all": (T, T), "of heads": (3, T, T), "of one head": (1, 1, T, T), "of keys": (2, 1, 1, T),
    "of each row": (2, 3, T, T),
}  # fmt: skip


def attended(inputs: list[Tensor], is_in_float64: bool = False, **options: Any) -> list[Tensor]:
    """Output and gradients, of a mask that learns too."""
    options = {
        name: x.double() if is_in_float64 and isinstance(x, Tensor) and x.is_floating_point() else x
        for name, x in options.items()
    }
    inputs = [x.detach().double() if is_in_float64 else x.detach() for x in inputs]
    q, k, v, *mask = (x.requires_grad_() for x in inputs)
    if mask:
        options["attn_mask"] = mask[0]
    out = F.scaled_dot_product_attention(q, k, v, **options)
    cotangent = drawn(*out.shape, dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v, *mask), cotangent)]


def agrees(inputs: list[Tensor], **options: Any) -> None:
    """Asserts that results are ours, as near to float64 as torch's, and like torch's."""
    exact = attended(inputs, is_in_float64=True, **options)
    theirs, ours = attended(inputs, **options), []
    with accelerate():
        assert ran(lambda: ours.extend(attended(inputs, **options))) == OURS
    dtype = inputs[0].dtype
    rounding = (64 if dtype == torch.float64 else 1) * torch.finfo(dtype).eps  # torch's is `exact`
    for own, other in zip(errors(ours, exact), errors(theirs, exact), strict=True):
        assert own <= 2 * other + rounding
    for own_result, other_result in zip(ours, theirs, strict=True):
        assert own_result.dtype == other_result.dtype and own_result.shape == other_result.shape
    assert ours[0].stride() == theirs[0].stride()


@pytest.mark.parametrize("case", TAKEN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_values_and_gradients_are_as_near_to_float64_as_those_of_torch(
    case: str, dtype: torch.dtype
) -> None:
    shapes, options = TAKEN[case]
    if "attn_mask" in options and options["attn_mask"].is_floating_point():
        options = options | {"attn_mask": options["attn_mask"].to(dtype)}
    agrees([drawn(*shape, dtype=dtype) for shape in shapes], **options)


@pytest.mark.parametrize("case", LEARNED)
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32,) * 2, (torch.bfloat16,) * 2, (torch.bfloat16, torch.float32)],
    ids=str,
)
def test_a_mask_that_learns_gets_torchs_gradient(
    case: str, dtypes: tuple[torch.dtype, torch.dtype]
) -> None:
    mask = some_hidden(*LEARNED[case]) if len(LEARNED[case]) < 4 else drawn(*LEARNED[case])
    agrees([*(drawn(*x, dtype=dtypes[0]) for x in (Q, K, V)), mask.to(dtypes[1])])


def test_a_mask_that_learns_goes_with_values_of_another_width() -> None:
    agrees([drawn(*x) for x in (Q, K, (2, 3, T, 5), (3, T, T))])


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_runs_without_gradients(mode: Callable[[], Any]) -> None:
    q, k, v = (drawn(*x) for x in (Q, K, (2, 3, T, 5)))
    mask = torch.nn.Parameter(drawn(T, T))
    with mode():
        want = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        with accelerate():
            found: list[Tensor] = []
            assert ran(
                lambda: found.append(F.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            ) == {"aero::attention_entropy"}
    torch.testing.assert_close(found[0], want)


def test_second_derivatives_and_tangents_are_torchs() -> None:
    q, k, v = (drawn(*x).double().requires_grad_() for x in ((59, 16), (59, 16), (59, 5)))

    def second() -> tuple[Tensor, ...]:
        out = F.scaled_dot_product_attention(q, k, v)
        (first,) = torch.autograd.grad(out.square().sum(), q, create_graph=True)
        return torch.autograd.grad(first.square().sum(), (q, k, v))

    def tangent() -> Tensor:
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(q.detach(), torch.ones_like(q))
            out = F.scaled_dot_product_attention(dual, k.detach(), v.detach())
            return torch.autograd.forward_ad.unpack_dual(out).tangent

    want = *second(), tangent()
    with accelerate():
        torch.testing.assert_close((*second(), tangent()), want, rtol=1e-9, atol=1e-9)


NOT_TAKEN: dict[str, tuple[tuple[Any, Any, Any], dict[str, Any]]] = {
    "causal with fewer queries": (((3, 19, 16), K[1:], V[1:]), {"is_causal": True}),
    "causal with more queries": (((3, 59, 16), K[1:], V[1:]), {"is_causal": True}),
    "values too wide": ((Q, K, (2, 3, T, 520)), {}),
    "no values": ((Q, K, (2, 3, T, 0)), {}),
    "no scale": (((3, T, 16), K[1:], V[1:]), {"scale": math.nan}),
    "one head of queries": (((2, 1, T, 16), K, V), {}),
    "a head of keys for all values": ((Q, (2, 1, T, 16), V), {}),
    "other dimensions": ((Q, K[1:], V[1:]), {}),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_TAKEN)
def test_what_the_kernels_do_not_take_is_computed_by_torch(case: str) -> None:
    shapes, options = NOT_TAKEN[case]
    inputs = [drawn(*shape) for shape in shapes]
    theirs, ours = attended(inputs, **options), []
    with accelerate():
        assert ran(lambda: ours.extend(attended(inputs, **options))) == set()
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("keys", "queries", "has_mask"), [(182, 181, False), (256, 256, True)])
def test_few_scores_stay_torchs_whose_products_are_faster_there(
    keys: int, queries: int, has_mask: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    seen = []
    for rows in (queries - 1, queries):
        inputs = [drawn(4, n, 8) for n in (rows, keys, keys)]
        mask = drawn(rows, keys) if has_mask else None
        with accelerate():
            seen.append(ran(lambda: attended(inputs, attn_mask=mask)))  # noqa: B023
    assert seen == [set(), OURS]


def test_torchs_operators_and_their_weights_are_there_for_who_asks_for_them() -> None:
    inputs = [drawn(*x) for x in (Q, K, V)]
    weights = torch.ops.aten._scaled_dot_product_attention_math(*inputs)[1]
    with accelerate():
        with sdpa_kernel(SDPBackend.MATH):
            assert ran(lambda: attended([*inputs, drawn(T, T)])) == set()
        assert torch.equal(torch.ops.aten._scaled_dot_product_attention_math(*inputs)[1], weights)


def test_subclasses_modes_transforms_and_graphs_stay_torchs() -> None:
    q, k, v = (drawn(*x) for x in (Q, K, (2, 3, T, 5)))

    def attend(*operands: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*operands)

    with accelerate():
        assert ran(lambda: attend(*(TwoTensor(x, x) for x in (q, k, v)))) == set()
        assert ran(lambda: torch.func.vmap(attend)(q, k, v)) == set()
        with FlopCounterMode(display=False):
            assert ran(lambda: attend(q, k, v)) == set()
        assert ran(lambda: torch.compile(attend, backend="aot_eager")(q, k, v)) == set()
        assert attend(*(x.to("meta") for x in (q, k, v))).shape == v.shape
