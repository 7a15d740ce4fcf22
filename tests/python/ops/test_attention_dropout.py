"""Dropout of attention weights, and packed sequences, which have a seed each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from tests.python.refusals import assert_refused
from torch import Tensor

from aero.ops import attention_entropy


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def kept(seeds: Tensor, p: float, heads: int, queries: int, keys: int) -> Tensor:
    """The mask of dropout by the description in kernels/dropout.h, in NumPy's own words."""
    with np.errstate(over="ignore"):

        def mixed(x: Any) -> Any:
            x = x + np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            return x ^ (x >> np.uint64(31))

        rows = mixed(seeds.numpy().astype(np.uint64))[:, None] + np.arange(heads, dtype=np.uint64)
        rows = mixed(mixed(rows)[..., None] + np.arange(queries, dtype=np.uint64))[..., None]
        low, high = rows.astype(np.uint32), (rows >> np.uint64(32)).astype(np.uint32)
        x = np.arange(keys, dtype=np.uint32) * np.uint32(0x9E3779B9) + low
        x = (x ^ (x >> np.uint32(16))) * np.uint32(0x7FEB352D)
        x = (x ^ (x >> np.uint32(15)) ^ high) * np.uint32(0x846CA68B)
        x = x ^ (x >> np.uint32(16))
    return torch.from_numpy(x.astype(np.int64) >= int(p * 2**32))


def seeds_of(call: int, batch: int) -> Tensor:
    torch.manual_seed(call)
    return torch.randint(2**63 - 1, (batch,))


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("queries", [3, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_dropout_drops_the_weights_that_the_hash_says(
    queries: int, dtype: torch.dtype, backend: Any
) -> None:
    q, k = draw(2, 3, queries, 16).to(dtype), draw(2, 3, 100, 16, seed=1).to(dtype)
    v = torch.eye(100, dtype=dtype).expand(2, 3, 100, 100)
    width = torch.nn.functional.pad
    torch.manual_seed(5)
    weights, entropy, logsumexp = attention_entropy(
        width(q, (0, 84)), width(k, (0, 84)), v, dropout_p=0.3, scale=0.25, backend=backend
    )
    mask = kept(seeds_of(5, 2), 0.3, 3, queries, 100)
    assert torch.equal(weights != 0, mask)
    whole = attention_entropy(width(q, (0, 84)), width(k, (0, 84)), v, scale=0.25, backend=backend)
    torch.testing.assert_close(weights.float(), whole[0].float() * mask / 0.7, atol=0, rtol=1e-2)
    assert torch.equal(entropy, whole[1])
    assert torch.equal(logsumexp, whole[2])


@pytest.mark.parametrize("queries", [2, 40])
def test_gradients_go_through_the_weights_that_dropout_kept(
    queries: int, relative_error: Any
) -> None:
    q, k, v = draw(2, 2, queries, 8), draw(2, 2, 50, 8, seed=1), draw(2, 2, 50, 8, seed=2)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.manual_seed(9)
    out, entropy, _ = attention_entropy(q, k, v, dropout_p=0.5)
    got = torch.autograd.grad((out * draw(*out.shape)).sum() + entropy.sum(), leaves)
    q2, k2, v2 = (x.detach().double().requires_grad_() for x in leaves)
    p = (q2 @ k2.mT / math.sqrt(8)).softmax(-1)
    dropped = p * kept(seeds_of(9, 2), 0.5, 2, queries, 50) / 0.5
    loss = (dropped @ v2 * draw(*out.shape)).sum() - (p * p.log()).sum()
    for one, other in zip(got, torch.autograd.grad(loss, [q2, k2, v2]), strict=True):
        assert relative_error(one, other) < 1e-5


def test_dropout_follows_the_seed_and_drops_its_share() -> None:
    q, k, v = draw(3, 4, 8, 128, 16)
    outs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        outs.append(attention_entropy(q, k, v, dropout_p=0.1)[0])
    assert torch.equal(outs[0], outs[1])
    assert not torch.equal(outs[0], outs[2])
    for p in (0.1, 0.5, 0.9):
        share = kept(torch.arange(16), p, 8, 128, 128).double().mean().item()
        deviation = math.sqrt(p * (1 - p) / (16 * 8 * 128 * 128))
        assert abs(share - (1 - p)) < 5 * deviation


def test_dropout_is_the_same_in_one_thread_and_in_many() -> None:
    q, k, v = draw(1, 1, 130, 16), draw(1, 1, 900, 16, seed=1), draw(1, 1, 900, 16, seed=2)
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            for rows in (q, q[:, :, :2]):
                torch.manual_seed(3)
                found.append(attention_entropy(rows, k, v, dropout_p=0.4)[0])
    finally:
        torch.set_num_threads(threads)
    torch.testing.assert_close(found[:2], found[2:])
    torch.testing.assert_close(found[0][:, :, :2], found[1])


def packed_arguments() -> dict[str, Any]:
    q, k, v = draw(1, 4, 83, 24), draw(1, 2, 150, 24, seed=1), draw(1, 2, 150, 24, seed=2)
    return {
        "q": q.requires_grad_(),
        "k": k.transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(),
        "v": v.requires_grad_(),
        "temperature": (1 + draw(4, 83, seed=3).abs()).requires_grad_(),
        "sinks": draw(4, seed=4).requires_grad_(),
        "alibi_slopes": (0.1 * draw(4, seed=5).abs()).requires_grad_(),
    }


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 8])
def test_packed_sequences_are_separate_calls(
    dtype: torch.dtype, threads: int, backend: Any
) -> None:
    given = packed_arguments()
    for name in ("q", "k", "v") if dtype == torch.bfloat16 else given:
        given[name] = given[name].detach().to(dtype).requires_grad_()
    queries, keys = [0, 1, 1, 70, 83], [0, 9, 9, 110, 150]
    options = {"is_causal": True, "window": (40, None), "softcap": 3.0, "dropout_p": 0.2}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        torch.manual_seed(0)
        starts = tuple(torch.tensor(x, dtype=torch.int32) for x in (queries, keys))
        packed = attention_entropy(**given, cu_seqlens=starts, backend=backend, **options)
        seeds = seeds_of(0, 4)
        separate = []
        for n in range(4):
            rows, of_keys = slice(*queries[n : n + 2]), slice(*keys[n : n + 2])
            part = given | {"q": given["q"][:, :, rows]}
            part |= {x: given[x][:, :, of_keys] for x in ("k", "v")}
            part["temperature"] = given["temperature"][:, rows]
            drawn = pytest.MonkeyPatch()
            with drawn.context() as patch:
                patch.setattr(torch, "randint", lambda *_, n=n, **__: seeds[n : n + 1])
                separate.append(attention_entropy(**part, backend="native", **options))
        joined = [torch.cat(x, 2) for x in zip(*separate, strict=True)]
        leaves = list(given.values())
        found = []
        for results in (packed, joined):
            finite = [torch.where(x.isfinite(), x, 0).double() for x in results]
            loss = sum((x * draw(*x.shape)).sum() for x in finite)
            found.append([*results, *torch.autograd.grad(loss, leaves)])
    finally:
        torch.set_num_threads(before)
    allowed = {torch.float32: 2e-5, torch.float64: 1e-10, torch.bfloat16: 0.05}[dtype]
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, atol=allowed, rtol=allowed)


