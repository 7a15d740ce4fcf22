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


def judge_largest(
    tensors: Mapping[str, Tensor], options: Mapping[str, Any], max_logits: Tensor,
    largest_key: Tensor,
) -> None:  # fmt: skip
    """The largest score of each row, and a key that has it as far as rounding tells."""
    scores, error, products = oracle.scaled_scores(tensors, options)
    if not scores.numel():
        return
    top, eps = scores.amax(-1), 100 * torch.finfo(max_logits.dtype).eps
    # The docstring leaves rows with larger scores or products open.
    told = torch.maximum(error, products).amax(-1) < 1e36
    error = error.amax(-1).masked_fill(~told, torch.inf)
    judge("max_logits", max_logits, top, float64(error * eps))
    none = top.isnan() | (top == -torch.inf)
    assert torch.equal((largest_key < 0)[told], none[told]), "largest_key is -1 in other rows"
    named = scores.gather(-1, largest_key.clamp(min=0)[..., None])[..., 0]
    gap = torch.where(none, 0, top - named)
    is_largest = (gap <= 2 * eps * error) | ~told
    assert bool(is_largest.all()), "largest_key has a lesser score"
