"""Scores and temperatures at the ends of their range, hidden keys and NaN, against the oracle."""

from __future__ import annotations

import math
import platform
from typing import Any

import pytest
import torch
from torch import Tensor

from aero import ops

from . import oracle

INF = math.inf
LOWEST = torch.finfo(torch.float32).min


def row(*values: float, keys: int) -> Tensor:
    """These scores first, then normal ones; finite in float32."""
    scores = torch.randn(keys, generator=torch.Generator().manual_seed(keys))
    scores[: len(values)] = torch.tensor(values)[:keys]
    return scores


#: Contents of a row of S scores; the last entries of the first row are hidden by a mask if there
#: is one.
SCORES: dict[str, Any] = {
    "normal": lambda keys: row(keys=keys),
    "one -inf": lambda keys: row(-INF, keys=keys),
    "all -inf": lambda keys: torch.full((keys,), -INF),
    "one NaN": lambda keys: row(math.nan, keys=keys),
    "NaN first and last": lambda keys: row(math.nan, keys=keys) + row(math.nan, keys=keys).flip(0),
    "one +inf": lambda keys: row(INF, -INF, keys=keys),
    "all -1e30": lambda keys: torch.full((keys,), -1e30),
    "two of -1e30": lambda keys: row(-1e30, -1e30, keys=keys),
    "all the lowest": lambda keys: torch.full((keys,), LOWEST),
    "masked additively": lambda keys: row(LOWEST, LOWEST, keys=keys),
    "all 3e38": lambda keys: torch.full((keys,), 3e38),
    "3e38 and -3e38": lambda keys: row(3e38, -3e38, keys=keys),
    "1e37 apart": lambda keys: torch.linspace(0, 1e37, keys),
}  # fmt: skip
TEMPERATURES = [None, 1.0, -1.0, 0.01, 1e30, -1e30, 1e38, -3e38, INF, -INF]
#: Of these a row of attention holds only the values that q k^T can have within the range.
OF_ATTENTION = [
    "normal", "one NaN", "NaN first and last", "all -1e30", "two of -1e30", "1e37 apart",
]  # fmt: skip


def check(operator: str, tensors: dict[str, Tensor], options: dict[str, Any], backend: str) -> None:
    leaves = {n: x.requires_grad_() for n, x in tensors.items()}
    results = getattr(ops, operator)(**leaves, **options, backend=backend)
    cotangents = [torch.linspace(1, 2, r.numel()).view(r.shape) for r in results]
    gradients = torch.autograd.grad(results, list(leaves.values()), cotangents)
    exact, wanted = oracle.run(operator, tensors, options, cotangents)
    for name, got, want in zip(
        ("result", "entropy", "logsumexp", *leaves),
        (*results, *gradients),
        (*exact, *wanted.values()),
        strict=True,
    ):
        want = want.float()
        senseless = want.isnan()
        if senseless.any():
            if name in ("k", "v", "temperature"):
                continue  # sums over rows, NaN where any is
            assert got[senseless].isnan().all(), name
            if want.dim() == 4:  # keys that such a row does not see may be NaN
                senseless = senseless.any(-1)
        torch.testing.assert_close(
            got[~senseless],
            want[~senseless],
            rtol=2e-5,
            atol=2e-5,
            msg=lambda m, name=name: f"{name}: {m}",
        )


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("name", SCORES)
def test_softmax_of_extremes_is_the_oracles(
    name: str, temperature: float | None, backend: str
) -> None:
    for keys in (1, 2, 5, 16, 33, 70):
        scores = torch.stack([SCORES[name](keys), row(keys=keys)]).view(1, 1, 2, keys)
        tensors = {"scores": scores}
        if temperature is not None:
            tensors["temperature"] = torch.tensor(temperature)
        mask = torch.ones(2, keys, dtype=torch.bool)
        mask[0, keys // 2 + 1 :] = False
        for options in ({}, {"mask": mask}, {"is_causal": True}):
            check("temperature_softmax", tensors, options, backend)


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [1, 20])
@pytest.mark.parametrize("name", OF_ATTENTION)
def test_attention_over_extremes_is_the_oracles(name: str, queries: int, backend: str) -> None:
    """The passes of few queries and those of tiles."""
    for temperature in TEMPERATURES:
        for keys in (1, 5, 33, 70):
            q = torch.ones(1, 1, queries, 1)
            tensors = {"q": q, "k": SCORES[name](keys).view(1, 1, keys, 1)}
            tensors["v"] = torch.linspace(-1, 1, keys).view(1, 1, keys, 1)
            if temperature is not None:
                tensors["temperature"] = torch.tensor(temperature)
            if name == "1e37 apart" and temperature == 0.01:
                continue  # beyond the range of float32
            check("attention_entropy", tensors, {"is_causal": keys > 5}, backend)


@pytest.mark.parametrize("queries", [1, 20])
def test_attention_beyond_the_range_of_float32_is_nan(queries: int) -> None:
    q, v = torch.full((1, 1, queries, 1), 1e20), torch.ones(1, 1, 5, 1)
    for key in (1e20, math.nan, INF):
        for result in ops.attention_entropy(q, torch.full((1, 1, 5, 1), key), v):
            assert result.isnan().all()
    one_low = torch.tensor([0, 0, -1e20, 0, 0]).view(1, 1, 5, 1)
    assert ops.attention_entropy(q, one_low, v)[1].isnan().all()


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("temperature", [1e-20, -1e-20])
def test_equal_scores_have_no_gradient_for_a_temperature_near_zero(
    temperature: float, backend: str
) -> None:
    """1 / t^2 overflows float32: the gradient of a hidden key must not be that times zero."""
    t = torch.tensor(temperature, requires_grad=True)
    q, mask = torch.zeros(1, 1, 2, 4), torch.tensor([[True, True, False], [True, False, False]])
    results = ops.attention_entropy(
        q, q[:, :, :1].expand(1, 1, 3, 4), torch.ones(1, 1, 3, 4), temperature=t, mask=mask,
        backend=backend,
    )  # fmt: skip
    torch.testing.assert_close(results[1], torch.tensor([[[math.log(2), 0.0]]]))
    sum(result.sum() for result in results).backward()
    assert t.grad is not None and t.grad.item() == 0


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="ARM takes them as fast")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_below_the_smallest_normal_number_are_zero(dtype: torch.dtype) -> None:
    """Each takes some 150 cycles on Intel's processors, and keys far down a slope have many."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, 2, 300, 16)
    leaves = [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)
    ]
    smallest = torch.finfo(dtype).tiny
    slopes = -math.log(smallest) / 100 * torch.tensor([1, 2], dtype=dtype)
    out, entropy, _ = ops.attention_entropy(*leaves, alibi_slopes=slopes, is_causal=True)
    dscores = out.sum() + entropy.sum()
    last = dscores - out[..., :150, :].sum() - entropy[..., :150].sum()
    for gradient in torch.autograd.grad(last, leaves):
        sizes = gradient[gradient != 0].abs()
        assert sizes.numel() and sizes.min() >= smallest
    assert torch.tensor(smallest, dtype=dtype) / 4 != 0  # as before the call
