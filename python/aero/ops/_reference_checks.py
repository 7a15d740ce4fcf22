"""What `backend="reference"` is given, checked as the operator library checks it.

Left to that library: its own limits, aligned addresses, and temperatures without an inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor


def check_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    temperature: Tensor | None,
    mask: Tensor | None,
    bias: Tensor | None,
    of_heads: dict[str, Tensor | None],
    starts: tuple[Tensor | None, Tensor | None],
) -> None:
    """Refuses what does not fit; `of_heads` broadcast to [B, H]."""
    check = _Check("attention_entropy", q, "q")
    for name, tensor, layout in (("q", q, "[B, H, T, D]"), ("k", k, "[B, G, S, D]")):
        check.require(name, tensor.dim() == 4, layout, tensor)
    check.require("v", v.dim() == 4, "[B, G, S, Dv]", v)
    check.require("q", q.is_floating_point(), "float32, bfloat16, float16 or float64", q.dtype)
    check.require("D", q.shape[3] > 0, "at least 1", q.shape[3])
    (batch, heads, queries, width), (groups, keys) = q.shape, k.shape[1:3]
    check.exact("k", k, "[B, G, S, D]", (batch, groups, keys, width))
    check.exact("v", v, "[B, G, S, Dv]", (batch, groups, keys, v.shape[3]))
    for name, tensor in (("k", k), ("v", v)):
        check.require(name, tensor.dtype == q.dtype, f"{q.dtype} like q", tensor.dtype)
    divides = heads % groups == 0 if groups else heads == 0
    check.require("H", divides, f"a multiple of k's heads ({groups})", heads)
    check.temperature(temperature, (batch, heads, queries))
    scores = (batch, heads, queries, keys)
    check.mask(mask, scores)
    check.broadcast("bias", bias, "[B, H, T, S]", scores)
    for name, given in of_heads.items():
        check.broadcast(name, given, "[B, H]", (batch, heads))
    _check_starts(check, starts, (batch, queries, keys), mask, bias)


def check_softmax(scores: Tensor, temperature: Tensor | None, mask: Tensor | None) -> None:
    """Refuses what does not fit."""
    check = _Check("temperature_softmax", scores, "scores")
    check.require("scores", scores.dim() == 4, "[B, H, T, S]", scores)
    check.temperature(temperature, tuple(scores.shape[:3]))
    check.mask(mask, tuple(scores.shape))


def check_penalty(entropies: Tensor, thresholds: Tensor, row_mask: Tensor | None) -> None:
    """Refuses what does not fit."""
    check = _Check("entropy_regularization", entropies, "entropies")
    check.require("entropies", entropies.dim() == 4, "[L, B, H, T]", entropies)
    layers, batch, heads, rows = entropies.shape
    check.exact("thresholds", thresholds, "[L, H]", (layers, heads))
    if row_mask is not None:
        is_bool = row_mask.dtype == torch.bool
        check.require("row_mask", is_bool, "bool (true where the row counts)", row_mask.dtype)
        check.exact("row_mask", row_mask, "[B, T]", (batch, rows))


def check_ffn(x: Tensor, weight: Tensor, bias: Tensor, scales: dict[str, Tensor]) -> None:
    """Refuses what does not fit."""
    check = _Check("scaled_ffn", x, "x")
    check.require("x", x.dim() > 0, "[..., C]", x)
    check.require("x", x.is_floating_point(), "float32, bfloat16, float16 or float64", x.dtype)
    check.exact("weight", weight, "[C, C]", (x.shape[-1], x.shape[-1]))
    check.exact("bias", bias, "[C]", (x.shape[-1],))
    is_half = x.dtype == torch.float32 and weight.dtype in (torch.bfloat16, torch.float16)
    check.require("weight", is_half or weight.dtype == x.dtype, f"{x.dtype} like x", weight.dtype)
    is_same = bias.dtype == weight.dtype
    check.require("bias", is_same, f"{weight.dtype} like weight", bias.dtype)
    for name, scale in scales.items():
        check.require(name, list(scale.shape) in ([], [1]), "a scalar or [1]", scale)


class _Check:
    def __init__(self, operator: str, like: Tensor, name: str) -> None:
        self.operator, self.device, self.like = operator, like.device, name

    def require(self, name: str, fits: bool, expected: str, got: object) -> None:
        if not fits:
            shown = list(got.shape) if isinstance(got, Tensor) else got
            raise ValueError(f"{self.operator}: {name} must be {expected}, got {shown}")

    def place(self, name: str, tensor: Tensor) -> None:
        expected = f"on {self.device.type} like {self.like}"
        self.require(name, tensor.device.type == self.device.type, expected, tensor.device.type)

    def exact(self, name: str, tensor: Tensor, layout: str, shape: Sequence[int]) -> None:
        self.place(name, tensor)
        self.require(name, tuple(tensor.shape) == tuple(shape), f"{layout} = {[*shape]}", tensor)

    def broadcast(
        self, name: str, tensor: Tensor | None, layout: str, shape: Sequence[int]
    ) -> None:
        if tensor is None:
            return
        self.place(name, tensor)
        own = tuple(tensor.shape)
        fits = len(own) <= len(shape) and all(
            size in (1, wanted) for size, wanted in zip(own[::-1], shape[::-1], strict=False)
        )
        self.require(name, fits, f"broadcastable to {layout} = {[*shape]}", tensor)

    def mask(self, mask: Tensor | None, scores: Sequence[int]) -> None:
        if mask is not None:
            expected = "bool (true where the query sees the key)"
            self.require("mask", mask.dtype == torch.bool, expected, mask.dtype)
            self.broadcast("mask", mask, "[B, H, T, S]", scores)

    def temperature(self, temperature: Tensor | None, rows: tuple[int, ...]) -> None:
        if temperature is not None:
            self.place("temperature", temperature)
            legal = ((), (1,), rows[1:2], rows[1:], rows)
            expected = f"a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = {[*rows]}"
            self.require("temperature", tuple(temperature.shape) in legal, expected, temperature)


def _check_starts(
    check: _Check,
    starts: tuple[Tensor | None, Tensor | None],
    sizes: tuple[int, int, int],
    mask: Tensor | None,
    bias: Tensor | None,
) -> None:
    if starts[0] is None and starts[1] is None:
        return
    batch, *ends = sizes
    check.require("B", batch == 1, "1 with cu_seqlens", batch)
    for name, given in (("mask", mask), ("bias", bias)):
        check.require(name, given is None, "left out with cu_seqlens", "one")
    counts = set()
    for name, tensor, end in zip(("cu_seqlens_q", "cu_seqlens_k"), starts, ends, strict=True):
        is_row = tensor is not None and tensor.dim() == 1 and tensor.dtype == torch.int32
        found = tensor.tolist() if tensor is not None and is_row else []
        check.require(name, len(found) > 0, "[N + 1] int32", tensor)
        rises = all(a <= b for a, b in pairwise(found)) and (found[0], found[-1]) == (0, end)
        check.require(name, rises, f"ascending from 0 to {end}", found)
        counts.add(len(found))
    check.require("cu_seqlens_k", len(counts) == 1, "as long as cu_seqlens_q", sorted(counts))
