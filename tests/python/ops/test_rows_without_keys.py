"""Rows that see no key pass nothing on, whatever comes back to them: inf and NaN times 0 is 0 here.

Gradients with something non-finite there are held against those with zeros there, bit by bit, and
these against the oracle. A loss such as `where(seen, logsumexp**2, 0).sum()` is finite, and what
comes back to a row without keys is NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, jvp

from aero import ops
from aero._library import cpu_isa

from . import oracle

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
#: Largest difference from the oracle, relative to its largest number: a few roundings.
CLOSE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 8e-3, torch.bfloat16: 6e-2}
#: name: (B, H, G, T, S, D), keys that the left padding hides of each batch entry, causal. Sizes for
#: the passes of few queries, of whole heads and of parts of them; rows of whole vectors and others.
SIZES: dict[str, tuple[tuple[int, ...], int, bool]] = {
    "left padding": ((2, 2, 2, 70, 70, 64), 3, True),
    "left padding, one head": ((1, 1, 1, 70, 70, 64), 66, True),
    "narrow rows": ((3, 4, 2, 19, 23, 6), 9, True),
    "more queries than keys": ((1, 2, 1, 21, 9, 16), 0, True),
    "few queries": ((2, 2, 1, 3, 5, 16), 3, True),
    "few queries that see nothing": ((2, 1, 1, 2, 66, 8), 66, False),
    "nothing seen": ((1, 2, 2, 7, 5, 16), 5, False),
    "no keys": ((2, 2, 1, 6, 0, 8), 0, False),
    "no queries": ((2, 2, 1, 0, 6, 8), 0, False),
}


@pytest.fixture(params=["scalar", "avx2", "avx512", "avx512bf16", "amx", "reference"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Every instruction set of this machine, and the plain form."""
    if request.param == "reference":
        yield "reference"
        return
    monkeypatch.setenv("AERO_CPU_ISA", request.param)
    try:
        found = cpu_isa()
    except ValueError:
        found = ""
    if found != request.param:
        pytest.skip(f"this machine has no {request.param}")
    yield "native"


