"""Second derivatives and batching of every sample's arguments, not only of one full call."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp, vmap

from aero import ops
from aero.ops import reference

from . import oracle


def weighted(results: Any, used: Sequence[int] = (0, 1)) -> Tensor:
    """A number of some results, whose second derivatives are not zero."""
    results = results if isinstance(results, tuple) else (results,)
    numbers = [
        (torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view(y.shape) * y.sin()).sum()
        for y in (results[i] for i in used if i < len(results))
    ]
    return torch.stack(numbers).sum()


def drawn(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def directions(tensors: dict[str, Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(x.shape, generator=generator, dtype=x.dtype) for x in tensors.values()]


def test_second_derivatives_of_every_call_are_the_oracles(small_sample: Any) -> None:
    """Backward twice, and forward over backward; all results used, and each alone."""
    inputs = small_sample.inputs(torch.float64)
    names, along = list(inputs.tensors), directions(inputs.tensors)
    results = inputs.run()
    if not results[0].numel():
        return

    def of(module: Any, used: Sequence[int]) -> list[Tensor]:
        def number(*tensors: Tensor) -> Tensor:
            given = dict(zip(names, tensors, strict=True))
            return weighted(getattr(module, inputs.operator)(**given, **inputs.options), used)

        leaves = [x.detach().requires_grad_() for x in inputs.tensors.values()]
        first = torch.autograd.grad(
            number(*leaves), leaves, create_graph=True, materialize_grads=True
        )
        found = list(first)
        second = [(y, d) for y, d in zip(first, along, strict=True) if y.requires_grad]
        if second:
            found += torch.autograd.grad(
                [y for y, _ in second], leaves, [d for _, d in second], materialize_grads=True
            )
        if used == finite:
            every = tuple(range(len(names)))
            plain = tuple(x.detach() for x in leaves)
            found += jvp(grad(number, every), plain, tuple(along))[1]
        return found

    finite = tuple(i for i, y in enumerate(results) if y.isfinite().all())
    for used in {finite, *((i,) for i in finite)}:
        for got, want in zip(of(ops, used), of(oracle, used), strict=True):
            # Some hundred roundings at 1.1e-16 of terms up to a thousand.
            torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("hidden", [math.nan, math.inf, -math.inf, 1e300])
def test_scores_that_are_not_seen_have_no_part_in_second_derivatives(hidden: float) -> None:
    scores = torch.randn(
        1, 2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    mask = torch.tensor([True, True, False, True, True])
    found = []
    for value in (0.0, hidden):
        leaf = scores.masked_fill(~mask, value).requires_grad_()
        t = torch.tensor([0.5, -2.0], dtype=torch.float64, requires_grad=True)
        number = weighted(ops.temperature_softmax(leaf, temperature=t, mask=mask))
        first = torch.autograd.grad(number, [leaf, t], create_graph=True)
        found.append([*first, *torch.autograd.grad([y.sin().sum() for y in first], [leaf, t])])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


def test_a_score_of_minus_infinity_is_a_hidden_key_in_second_derivatives() -> None:
    scores = torch.randn(
        1, 1, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    scores[0, 0, 0, 1], scores[0, 0, 2] = -math.inf, -math.inf
    hidden = scores > -math.inf
    found = []
    for leaf, options in ((scores, {}), (scores.masked_fill(~hidden, 0), {"mask": hidden})):
        leaf = leaf.clone().requires_grad_()
        p, entropy, _ = ops.temperature_softmax(leaf, **options)
        (first,) = torch.autograd.grad(weighted((p, entropy)), leaf, create_graph=True)
        found.append([first, *torch.autograd.grad(first.sin().sum(), leaf)])
    for got, want in zip(*found, strict=True):
        assert torch.equal(got, want)


MASKS = [(5,), (1,), (4, 5), (4, 1), (1, 4, 5), (3, 1, 5), (1, 1, 4, 5), (1, 3, 1, 5), (2, 1, 1, 5),
         (2, 3, 4, 5)]  # fmt: skip


@pytest.mark.parametrize("shape", MASKS)
@pytest.mark.parametrize("place", [None, 0, -1])
def test_a_mask_of_any_shape_is_batched_as_by_a_loop(
    shape: tuple[int, ...], place: int | None
) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    scores = torch.randn(6, 2, 3, 4, 5, generator=generator)
    mask = torch.rand((6, *shape), generator=generator) < 0.7
    given = mask[0] if place is None else mask.movedim(0, place)
    found = vmap(lambda s, m: ops.temperature_softmax(s, mask=m), (0, place))(scores, given)
    for i in range(6):
        want = ops.temperature_softmax(scores[i], mask=mask[0 if place is None else i])
        for got, expected in zip(found, want, strict=True):
            assert torch.equal(got[i], expected)


@pytest.mark.parametrize("shape", [(), (1,), (3,), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize(("of_scores", "of_temperature"), [(0, 0), (0, None), (None, 0), (2, -1)])
def test_gradients_of_a_temperature_are_batched_as_by_a_loop(
    shape: tuple[int, ...], of_scores: int | None, of_temperature: int | None
) -> None:
    generator = torch.Generator().manual_seed(len(shape))
    scores = torch.randn(6, 2, 3, 4, 5, generator=generator, dtype=torch.float64)
    t = 0.5 + torch.rand((6, *shape), generator=generator, dtype=torch.float64)

    def number(scores: Tensor, t: Tensor) -> Tensor:
        return weighted(ops.temperature_softmax(scores, temperature=t, is_causal=True))

    places = (of_scores, of_temperature)
    pairs = list(zip((scores, t), places, strict=True))
    given = [x[0] if d is None else x.movedim(0, d) for x, d in pairs]
    for argument in ((0,), (1,), (0, 1)):
        found = vmap(grad(number, argument), places)(*given)
        for i in range(6):
            one = [x[0 if d is None else i] for x, d in pairs]
            for got, expected in zip(found, grad(number, argument)(*one), strict=True):
                torch.testing.assert_close(got[i], expected, rtol=1e-12, atol=1e-12)


RULES = [
    {"reduction": reduction, "row_mask": row_mask, **rule}
    for reduction, row_mask, rule in itertools.product(
        ("position_sum", "query_mean"),
        (None, torch.tensor([[1, 1, 0, 1, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]]).bool()),
        (
            {"max_entropy": "log_context", "visible_keys": None, "context_length": None},
            {"max_entropy": "log_context", "visible_keys": None, "context_length": 1},
            {"max_entropy": "log_context", "visible_keys": None, "context_length": 9},
            {"max_entropy": "log_visible", "visible_keys": None, "context_length": None},
            {
                "max_entropy": "log_visible",
                "visible_keys": torch.tensor([[0, 1, 2, 3, 9]]).expand(3, 5),
                "context_length": None,
            },
        ),
    )
]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("margin", [0.0, 0.3])
def test_the_penalty_of_each_head_is_the_oracles_of_that_head_alone(
    rule: dict[str, Any], margin: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    entropies = 2 * torch.rand(2, 3, 4, 5, generator=generator, dtype=torch.float64)
    thresholds = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    found = reference.head_penalties(entropies, thresholds, margin=margin, **rule)
    assert found.shape == (2, 4)
    for layer, head in itertools.product(range(2), range(4)):
        one = (slice(layer, layer + 1), slice(None), slice(head, head + 1))
        alone = thresholds[layer, head].view(1, 1)
        want = oracle.entropy_regularization(entropies[one], alone, margin=margin, **rule)
        torch.testing.assert_close(found[layer, head], want, rtol=1e-12, atol=1e-12)
    whole = ops.entropy_regularization(entropies, thresholds, margin=margin, **rule)
    torch.testing.assert_close(whole, found.mean(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str
)
def test_visible_keys_may_be_integers_of_any_size(dtype: torch.dtype) -> None:
    entropies, thresholds = torch.full((1, 1, 1, 3), 0.5), torch.full((1, 1), 0.5)
    loss = ops.entropy_regularization(
        entropies,
        thresholds,
        max_entropy="log_visible",
        visible_keys=torch.tensor([[1, 3, 100]], dtype=dtype),
    )
    # Of three keys the deviation, 0.05, is within the margin, 0.11.
    assert loss.item() == pytest.approx(0.5**2 + (0.5 - 0.5 * math.log(100)) ** 2, rel=1e-6)
