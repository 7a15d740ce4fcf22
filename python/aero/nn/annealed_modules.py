"""Norms and feed-forward networks on their way from one kind to another.

A trained network keeps its function when the way starts (a = 0) and has the other kind's when it
ends (a = 1); between them training follows. The way of the norms is that of SLAB (ICML 2024), which
anneals LayerNorm into a BatchNorm: ``y = (1 - a) LN(x) + a FN(x)``.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from aero.nn.feed_forward import ScaledFeedForward
from aero.nn.norm import FoldableNorm

AnnealableActivation = Literal["gelu", "relu", "linear"]


class AnnealedNorm(nn.Module):
    """``(1 - a) source(x) + a target(x)``.

    Args:
        source: the norm of the trained network.
        target: the module in its place; None for nothing, ``target(x) = x``.

    Attributes:
        progress: a, [1], starts at 0.
    """

    progress: Tensor

    def __init__(self, source: nn.LayerNorm, target: FoldableNorm | None) -> None:
        super().__init__()
        self.source = source
        self.target = target
        self.register_buffer("progress", torch.zeros(1))

    def forward(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Normalizes `x`, [B, T, C], as `FoldableNorm.forward` does."""
        new = x if self.target is None else self.target(x, token_mask)
        # lerp is exact at both ends
        return torch.lerp(self.source(x).to(x.dtype), new, self.progress.to(x.dtype))


class AnnealedFeedForward(ScaledFeedForward):
    """``FFN(x) = ((1 - a) source(h) + a target(h)) W_out + b_out`` with ``h = x W_in + b_in``.

    Args:
        width: C.
        hidden_width: F.
        source: the activation of the trained network, ``"gelu"``, ``"relu"`` or ``"linear"``.
        target: the module after it; None if the whole feed-forward fades away, ``(1 - a) FFN(x)``.
        trainable: which of the scales ``"alpha"`` and ``"beta"`` are learned; both start at 1.
        gelu_approximation: as in `FeedForward`.

    Attributes:
        progress: a, [1], starts at 0.
    """

    progress: Tensor

    def __init__(
        self,
        width: int,
        hidden_width: int,
        *,
        source: AnnealableActivation,
        target: AnnealableActivation | None,
        trainable: Collection[str] = (),
        gelu_approximation: Literal["tanh", "none"] = "tanh",
    ) -> None:
        super().__init__(width, hidden_width, trainable=trainable)
        self.source = source
        self.target = target
        self.gelu_approximation = gelu_approximation
        self.register_buffer("progress", torch.zeros(1))

    def forward(
        self,
        inputs: Tensor,
        negative_slope: Tensor | None = None,
        *,
        activation_gate: Tensor | None = None,
    ) -> Tensor:
        """Returns FFN(inputs), [B, T, C]; `FeedForward` has the slope and the gate."""
        assert activation_gate is None  # a configuration has gates or annealed parts
        hidden: Tensor = self.c_fc(inputs)
        progress = self.progress.to(hidden.dtype)
        activated = self._activated(hidden, self.source)
        if self.target is None:
            faded: Tensor = (1 - progress) * self.c_proj(activated)
            return faded
        mixed = torch.lerp(activated, self._activated(hidden, self.target), progress)
        output: Tensor = self.c_proj(mixed)
        return output

    def _activated(self, hidden: Tensor, activation: AnnealableActivation) -> Tensor:
        if activation == "gelu":
            return F.gelu(hidden, approximate=self.gelu_approximation)
        return F.relu(hidden) if activation == "relu" else hidden

    def extra_repr(self) -> str:
        """Both activations."""
        return f"{self.source!r} -> {self.target!r}"


def set_annealing_progress(model: nn.Module, progress: float) -> None:
    """Says how far the annealed norms and feed-forward networks of a model have come.

    Args:
        model: any module; one without such parts stays as it is.
        progress: a, from 0 (the trained network's own parts) to 1 (the new ones).

    Raises:
        ValueError: `progress` is outside of [0, 1].
    """
    if not 0.0 <= progress <= 1.0:
        raise ValueError(f"set_annealing_progress: progress must be in [0, 1], got {progress}")
    for module in model.modules():
        if isinstance(module, (AnnealedNorm, AnnealedFeedForward)):
            module.progress.fill_(progress)


def annealing_progress(model: nn.Module) -> float | None:
    """Returns a; None for a model without annealed parts. The least advanced part counts."""
    found = [
        float(module.progress)
        for module in model.modules()
        if isinstance(module, (AnnealedNorm, AnnealedFeedForward))
    ]
    return min(found, default=None)
