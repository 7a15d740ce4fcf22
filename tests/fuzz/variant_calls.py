"""Random calls of attention with its variants, forward and backward, against the tests' oracle.

Window, soft cap, bias, masks of numbers, slopes, sinks, dropout, the largest logits, packed
sequences, values of another width and operands without a batch in any combination, beside masks,
temperatures, memory layouts and instruction sets as in operator_calls.py, which calls and judges;
variant_bounds.py says how near results must be. Which weights dropout keeps is read from a call
whose values are the rows of an identity matrix. Nothing comes back to the largest logit of a row
where rounding may decide which key has it.

Letters: B batch, H heads, G key heads, T queries, S keys, D head width.
"""

from __future__ import annotations

import functools
import math
import os
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from drawing import DTYPES, Draw
from operator_calls import Call, check, oracle, statistics
from torch import Tensor
from variant_bounds import Array, attention

import aero.ops

WIDE = (80, 96, 127, 128, 129, 192, 255, 256, 257, 320, 512)


def draw_variants(draw: Draw) -> Call:
    dtype = draw.choice(DTYPES)
    groups, per_group = draw.choice((1, 1, 2, 3)), draw.choice((1, 1, 2, 3))
    heads = groups * per_group
    starts, is_flat = packed(draw) if draw.chance(0.3) else None, draw.chance(0.1)
    batch = 1 if starts or is_flat else draw.choice((1, 2, 2, 3))
    queries, keys = (s[-1] for s in starts) if starts else (draw.size(), draw.size())
    sizes, lead = (batch, heads, queries, keys), () if is_flat else (batch,)
    width = draw.choice(WIDE) if draw.chance(0.03) else draw.size() or 1
    value_width = width
    if draw.chance(1 / 3):
        value_width = draw.choice(WIDE) if draw.chance(0.05) else draw.size() or 1
    size = draw.choice((1.0, 1.0, 1.0, 8.0, 1e-3))
    tensors = {
        "q": draw.operand((*lead, heads, queries, width), dtype, size),
        "k": draw.operand((*lead, groups, keys, width), dtype),
        "v": draw.operand((*lead, groups, keys, value_width), dtype),
    }
    rows = statistics(dtype)
    if (t := draw.temperature(sizes[:3], rows)) is not None:
        tensors["temperature"] = t
    for name in ("alibi_slopes", "sinks"):
        if draw.chance(0.35):
            tensors[name] = draw.operand(draw.choice((sizes[1:2], sizes[:2])), rows)
    options: dict[str, Any] = {
        "is_causal": draw.chance(0.4),
        "scale": draw.choice((None, None, None, 1.0, 0.3, -0.7, 0.0)),
        "softcap": draw.choice((None, None, 0.5, 5.0, 50.0)),
        "window": draw.choice((None, (size_or_none(draw), size_or_none(draw)))),
        "return_max_logits": draw.chance(1 / 3),
    }
    if starts is None:
        options["mask"] = draw.mask(sizes)
        if options["mask"] is not None and draw.chance(1 / 3):
            options["mask"] = numbers(draw, options["mask"], dtype)
        if draw.chance(0.35):
            tensors["bias"] = bias(draw, sizes, draw.choice((dtype, rows)))
    else:
        options["cu_seqlens"] = tuple(torch.tensor(s, dtype=torch.int32) for s in starts)
    return judged(tensors, options, sizes, starts, draw.choice((0.1, 0.5, 0.9)) * draw.chance(0.3))


def judged(
    tensors: dict[str, Tensor], options: dict[str, Any], sizes: tuple[int, int, int, int],
    starts: list[list[int]] | None, dropout_p: float,
) -> Call:  # fmt: skip
    """The call, with what the oracle takes and how far it may be off."""
    q, v = tensors["q"], tensors["v"]
    rows, is_flat = statistics(q.dtype), q.dim() == 3
    of_oracle = {n: x for n, x in options.items() if x is not None}
    factor = None
    if dropout_p:
        options["dropout_p"] = dropout_p
        of_oracle["factor"] = factor_of(sizes, options)
        factor = of_oracle["factor"].numpy()
    if (mask := options.get("mask")) is not None and mask.is_floating_point():
        of_oracle["mask"] = mask.to(rows) if mask.dtype == torch.float64 else mask
    seen = visible_keys(sizes, options, starts)

    def found(cotangents: list[Array]) -> tuple[dict[str, Array], Array, Array]:
        t = tensors.get("temperature")
        t = None if t is None else t.detach().to(rows).double()
        of_rows = oracle.of_rows(t, torch.empty(sizes, dtype=torch.float64)).numpy()
        whole = {n: x[None] if is_flat and n in "qkv" else x for n, x in tensors.items()}
        given = options | {"mask": of_oracle.get("mask")}
        with np.errstate(all="ignore"):
            if is_flat:
                cotangents = [c[None] for c in cotangents]
            errors, *scores = attention(whole, given, seen, of_rows, factor, cotangents)
        if is_flat:
            errors |= {n: e[0] for n, e in errors.items() if n in "qkv" or n.startswith("result")}
            scores = [x[0] for x in scores]
        return errors, scores[0], scores[1]

    lead = sizes[1:3] if is_flat else sizes[:3]
    shapes = [(*lead, v.shape[-1]), *[lead] * (2 + options["return_max_logits"])]

    @functools.cache
    def scores() -> tuple[Array, Array]:
        _, whole, error = found([np.zeros(shape) for shape in shapes])
        if starts is not None:  # keys count from the first of their sequence
            for (first, last), begin in zip(pairwise(starts[0]), starts[1][:-1], strict=True):
                whole[..., first:last, :] = np.roll(whole[..., first:last, :], -begin, -1)
        return whole, error

    return Call(
        "attention_entropy", tensors, options, lambda given: found(given)[0], shapes,
        judged_with=of_oracle, scores=scores,
    )  # fmt: skip