@pytest.mark.parametrize(
    ("starts", "options", "named"),
    [
        ([0, 5], {}, ("cu_seqlens_q", "ascending from 0 to 9")),
        ([1, 9], {}, ("cu_seqlens_q", "ascending")),
        ([0, 7, 5, 9], {}, ("cu_seqlens_q", "ascending")),
        ([[0, 9]], {}, ("cu_seqlens_q", "[N + 1]")),
        ([0, 4, 9], {"rows": 2}, ("B", "1 with cu_seqlens")),
        ([0, 4, 9], {"mask": torch.ones(9, 9).bool()}, ("mask", "left out with cu_seqlens")),
    ],
)
def test_packed_sequences_that_are_none_are_refused(
    starts: Any, options: dict[str, Any], named: tuple[str, ...]
) -> None:
    q, k, v = draw(3, options.pop("rows", 1), 2, 9, 16)
    places = torch.tensor(starts, dtype=torch.int32)
    assert_refused(lambda: attention_entropy(q, k, v, cu_seqlens=places, **options), *named)


def test_second_derivatives_of_packed_sequences_match_finite_differences() -> None:
    starts = torch.tensor([0, 2, 5], dtype=torch.int32)
    leaves = [x.requires_grad_() for x in draw(3, 1, 2, 5, 3).double()]

    def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, entropy, _ = attention_entropy(q, k, v, is_causal=True, cu_seqlens=starts)
        return out.sin().sum() + entropy.square().sum()

    assert torch.autograd.gradgradcheck(call, leaves, fast_mode=True)
