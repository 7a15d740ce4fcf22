"""`aero.flash_attn` computes what FlashAttention documents, beside loops and sums in float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.python.refusals import assert_refused
from torch import Tensor

from aero import flash_attn

UNIT_ROUNDOFF = 2.0**-24
ALL = (-1, -1)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def expected(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    window: tuple[int, int] = ALL,
    scale: float | None = None,
    softcap: float = 0.0,
    slopes: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Row by row in float64: output [B, T, H, D] and logsumexp [B, H, T]."""
    q, k, v = (x.double() for x in (q, k, v))
    (batch, queries, heads, width), (keys, groups) = q.shape, k.shape[1:3]
    left, right = window[0], 0 if causal else window[1]
    scale = 1 / math.sqrt(width) if scale is None else scale
    rows, sums = [], []
    for b in range(batch):
        for i in range(queries):
            at = i + keys - queries
            seen = [
                j
                for j in range(keys)
                if (left < 0 or j >= at - left) and (right < 0 or j <= at + right)
            ]
            for h in range(heads):
                g = h // (heads // groups)
                scores = scale * (k[b, seen, g] @ q[b, i, h])
                if softcap:
                    scores = softcap * torch.tanh(scores / softcap)
                if slopes is not None:
                    slope = slopes[b, h] if slopes.dim() == 2 else slopes[h]
                    scores = scores - slope.double() * abs(at - torch.tensor(seen))
                rows.append(torch.softmax(scores, 0) @ v[b, seen, g])
                sums.append(torch.logsumexp(scores, 0))
    out = torch.stack(rows).view(batch, queries, heads, width)
    return out, torch.stack(sums).view(batch, queries, heads).transpose(1, 2)


WINDOWS = [ALL, (2, 0), (0, 0), (3, 1), (-1, 2), (2, -1), (50, 0), (50, 50)]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [(7, 7), (3, 8), (1, 8), (5, 2), (1, 1)], ids=str)
def test_outputs_and_gradients_are_those_of_sums_in_float64(
    sizes: tuple[int, int], causal: bool, window: tuple[int, int]
) -> None:
    queries, keys = sizes
    q, dout = randn(2, queries, 4, 8), randn(2, queries, 4, 8, seed=3)
    k, v = randn(2, keys, 2, 8, seed=1), randn(2, keys, 2, 8, seed=2)
    operands = [x.requires_grad_() for x in (q, k, v)]
    out = flash_attn.flash_attn_func(*operands, causal=causal, window_size=window)
    wanted, _ = expected(*operands, causal=causal, window=window)
    allowed = 32 * UNIT_ROUNDOFF  # sums of up to eight products, of numbers of about one
    assert (out - wanted).abs().max() <= allowed * 4
    found = torch.autograd.grad(out, operands, dout)
    exact = torch.autograd.grad(wanted, operands, dout.double(), materialize_grads=True)
    for one, other in zip(found, exact, strict=True):
        assert (one - other).abs().max() <= 16 * allowed * max(1.0, float(other.abs().max()))


