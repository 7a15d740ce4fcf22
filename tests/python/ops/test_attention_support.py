"""The tables of attention's features (docs/reference/attention.md): each cell of the CPU and of
the transforms, and which tests hold those of CUDA."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tests.python.test_cuda_launchers import WRONG_INPUT
from torch import Tensor
from torch.func import jacfwd, jacrev, vmap
from torch.utils._pytree import tree_leaves

from aero.ops import attention_entropy

from . import transforms
from .attention_support import (
    CPU,
    DIRECTIONS,
    DTYPES,
    EMULATED,
    FEATURES,
    PAGE,
    REFUSED,
    ROOT,
    TRANSFORMS,
    WIDTHS,
    Sizes,
    dtypes_on_cuda,
    name,
    page,
    refuses_randomness,
)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_feature_of_the_table_agrees_with_the_reference_in_float64(
    feature: str, direction: str, dtype: torch.dtype, relative_error: Any
) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    n, batch = Sizes(DIRECTIONS[direction]), 1 if feature == "`cu_seqlens`" else 2
    width, value_width = WIDTHS.get(feature, (24, 24))
    q = draw(batch, n.heads, n.queries, width).to(dtype).requires_grad_()
    k, v = (draw(batch, 2, n.keys, w).to(dtype).requires_grad_() for w in (width, value_width))
    given = {
        name: x.double()
        if dtype == torch.float64 and isinstance(x, Tensor) and name != "mask"
        else x
        for name, x in FEATURES[feature](draw, n).items()
    }
    learned = {
        name: x.requires_grad_()
        for name, x in given.items()
        if isinstance(x, Tensor) and name != "mask"
    }
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    exact_given = {
        name: x.detach().double().requires_grad_(name in learned)
        if isinstance(x, Tensor) and x.is_floating_point()
        else x
        for name, x in given.items()
    }
    torch.manual_seed(3)
    results = attention_entropy(q, k, v, **given)
    torch.manual_seed(3)
    wanted = attention_entropy(*exact, **exact_given, backend="reference")
    if "return_max_logits" in given:  # nobody's rounding decides between keys here
        assert torch.equal(results[4], wanted[4]) or dtype in (torch.bfloat16, torch.float16)
        results, wanted = results[:4], wanted[:4]
    leaves = [q, k, v, *learned.values()]
    exact_leaves = [*exact, *(exact_given[name] for name in learned)]
    if "backward" in direction:
        weights = [draw(*x.shape) for x in results]
        results, wanted = (
            torch.autograd.grad([(x * w).sum() for x, w in zip(found, weights, strict=True)], at)
            for found, at in ((results, leaves), (wanted, exact_leaves))
        )
    # Four roundings of the dtype; statistics and their sums are float32 at least.
    allowed = max(4 * torch.finfo(dtype).eps, 1e-5 if dtype != torch.float64 else 1e-12)
    for got, want in zip(results, wanted, strict=True):
        assert relative_error(got, want) <= allowed


def small_call(feature: str, backend: Any) -> transforms.Call:
    """A call of attention in float64, as a function of the tensors that have gradients."""
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    n, widths = Sizes(5, heads=2, keys=6), {"values of another width": (2, 3)}
    if feature == "heads of 257 to 512 columns":  # its Hessian has the square of all numbers
        n, widths = Sizes(1, heads=1, keys=2), {feature: (257, 257)}
    width, value_width = widths.get(feature, (2, 2))
    qkv = draw(1, n.heads, n.queries, width), draw(1, 1, n.keys, width)
    given = FEATURES[feature](draw, n)
    learned = [x for x, y in given.items() if isinstance(y, Tensor) and x != "mask"]
    arguments = (*qkv, draw(1, 1, n.keys, value_width), *(given.pop(name) for name in learned))

    def function(q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> tuple[Tensor, ...]:
        torch.manual_seed(1)  # of the dropout
        more = dict(zip(learned, rest, strict=True))
        results = attention_entropy(q, k, v, **more, **given, backend=backend)
        return tuple(x for x in results if x.is_floating_point())

    return transforms.Call(function, arguments, tuple(draw(*x.shape) for x in arguments))


def assert_same(found: Any, wanted: Any) -> None:
    for got, want in zip(tree_leaves(found), tree_leaves(wanted), strict=True):
        if want is None or got is None:  # torch's tangent of what depends on nothing
            assert got is None or not got.any()
            assert want is None or not want.any()
        else:
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_under_every_transform_agrees_with_the_reference(feature: str) -> None:
    native, reference = (small_call(feature, backend) for backend in ("native", "reference"))
    for transform, apply in transforms.EAGER.items():
        if not refuses_randomness(feature, transform):
            assert_same(apply(native), apply(reference))
            continue
        for call in (native, reference):
            with pytest.raises(RuntimeError, match="randomness"):
                apply(call)


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_dropout_under_transforms_takes_the_randomness_that_torch_asks_for(
    randomness: str,
) -> None:
    native, reference = (small_call("`dropout_p`", each) for each in ("native", "reference"))
    batched = vmap(native.function, randomness=randomness)(*native.batch())
    assert_same(batched, vmap(reference.function, randomness=randomness)(*reference.batch()))

    def jacobian(call: transforms.Call) -> Any:
        return jacfwd(call.function, call.all, randomness=randomness)(*call.arguments)

    def second(call: transforms.Call) -> Any:
        inner = jacrev(call.scalar, call.all)
        return jacfwd(inner, call.all, randomness=randomness)(*call.arguments)

    assert_same(jacobian(native), jacobian(reference))
    assert_same(second(native), second(reference))


def test_every_direction_is_in_one_column_of_the_table() -> None:
    assert [each for column in CPU.values() for each in column] == list(DIRECTIONS)


def test_every_transform_that_needs_no_compiler_is_in_one_column_of_the_table() -> None:
    listed = [row for column in TRANSFORMS.values() for row in column]
    assert sorted(listed) == sorted(transforms.EAGER)


CUDA_TESTS = ROOT / "tests" / "cpp" / "kernels" / "cuda"


@pytest.mark.parametrize("feature", EMULATED)
def test_a_cell_of_cuda_is_computed_on_the_emulated_gpu_in_both_directions(feature: str) -> None:
    checks = (CUDA_TESTS / "attention_entropy_emulation_checks.h").read_text()
    for both in ("expect_results(p, reference", "expect_gradients(p, reference"):
        assert both in checks
    start = f"TEST({EMULATED[feature]}) {{"
    sources = [path.read_text() for path in CUDA_TESTS.glob("attention_*_test.cpp")]
    (source,) = (x for x in sources if start in x)
    body = re.split(r"\n}\n| }\n\n", source.split(start)[1])[0]
    of_all = "for (const Elements& elements : kElements)"
    all_match = source.partition("void expect_all_match(")[2].partition("\n}\n")[0]
    for part in [all_match] if "expect_all_match(" in body else [body]:
        assert of_all in part and "expect_emulation_matches(" in part
    elements = source.partition("kElements = {")[2].partition("};")[0].lower()
    for dtype in dtypes_on_cuda():
        assert f"{{datatype::k{name(dtype)}}}" in elements


@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_either_computed_on_cuda_or_refused_by_its_launchers(feature: str) -> None:
    assert (feature in EMULATED) != (feature in REFUSED)
    if feature in REFUSED:
        assert WRONG_INPUT[REFUSED[feature]].startswith("attention_entropy: ")
    assert "attention in float64" in WRONG_INPUT and torch.float64 not in dtypes_on_cuda()


def test_the_table_in_the_manual_is_the_tested_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/attention.md is stale: python -m tests.python.ops.attention_support"
    )
