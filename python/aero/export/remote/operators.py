"""The operators of AERO networks in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from aero.ops import reference


def attention_entropy(q: Tensor, k: Tensor, v: Tensor, **settings: Any) -> tuple[Tensor, ...]:
    """Attention, row entropies and logsumexp."""
    temperature = settings.pop("temperature", None)
    if temperature is not None:
        temperature = temperature.to(reference.statistics_dtype(q.dtype))
    left, right = settings.pop("window", None) or (None, None)
    settings.update(window_left=left, window_right=right)
    return reference.attention_entropy(q, k, v, temperature=temperature, **settings)


def entropy_regularization(
    entropies: Sequence[Tensor], thresholds: Tensor, **settings: Any
) -> Tensor:
    """The penalty on entropies far from their thresholds."""
    return reference.entropy_regularization(
        entropies, thresholds.to(entropies[0].dtype), **settings
    )


scaled_ffn = reference.scaled_ffn