def test_the_scale_is_that_of_the_argument() -> None:
    q, k, v = (randn(1, 5, 2, 8, seed=n) for n in range(3))
    out = flash_attn.flash_attn_func(q, k, v, softmax_scale=0.7)
    torch.testing.assert_close(out.double(), expected(q, k, v, scale=0.7)[0], atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("shape", [(4,), (2, 4)], ids=["of heads", "of sequences"])
@pytest.mark.parametrize("sizes", [(6, 6), (2, 7)], ids=str)
def test_soft_caps_and_slopes_are_those_of_sums_in_float64(
    sizes: tuple[int, int], shape: tuple[int, ...]
) -> None:
    q, k, v = (randn(2, n, h, 8, seed=n) for n, h in ((sizes[0], 4), (sizes[1], 2), (sizes[1], 2)))
    slopes = randn(*shape).abs()
    asked = {"causal": True, "softcap": 0.7}
    out = flash_attn.flash_attn_func(q, k, v, **asked, alibi_slopes=slopes)
    wanted, _ = expected(q, k, v, **asked, slopes=slopes)
    torch.testing.assert_close(out.double(), wanted, atol=1e-6, rtol=1e-5)
    lengths = torch.tensor([sizes[1] - 1, sizes[1]])
    out = flash_attn.flash_attn_with_kvcache(
        q, k, v, cache_seqlens=lengths, **asked, alibi_slopes=slopes
    )
    for row, length in enumerate(lengths.tolist()):
        of_row = slopes[row] if slopes.dim() == 2 else slopes
        keys, values = k[row : row + 1, :length], v[row : row + 1, :length]
        wanted, _ = expected(q[row : row + 1], keys, values, **asked, slopes=of_row)
        torch.testing.assert_close(out[row : row + 1].double(), wanted, atol=1e-6, rtol=1e-5)


def test_dropout_keeps_the_mean_and_follows_torchs_seed() -> None:
    q, k = randn(64, 16, 4, 8), randn(64, 16, 4, 8, seed=1)
    v = torch.eye(16, 8)[None, :, None].expand(64, 16, 4, 8)  # eight of the weights
    torch.manual_seed(0)
    out = flash_attn.flash_attn_func(q, k, v, dropout_p=0.25)
    torch.manual_seed(0)
    assert torch.equal(out, flash_attn.flash_attn_func(q, k, v, dropout_p=0.25))
    whole = flash_attn.flash_attn_func(q, k, v)
    kept = out != 0
    torch.testing.assert_close(out[kept], whole[kept] / 0.75)
    share = 1 - float(kept.float().mean())
    assert abs(share - 0.25) < 6 * math.sqrt(0.25 * 0.75 / out.numel())


def test_packed_sequences_do_not_see_each_other() -> None:
    q, k, v = randn(9, 4, 8), randn(11, 2, 8, seed=1), randn(11, 2, 8, seed=2)
    starts_q, starts_k = torch.tensor([0, 4, 4, 9]), torch.tensor([0, 5, 6, 11])
    out = flash_attn.flash_attn_varlen_func(
        q, k, v, starts_q.int(), starts_k.int(), 5, 5, causal=True, window_size=(2, 0)
    )
    for number in range(3):
        rows = slice(*starts_q[number : number + 2].tolist())
        keys = slice(*starts_k[number : number + 2].tolist())
        if rows.stop > rows.start:
            wanted, _ = expected(
                q[None, rows], k[None, keys], v[None, keys], causal=True, window=(2, 0)
            )
            torch.testing.assert_close(out[rows].double(), wanted[0], atol=1e-6, rtol=1e-5)
    assert out.shape == (9, 4, 8)


PACKED_OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "window": {"window_size": (2, 1)},
    "causal window": {"causal": True, "window_size": (1, 0)},
    "window wider than a sequence": {"window_size": (6, 0)},
    "soft cap": {"causal": True, "softcap": 0.7, "softmax_scale": 0.9},
    "slopes of heads": {"causal": True, "alibi_slopes": torch.tensor([0.1, 0.5, 1.0, 2.0])},
    "slopes of sequences": {"causal": True, "alibi_slopes": randn(4, 4, seed=9).abs()},
}


@pytest.mark.parametrize("lengths", [(4, 1, 0, 5), (0, 3, 3, 0)], ids=str)
@pytest.mark.parametrize("name", PACKED_OPTIONS)
def test_packed_sequences_have_the_outputs_and_gradients_of_separate_sums(
    name: str, lengths: tuple[int, ...]
) -> None:
    options = dict(PACKED_OPTIONS[name])
    keys = [2 * n for n in lengths] if name in ("plain", "causal") else list(lengths)
    starts_q, starts_k = (
        torch.tensor([0, *each], dtype=torch.int32).cumsum(0).int() for each in (lengths, keys)
    )
    q, dout = randn(sum(lengths), 4, 8), randn(sum(lengths), 4, 8, seed=3)
    k, v = randn(sum(keys), 2, 8, seed=1), randn(sum(keys), 2, 8, seed=2)
    operands = [x.requires_grad_() for x in (q, k, v)]
    out = flash_attn.flash_attn_varlen_func(*operands, starts_q, starts_k, 9, 9, **options)
    slopes = options.pop("alibi_slopes", None)
    words = {"window_size": "window", "softmax_scale": "scale"}
    asked = {words.get(word, word): value for word, value in options.items()}
    parts = []
    for n, length in enumerate(lengths):
        if length:
            rows = slice(int(starts_q[n]), int(starts_q[n + 1]))
            seen = slice(int(starts_k[n]), int(starts_k[n + 1]))
            of_sequence = slopes[n] if slopes is not None and slopes.dim() == 2 else slopes
            one = (q[None, rows], k[None, seen], v[None, seen])
            parts.append(expected(*one, **asked, slopes=of_sequence)[0][0])
    wanted = torch.cat(parts)
    allowed = 32 * UNIT_ROUNDOFF  # as above
    assert (out - wanted).abs().max() <= allowed * 4
    found = torch.autograd.grad(out, operands, dout)
    exact = torch.autograd.grad(wanted, operands, dout.double(), materialize_grads=True)
    for mine, other in zip(found, exact, strict=True):
        assert (mine - other).abs().max() <= 16 * allowed * max(1.0, float(other.abs().max()))


