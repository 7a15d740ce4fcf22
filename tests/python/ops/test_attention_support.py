"""The table of attention's features (docs/reference/attention.md): each cell of the CPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from aero.ops import attention_entropy

from .attention_support import DIRECTIONS, DTYPES, FEATURES, HEADS, KEYS, PAGE, WIDTHS, page


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("feature", FEATURES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_feature_of_the_table_agrees_with_the_reference_in_float64(
    feature: str, direction: str, dtype: torch.dtype, relative_error: Any
) -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    queries, batch = DIRECTIONS[direction], 1 if feature == "`cu_seqlens`" else 2
    width, value_width = WIDTHS.get(feature, (24, 24))
    q = draw(batch, HEADS, queries, width).to(dtype).requires_grad_()
    k, v = (draw(batch, 2, KEYS, n).to(dtype).requires_grad_() for n in (width, value_width))
    given = {
        name: x.double()
        if dtype == torch.float64 and isinstance(x, Tensor) and name != "mask"
        else x
        for name, x in FEATURES[feature](draw, queries).items()
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


def test_the_table_in_the_manual_is_the_tested_one() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), (
        "docs/reference/attention.md is stale: python -m tests.python.ops.attention_support"
    )
