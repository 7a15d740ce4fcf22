"""Whether what an operator gave is what it must give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import oracle
import torch
from error_bounds import Array, float64
from torch import Tensor


def judge(name: str, got: Tensor, want: Tensor, error: Array) -> None:
    """Every entry; where `error` is infinite, rounding may have made anything of it."""
    g, e = float64(got), float64(want)
    assert g.shape == e.shape, f"{name} has shape {list(g.shape)}, the oracle's {list(e.shape)}"
    # The gradient of what was cast is cast back.
    own = torch.finfo(got.dtype)
    with np.errstate(all="ignore"):
        fits = np.abs(g - e) <= 2 * error + own.eps * (np.abs(e) + own.tiny)
        if fits.all():
            return
        # Too large for the dtype, or for the arithmetic that leads there. No bound is no excuse.
        too_large = np.isinf(error) | (np.abs(e) + error > own.max / 4)
        fits |= (g == e) | (np.isnan(g) & np.isnan(e)) | too_large
    if not fits.all():
        at = tuple(int(i) for i in np.argwhere(~fits)[0])
        raise AssertionError(
            f"{name}{list(at)} is {g[at]!r}, must be {e[at]!r} within {error[at]:.3g}; "
            f"{(~fits).sum()} of {fits.size} entries are wrong"
        )


def judge_largest(scores: Array, error: Array, max_logits: Tensor, largest_key: Tensor) -> None:
    """The largest score of each row, and a key that has it as far as rounding tells.

    Args:
        scores: [B, H, T, S], -inf where hidden.
        error: [B, H, T], how far each of a row may be off; infinite where that is left open.
        max_logits: [B, H, T]
        largest_key: [B, H, T]
    """
    assert largest_key.dtype == torch.int64, f"largest_key is {largest_key.dtype}"
    top = scores.max(-1, initial=-np.inf)
    judge("max_logits", max_logits, torch.from_numpy(np.asarray(top)), error)
    if not scores.size:
        return
    told, keys = np.isfinite(error), largest_key.numpy()
    none = np.isnan(top) | (top == -np.inf)
    assert ((keys < 0) == none)[told].all(), "largest_key is -1 in other rows"
    named = np.take_along_axis(scores, np.maximum(keys, 0)[..., None], -1)[..., 0]
    gap = np.where(none, 0, top) - np.where(none, 0, named)
    assert ((gap <= 2 * error) | ~told).all(), "largest_key has a lesser score"


def plain_scores(tensors: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Array, Array]:
    """Scores of attention without variants, and their errors, as `judge_largest` takes them."""
    scores, error, products = oracle.scaled_scores(tensors, options)
    if not scores.numel():
        return float64(scores), np.zeros(scores.shape[:3])
    eps = torch.finfo(torch.promote_types(tensors["q"].dtype, torch.float32)).eps
    # The docstring leaves rows with larger scores or products open.
    told = torch.maximum(error, products).amax(-1) < 1e36
    return float64(scores), float64((100 * eps * error.amax(-1)).masked_fill(~told, torch.inf))


def decided(scores: Array, error: Array) -> Tensor:
    """[B, H, T], whether rounding leaves no doubt which key has the largest score."""
    lowest = np.full((*scores.shape[:-1], 2), -np.inf)
    second, first = np.moveaxis(np.sort(np.concatenate((scores, lowest), -1), -1)[..., -2:], -1, 0)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.isfinite(first) & (first - second > 4 * error)))