def numbers(draw: Draw, mask: Tensor, dtype: torch.dtype) -> Tensor:
    """The mask as numbers: 0 and -inf, 0 and the least number, or a bias."""
    kind = draw.choice((dtype, dtype, torch.float32, statistics(dtype), torch.float64))
    if draw.chance(0.4):
        return draw.laid_out(draw.normal(mask.shape, kind, draw.choice((1.0, 1.0, 30.0))))
    least = torch.finfo(torch.float32 if kind == torch.float64 else kind).min
    lowest = draw.choice((-math.inf, -math.inf, least))
    return draw.laid_out(torch.zeros(mask.shape, dtype=kind).masked_fill(~mask, lowest))


def packed(draw: Draw) -> list[list[int]]:
    """Where some sequences begin in queries and keys."""
    lengths = [[draw.size(33) for _ in range(draw.randint(1, 4))]]
    lengths.append(lengths[0] if draw.chance(0.6) else [draw.size(33) for _ in lengths[0]])
    return [[0, *map(int, np.cumsum(each))] for each in lengths]


def size_or_none(draw: Draw) -> int | None:
    return draw.choice((None, 0, 1, 3, 8, 40, 10**6))


def bias(draw: Draw, sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    shape = [draw.choice((1, n, n)) for n in sizes][draw.randint(0, 4) :]
    values = draw.normal(shape, dtype, draw.choice((1.0, 1.0, 30.0)))
    if draw.chance(0.4):
        values = values.masked_fill(draw.normal(shape, torch.float32) > 1, -math.inf)
    return draw.arranged(values)


def factor_of(sizes: tuple[int, int, int, int], options: dict[str, Any]) -> Tensor:
    """[B, H, T, S], what a call of this seed multiplies each weight by."""
    batch, heads, queries, keys = sizes
    kept = torch.zeros(sizes, dtype=torch.bool)
    os.environ["AERO_CPU_ISA"] = "scalar"
    for first in range(0, keys, 256):  # as many columns as a head is wide
        last = min(first + 256, keys)
        values = torch.eye(keys)[:, first:last].expand(batch, heads, -1, -1)
        zero = torch.zeros(batch, heads, max(queries, keys), last - first)
        torch.manual_seed(0)
        out, *_ = aero.ops.attention_entropy(
            zero[:, :, :queries], zero[:, :, :keys], values, dropout_p=options["dropout_p"],
            cu_seqlens=options.get("cu_seqlens"),
        )  # fmt: skip
        kept[..., first:last] = out != 0
    return kept.double() / (1 - options["dropout_p"])


def visible_keys(
    sizes: tuple[int, int, int, int], options: dict[str, Any], starts: list[list[int]] | None
) -> tuple[Array, Array]:
    """[B, H, T, S] which keys are seen, and [T, S] how far each is from the newest."""
    _, _, queries, keys = sizes
    visible, away = np.zeros((queries, keys), bool), np.zeros((queries, keys))
    left, right = (math.inf if n is None else n for n in options["window"] or (None, None))
    parts = ([0, queries], [0, keys]) if starts is None else starts
    for (first, last), (begin, end) in zip(*map(pairwise, parts), strict=True):
        offset = (end - begin) - (last - first)
        ahead = np.arange(end - begin) - np.arange(last - first)[:, None] - offset
        own = (ahead >= -left) & (ahead <= (min(right, 0) if options["is_causal"] else right))
        visible[first:last, begin:end], away[first:last, begin:end] = own, np.abs(ahead)
    seen = np.broadcast_to(visible, sizes)
    mask = options.get("mask")
    if mask is not None and mask.dtype == torch.bool:
        seen = seen & mask.numpy()
    return seen, away


def attack(seed: int) -> int:
    draw = Draw(seed)
    return check(draw, draw_variants(draw))