def case(operator: str, name: str, dtype: torch.dtype) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors with gradients, and options."""
    (batch, heads, groups, queries, keys, width), hidden, is_causal = SIZES[name]
    draw = torch.Generator().manual_seed(queries)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64).to(dtype)

    if operator == "temperature_softmax":
        tensors = {"scores": normal(batch, heads, queries, keys)}
    else:
        tensors = {"q": normal(batch, heads, queries, width)}
        tensors |= {x: normal(batch, groups, keys, width) for x in "kv"}
    statistics = torch.float64 if dtype == torch.float64 else torch.float32
    t = 0.5 + torch.rand(heads, queries, generator=draw, dtype=torch.float64)
    tensors["temperature"] = t.to(statistics)
    # The first entry of a batch has the most padding.
    padding = torch.tensor([max(hidden - b, 0) for b in range(batch)])
    mask = torch.arange(keys) >= padding[:, None, None, None]
    options = {"mask": mask if hidden else None, "is_causal": is_causal}
    return {n: x.requires_grad_() for n, x in tensors.items()}, options


def is_empty(operator: str, tensors: dict[str, Tensor], options: dict[str, Any]) -> Tensor:
    """[B, H, T], true where the row sees no key."""
    if operator == "temperature_softmax":
        shape = tensors["scores"].shape
    else:
        shape = torch.Size([*tensors["q"].shape[:3], tensors["k"].shape[2]])
    seen = oracle.visible_keys(shape, options["mask"], options["is_causal"])
    return ~seen.expand(shape).any(-1)


def cotangents_of(results: tuple[Tensor, ...], empty: Tensor, value: float) -> list[Tensor]:
    """Random, and `value` wherever a row is empty."""
    draw = torch.Generator().manual_seed(1)
    found = []
    for r in results:
        x = torch.randn(r.shape, generator=draw, dtype=torch.float64).to(r.dtype)
        rows = empty[..., None].expand(r.shape) if r.dim() == 4 else empty
        found.append(x.masked_fill(rows, value))
    return found


def gradients(
    results: tuple[Tensor, ...], tensors: dict[str, Tensor], cotangents: list[Tensor | None]
) -> dict[str, Tensor]:
    used = [(r, c) for r, c in zip(results, cotangents, strict=True) if c is not None]
    found = torch.autograd.grad(
        [r for r, _ in used],
        list(tensors.values()),
        [c for _, c in used],
        retain_graph=True,
        allow_unused=True,
        materialize_grads=True,
    )
    return dict(zip(tensors, found, strict=True))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("operator", ["attention_entropy", "temperature_softmax"])
def test_what_comes_back_to_a_row_without_keys_reaches_nobody(
    operator: str, name: str, dtype: torch.dtype, backend: str
) -> None:
    tensors, options = case(operator, name, dtype)
    results = getattr(ops, operator)(**tensors, **options, backend=backend)
    empty = is_empty(operator, tensors, options)
    assert empty.any() or not empty.numel()
    zeros = cotangents_of(results, empty, 0)
    wanted = oracle.run(operator, tensors, options, zeros)[1]
    every = (0, 1, 2)
    for used, value in (
        *(((n,), math.nan) for n in every), (every, math.inf), (every, -math.inf)
    ):  # fmt: skip
        sent = cotangents_of(results, empty, value)
        want, got = (
            gradients(results, tensors, [c if n in used else None for n, c in enumerate(x)])
            for x in (zeros, sent)
        )
        for x in tensors:
            assert torch.equal(got[x], want[x]), (x, used, value)
    for x in tensors:
        assert want[x].isfinite().all()
        error = (want[x].double() - wanted[x]).abs().max() if want[x].numel() else 0
        assert error <= CLOSE[dtype] * max(1, wanted[x].abs().amax() if want[x].numel() else 1), x
    first = want["scores" if operator == "temperature_softmax" else "q"]
    assert not first[empty].any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", SIZES)
def test_what_comes_back_to_a_row_of_its_sink_alone_reaches_no_key(
    name: str, dtype: torch.dtype, backend: str
) -> None:
    """The sink takes what is finite, and what comes back to out reaches not even that."""
    tensors, options = case("attention_entropy", name, dtype)
    sinks = torch.linspace(-1, 1, tensors["q"].shape[1], dtype=tensors["temperature"].dtype)
    leaves = tensors | {"sinks": sinks.requires_grad_()}
    results = ops.attention_entropy(**leaves, **options, backend=backend)
    empty = is_empty("attention_entropy", tensors, options)
    found, wanted = [], []
    for value in (0, 0.7, math.nan, math.inf):
        sent: list[Tensor | None] = list(cotangents_of(results, empty, value))
        found.append(gradients(results, leaves, sent))
        out_alone = sent[:1] + list(cotangents_of(results, empty, 0))[1:]
        wanted.append(gradients(results, leaves, out_alone))
        if math.isfinite(value):
            exact = oracle.run("attention_entropy", leaves, options, sent)[1]
            for x in leaves:
                size = max(1, exact[x].abs().amax()) if exact[x].numel() else 1
                torch.testing.assert_close(
                    found[-1][x].double(), exact[x], rtol=0, atol=CLOSE[dtype] * size
                )
    for x in leaves:
        for got in wanted:
            assert torch.equal(got[x], found[0][x]), x
        if x in "qkv":
            for got in found:
                assert torch.equal(got[x], found[0][x]), x


@pytest.mark.parametrize("operator", ["attention_entropy", "temperature_softmax"])
def test_a_loss_over_the_rows_that_see_keys_has_the_oracles_gradients(
    operator: str, backend: str
) -> None:
    """First and second derivatives: 0 comes back to the other rows, times an infinite logsumexp."""
    tensors, options = case(operator, "narrow rows", torch.float64)
    seen = ~is_empty(operator, tensors, options)

    def number(module: Any, leaves: dict[str, Tensor], **more: Any) -> Tensor:
        _, entropy, logsumexp = getattr(module, operator)(**leaves, **options, **more)
        squares = torch.where(seen, logsumexp**2 * entropy, 0)
        return squares.sum()

    found = []
    for module, more in ((ops, {"backend": backend}), (oracle, {})):
        leaves = {n: x.detach().requires_grad_() for n, x in tensors.items()}
        loss = number(module, leaves, **more)
        first = torch.autograd.grad(
            loss, list(leaves.values()), create_graph=True, materialize_grads=True
        )
        second = torch.autograd.grad(
            [x.sin().sum() for x in first if x.requires_grad],
            list(leaves.values()),
            materialize_grads=True,
        )
        found.append([loss, *first, *second])
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("operator", ["attention_entropy", "temperature_softmax"])
def test_gradients_that_are_differentiated_take_nothing_from_rows_without_keys(
    operator: str,
) -> None:
    """Forward over backward: the plain form of the gradients, with what comes back being NaN."""
    tensors, options = case(operator, "narrow rows", torch.float64)
    empty = is_empty(operator, tensors, options)
    names = list(tensors)

    def tangents(value: float) -> Any:
        def number(*leaves: Tensor) -> Tensor:
            given = dict(zip(names, leaves, strict=True))
            results = getattr(ops, operator)(**given, **options)
            sent = cotangents_of(results, empty, value)
            # Without the product of the empty rows' results, which would be NaN itself.
            pairs = zip(results, sent, strict=True)
            return torch.stack([(c * torch.nan_to_num(r)).nansum() for r, c in pairs]).sum()

        leaves = tuple(x.detach() for x in tensors.values())
        along = tuple(torch.ones_like(x) for x in leaves)
        return jvp(grad(number, tuple(range(len(names)))), leaves, along)

    for got, want in zip(tangents(math.nan), tangents(0), strict=True):
        for a, b in zip(got, want, strict=True):
            assert b.isfinite().all()
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_gradient_of_a_probability_that_is_not_seen_reaches_nobody(
    is_causal: bool, dtype: torch.dtype, backend: str
) -> None:
    """As of `p * log(p)`, where p is 0: hidden by a mask, by a score of -inf, by the diagonal."""
    draw = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 2, 19, 37, generator=draw).to(dtype)
    scores[:, :, ::4, ::3] = -math.inf
    scores[:, :, 5] = -math.inf
    mask = torch.rand(19, 37, generator=draw) < 0.6
    mask[7] = False
    tensors = {"scores": scores.requires_grad_()}
    options: dict[str, Any] = {"mask": mask, "is_causal": is_causal}
    results = ops.temperature_softmax(scores, **options, backend=backend)
    seen = oracle.visible_keys(scores.shape, mask, is_causal) & (scores != -math.inf)
    sent = torch.randn(scores.shape, generator=draw).to(dtype)
    (want,) = torch.autograd.grad(results[0], scores, sent.masked_fill(~seen, 0), retain_graph=True)
    for value in (math.nan, -math.inf):
        hidden = sent.masked_fill(~seen, value)
        (got,) = torch.autograd.grad(results[0], scores, hidden, retain_graph=True)
        assert torch.equal(got, want), value
    exact = oracle.run(
        "temperature_softmax", tensors, options, [sent.masked_fill(~seen, 0), None, None]
    )[1]["scores"]
    assert (want.double() - exact).abs().max() <= CLOSE[dtype]
    assert not want[~seen].any()


@pytest.mark.parametrize("result", [0, 1, 2])
@pytest.mark.parametrize("queries", [3, 70])
def test_what_is_nan_for_a_row_with_keys_is_nan_where_the_row_has_a_part(
    queries: int, result: int, backend: str
) -> None:
    """In its own gradients and those of the keys it sees; other rows and heads have none of it."""
    tensors, options = case("attention_entropy", "left padding", torch.float32)
    tensors = {n: tensors[n].detach()[..., -queries:, :].clone() for n in "qkv"}
    options["mask"] = options["mask"][..., -queries:]
    options["mask"][..., 0] = False
    leaves = {n: x.requires_grad_() for n, x in tensors.items()}
    results = ops.attention_entropy(**leaves, **options, backend=backend)
    sent = torch.ones_like(results[result])
    row = queries - 2
    sent[1, 0, row] = math.nan
    cotangents = [sent if n == result else None for n in range(3)]
    found = gradients(results, leaves, cotangents)
    others = torch.ones(2, 2, dtype=torch.bool)
    others[1, 0] = False
    for x in found.values():
        assert x[others].isfinite().all()
    assert found["q"][1, 0, row].isnan().all()
    assert found["q"][1, 0].isnan().any(-1).sum() == 1
    seen = oracle.visible_keys((2, 2, queries, queries), options["mask"], True)[1, 0, row]
    assert found["k"][1, 0][seen].isnan().all()
    assert result or found["v"][1, 0][seen].isnan().all()


@pytest.mark.parametrize("reduction", ["position_sum", "query_mean"])
def test_a_penalty_without_excess_passes_nothing_on(reduction: str, backend: str) -> None:
    """Rows that do not count, and entropies within the free band, whatever comes back."""
    entropies = torch.full((1, 3, 2, 21), 0.5)
    entropies[:, 0, 0] = 2.0
    thresholds = torch.full((1, 2), 0.25)
    row_mask = torch.arange(21) >= torch.tensor([[5], [0], [21]])
    leaves = [entropies.requires_grad_(), thresholds.requires_grad_()]
    loss = ops.entropy_regularization(
        *leaves, row_mask=row_mask, context_length=7, reduction=reduction, backend=backend
    )
    for value in (math.nan, math.inf):
        dentropies, dthresholds = torch.autograd.grad(
            loss, leaves, torch.tensor(value), retain_graph=True
        )
        outside = torch.zeros(1, 3, 2, 21, dtype=torch.bool)
        outside[:, 0, 0, 5:] = True
        assert not dentropies[~outside].any()
        assert not dentropies[outside].isfinite().any()
        assert dthresholds[0, 1] == 0 and not dthresholds[0, 0].isfinite()