def test_packed_sequences_are_one_call_with_the_dropout_of_separate_calls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[dict[str, object]] = []
    attention_entropy = flash_attn.attention_entropy

    def counted(*operands: Tensor, **options: object) -> object:
        calls.append(options)
        return attention_entropy(*operands, **options)

    monkeypatch.setattr(flash_attn, "attention_entropy", counted)
    q, starts = randn(9, 4, 8), torch.tensor([0, 4, 9])
    how = {"dropout_p": 0.5, "causal": True}
    torch.manual_seed(0)
    out = flash_attn.flash_attn_varlen_func(q, q, q, starts, starts, 5, 5, **how)
    assert len(calls) == 1
    torch.manual_seed(0)
    slices = q[None, :4], q[None, 4:]
    alone = [flash_attn.flash_attn_func(one, one, one, **how)[0] for one in slices]
    torch.testing.assert_close(out, torch.cat(alone))


def test_packed_sequences_compile_to_one_graph_for_any_lengths() -> None:
    def attend(x: Tensor, starts: Tensor, slopes: Tensor | None) -> Tensor:
        return flash_attn.flash_attn_varlen_func(
            x, x, x, starts, starts, 9, 9, causal=True, window_size=(3, 0), alibi_slopes=slopes
        )

    torch.compiler.reset()
    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    x = randn(9, 4, 8).requires_grad_()
    for starts in ([0, 4, 9], [0, 2, 9]):
        for slopes in (None, torch.tensor([0.1, 0.5, 1.0, 2.0])):
            given = torch.tensor(starts), slopes
            out, wanted = compiled(x, *given), attend(x, *given)
            torch.testing.assert_close(out, wanted)
            found, exact = (torch.autograd.grad(y.square().sum(), x) for y in (out, wanted))
            torch.testing.assert_close(found, exact)
    for starts in ([0, 5], [1, 9], [0, 7, 5, 9]):
        with pytest.raises((ValueError, RuntimeError), match="cu_seqlens_q must be ascending"):
            compiled(x, torch.tensor(starts), None)


@pytest.mark.parametrize("window", [ALL, (3, 0)], ids=str)
@pytest.mark.parametrize("held", [6, [6, 6], [2, 7]], ids=str)
def test_a_cache_is_filled_in_place_and_attended_to(held: object, window: tuple[int, int]) -> None:
    k_cache, v_cache = randn(2, 12, 2, 8, seed=1), randn(2, 12, 2, 8, seed=2)
    before = k_cache.clone(), v_cache.clone()
    q, k, v = randn(2, 3, 4, 8), randn(2, 3, 2, 8, seed=4), randn(2, 3, 2, 8, seed=5)
    lengths = held if isinstance(held, int) else torch.tensor(held, dtype=torch.int32)
    out, lse = flash_attn.flash_attn_with_kvcache(
        q, k_cache, v_cache, k, v, cache_seqlens=lengths, causal=True, window_size=window,
        return_softmax_lse=True,
    )  # fmt: skip
    for row, length in enumerate([held] * 2 if isinstance(held, int) else held):
        for cache, old, new in zip((k_cache, v_cache), before, (k, v), strict=True):
            assert torch.equal(cache[row, length : length + 3], new[row])
            assert torch.equal(cache[row, :length], old[row, :length])
            assert torch.equal(cache[row, length + 3 :], old[row, length + 3 :])
        keys, values = (x[row : row + 1, : length + 3] for x in (k_cache, v_cache))
        wanted = expected(q[row : row + 1], keys, values, causal=True, window=window)
        torch.testing.assert_close(out[row : row + 1].double(), wanted[0], atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(lse[row : row + 1].double(), wanted[1], atol=1e-6, rtol=1e-5)


def test_a_cache_without_lengths_is_full_and_takes_nothing_new() -> None:
    q, k, v = randn(1, 2, 2, 8), randn(1, 6, 2, 8, seed=1), randn(1, 6, 2, 8, seed=2)
    out = flash_attn.flash_attn_with_kvcache(q, k, v)
    torch.testing.assert_close(out.double(), expected(q, k, v)[0], atol=1e-6, rtol=1e-5)
    part = flash_attn.flash_attn_with_kvcache(q, k, v, cache_seqlens=4)
    wanted, _ = expected(q, k[:, :4], v[:, :4])
    torch.testing.assert_close(part.double(), wanted, atol=1e-6, rtol=1e-5)


Q = torch.zeros(1, 4, 2, 8)
CACHE = torch.zeros(1, 5, 2, 8)


def packed(queries: list[int], keys: tuple[int, ...] = (0, 4), **options: Any) -> Any:
    starts = torch.tensor(queries), torch.tensor(keys)
    return flash_attn.flash_attn_varlen_func(Q[0], Q[0], Q[0], *starts, 4, 4, **options)


def cached(*new: Tensor, **options: Any) -> Any:
    return flash_attn.flash_attn_with_kvcache(Q, CACHE, CACHE, *new, **options)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda: flash_attn.flash_attn_func(Q, Q, Q, return_attn_probs=True),
            ("flash_attn_func: return_attn_probs is not",),
        ),
        (
            lambda: packed([0, 4], block_table=torch.zeros(1, 1)),
            ("flash_attn_varlen_func: block_table is not supported",),
        ),
        *(
            (lambda name=name: cached(**{name: torch.zeros(4)}), (f"kvcache: {name} is not supp",))
            for name in ("rotary_cos", "cache_batch_idx", "cache_leftpad", "block_table")
        ),
        (
            lambda: flash_attn.flash_attn_func(Q[0], Q, Q),
            ("flash_attn_func: q", "[B, T, H, D]", "got [4, 2, 8"),
        ),
        (
            lambda: flash_attn.flash_attn_func(Q, Q, Q, window_size=(1, 2, 3)),
            ("window_size", "two integers"),
        ),
        *(
            (lambda at=at: packed(at), ("cu_seqlens_q", "rise from 0 to the 4 tokens"))
            for at in ([0, 5], [1, 4], [0, 3, 2, 4])
        ),
        (lambda: packed([0, 1, 4]), ("the same one or more sequences", "got 2 and 1")),
        (lambda: cached(Q, Q), ("cache_seqlens where k is given",)),
        (lambda: cached(Q, Q, cache_seqlens=3), ("room for 3 + 4 keys", "got a cache of 5")),
        (lambda: cached(cache_seqlens=torch.tensor([1, 2])), ("cache_seqlens", "an integer or")),
        (lambda: cached(Q, cache_seqlens=0), ("k and v together",)),
        (lambda: flash_attn.flash_attn_func(None, Q, Q), ("q must be a tensor", "got NoneType")),
        (lambda: packed([0, 4], alibi_slopes=torch.ones(2, 2)), ("alibi_slopes", "[1, 2]")),
        (
            lambda: flash_attn.flash_attn_varlen_func(
                Q[0], Q[0], Q[0], torch.tensor([0.0, 4.0]), torch.tensor([0, 4]), 4, 4
            ),
            ("cu_seqlens_q", "a tensor of integers", "got torch.float32"),
        ),
        (
            lambda: flash_attn.flash_attn_varlen_func(Q[0], Q[0], Q[0], [0, 4], [0, 4], 4, 4),
            ("cu_seqlens_q", "a tensor of integers", "got list"),
        ),
        (lambda: cached(cache_seqlens=torch.tensor([1.0])), ("cache_seqlens", "an integer or")),
        (lambda: cached(cache_seqlens=3.0), ("cache_seqlens", "an integer or", "got 3.0")),
    ],
)
def test_arguments_that_do_not_fit_are_named(
    call: Callable[[], Any], named: tuple[str, ...]
) -> None:
    assert_refused(call, *named)


# What would be repeated, cut or cast where it does not fit, and options that attention refuses.
@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"q": torch.ones(3, 1, 4, 8)}, ("k_cache", "[3, any, any, 8]")),
        ({"q": torch.ones(2, 1, 4, 6)}, ("k_cache", "[2, any, any, 6]")),
        ({"v_cache": torch.zeros(2, 6, 2, 8)}, ("v_cache", "[2, 5, 2, any]")),
        ({"k": torch.ones(2, 1, 1, 8)}, ("k must be", "[2, any, 2, 8]", "got [2, 1, 1, 8]")),
        ({"k": torch.ones(2, 1, 2, 1)}, ("k must be", "[2, any, 2, 8]")),
        ({"k": torch.ones(3, 1, 2, 8)}, ("k must be", "[2, any, 2, 8]")),
        ({"k": torch.ones(2, 3, 2, 8)}, ("v must be", "[2, 3, 2, 8]", "got [2, 1, 2, 8]")),
        ({"k": torch.ones(2, 1, 2, 8).double()}, ("k must be", "float32 like q", "float64")),
        ({"window_size": (1, 2, 3)}, ("window_size",)),
        ({"softcap": -1.0}, ("softcap", "from 0", "got -1.0")),
        ({"softmax_scale": math.nan}, ("softmax_scale", "got nan")),
        ({"alibi_slopes": torch.ones(3, 4)}, ("alibi_slopes", "[2, 4]", "got [3, 4]")),
    ],
)
@pytest.mark.parametrize("held", [3, torch.tensor([3, 2])])
def test_a_refused_call_leaves_the_cache_as_it_was(
    changed: dict[str, Any], named: tuple[str, ...], held: object
) -> None:
    caches = {"k_cache": torch.zeros(2, 5, 2, 8), "v_cache": torch.zeros(2, 5, 2, 8)}
    new = {"k": torch.ones(2, 1, 2, 8), "v": torch.ones(2, 1, 2, 8)}
    arguments = {"q": torch.ones(2, 1, 4, 8), **caches, **new, "cache_seqlens": held, **changed}
    assert_refused(lambda: flash_attn.flash_attn_with_kvcache(**arguments), *named)
    assert not any(cache.any() for cache in caches.values())


def test_numbers_of_numpy_count_keys_and_windows() -> None:
    given = flash_attn.flash_attn_with_kvcache(
        Q, CACHE, CACHE, cache_seqlens=np.int64(3), window_size=(np.int64(1), np.int64(0))
    )
    assert torch.equal(given, cached(cache_seqlens=torch.tensor(3), window_size=(1, 0)))


class Tiny(torch.nn.Module):
    """A language model with windows and grouped heads that calls a function of this interface."""

    def __init__(self, attention: object) -> None:
        super().__init__()
        self.attention = attention
        self.embedding = torch.nn.Embedding(16, 32)
        self.projections = torch.nn.ModuleList(torch.nn.Linear(32, 64) for _ in range(2))
        self.outputs = torch.nn.ModuleList(torch.nn.Linear(32, 32) for _ in range(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for window, project, give in zip((8, 100), self.projections, self.outputs, strict=True):
            heads = project(torch.nn.functional.rms_norm(x, (32,)))
            q, k, v = (y.unflatten(-1, (-1, 8)) for y in heads.split((32, 16, 16), dim=-1))
            seen = self.attention(q, k, v, causal=True, window_size=(window, 0))
            x = x + give(seen.flatten(2))
        return torch.nn.functional.cross_entropy(
            (x[:, :-1] @ self.embedding.weight.T).flatten(0, 1), tokens[:, 1:].flatten()
        )


def fallback(q: Tensor, k: Tensor, v: Tensor, causal: bool, window_size: tuple[int, int]) -> Tensor:
    """Torch's attention with a mask of T x T."""
    rows, columns = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])
    mask = (columns <= rows) & (columns >= rows - window_size[0])
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    attend = torch.nn.functional.scaled_dot_product_attention
    return attend(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def test_a_model_of_this_interface_trains_as_with_its_fallback() -> None:
    losses = []
    tokens = torch.randint(16, (2, 40), generator=torch.Generator().manual_seed(0))
    for attention in (flash_attn.flash_attn_func, fallback):
        torch.manual_seed(0)
        model = Tiny(attention)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        losses.append([])
        for _ in range(20):
            loss = model(tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[-1].append(float(loss.detach()))
    assert losses[0][-1] < 0.8 * losses[0][0]
    torch.testing.assert_close(torch.tensor(losses[0]), torch.tensor(losses[1]), rtol=1e-4, atol=0)
