"""What stands in for LayerNorm: a norm by running statistics, and functions of each element."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
import torch.distributed
from torch import Tensor, nn

from aero.nn.linear import is_recomputing
from aero.nn.weight_decay import Scales

# The average moves by at least this share per update, so it forgets within some 50 updates.
_MINIMUM_MOMENTUM = 0.02

# Start of alpha in DyT and Derf: the default of both papers' modules.
INITIAL_ALPHA = 0.5


class FoldableNorm(Scales):
    """Scales each channel by its root mean square, taken from running statistics at inference.

    In training ``y = g * x / sqrt(v + eps)`` with ``v`` the mean of ``x**2`` over batch and
    positions of this call, with gradient. In evaluation ``v`` is the running mean, so the module is
    a fixed diagonal matrix and folds exactly into the next linear layer. No centring, no bias.

    The running mean moves by ``max(0.02, 1/n)`` at update ``n``, once per training forward;
    recomputing a forward during the backward (gradient checkpointing) does not count. Training
    statistics see later positions: only evaluation mode is causal.

    Args:
        width: number of channels C.
        kind: ``"channel"``, one statistic per channel, or ``"scalar"``, one for all.
        eps: added to the mean square.
        synchronized: average the statistics over all processes of the default process group;
            without it each process has its own.

    Attributes:
        weight: gain g, [C].
        running_mean_square: [C], or [1] for ``"scalar"``.
        num_updates: updates made so far, [1], int64.
        discrepancy: mean over channels of ``|sqrt(v_batch / v_running) - 1|`` at the last training
            forward, before its update, [1]; 0 before the second update.

    Example:
        >>> from aero.nn import FoldableNorm
        >>> import torch
        >>> norm = FoldableNorm(3)
        >>> norm(torch.full((2, 4, 3), 5.0)).allclose(torch.ones(2, 4, 3))
        True
        >>> norm.eval().running_mean_square
        tensor([25., 25., 25.])
    """

    _scale_names = ("weight",)

    running_mean_square: Tensor
    num_updates: Tensor
    discrepancy: Tensor

    def __init__(
        self,
        width: int,
        *,
        kind: Literal["channel", "scalar"] = "channel",
        eps: float = 1e-6,
        synchronized: bool = False,
    ) -> None:
        super().__init__()
        if kind not in ("channel", "scalar"):
            raise ValueError(f"FoldableNorm: kind must be 'channel' or 'scalar', got {kind!r}")
        if not 0 <= eps < math.inf:
            raise ValueError(f"FoldableNorm: eps must be a number from 0, got {eps!r}")
        self.kind = kind
        self.eps = eps
        self.synchronized = synchronized
        self.weight = nn.Parameter(torch.ones(width))
        num_statistics = width if kind == "channel" else 1
        self.register_buffer("running_mean_square", torch.ones(num_statistics))
        self.register_buffer("num_updates", torch.zeros(1, dtype=torch.int64))
        self.register_buffer("discrepancy", torch.zeros(1), persistent=False)

    def forward(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Normalizes `x`.

        Args:
            x: [B, T, C].
            token_mask: [B, T], False for tokens (padding) that take no part in the statistics.

        Returns:
            [B, T, C], the dtype of `x`.
        """
        if x.shape[-1] != len(self.weight):
            raise ValueError(f"FoldableNorm: expected C = {len(self.weight)}, got {list(x.shape)}")
        return x * self.scale(x, token_mask).to(x.dtype)

    def scale(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        """Returns ``g / sqrt(v + eps)``, [C]: the norm's factor of each channel."""
        if self.training:
            mean_square, count = self._batch_statistics(x, token_mask)
            if not is_recomputing():
                self._update(mean_square.detach(), count)
        else:
            mean_square = self.running_mean_square
        return self.weight * torch.rsqrt(mean_square + self.eps)

    def _batch_statistics(self, x: Tensor, token_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean square, [C] or [1], and the number of tokens behind it, [1]."""
        square = x.to(torch.promote_types(x.dtype, torch.float32)).square()
        if token_mask is None:
            count = square.new_full((1,), x.shape[0] * x.shape[1])
        else:
            square = torch.where(token_mask.unsqueeze(-1), square, 0.0)
            count = token_mask.sum(dtype=square.dtype).reshape(1)
        total = square.sum(dim=(0, 1))
        if self.kind == "scalar":
            total = total.mean(dim=0, keepdim=True)
        if self.synchronized and torch.distributed.is_initialized():
            sums = _SumOverProcesses.apply(  # type: ignore[no-untyped-call]
                torch.cat((total, count))
            )
            total, count = sums[:-1], sums[-1:].detach()
        return total / count.clamp(min=1), count

    @torch.no_grad()
    def _update(self, mean_square: Tensor, count: Tensor) -> None:
        # A call without a single counted token has no statistics and leaves everything as it is.
        seen = (count > 0).to(self.num_updates.dtype)
        ratio = (mean_square + self.eps) / (self.running_mean_square + self.eps)
        discrepancy = (ratio.sqrt() - 1).abs().mean() * seen * (self.num_updates > 0)
        self.discrepancy.copy_(discrepancy)
        self.num_updates.add_(seen)
        momentum = (1.0 / self.num_updates.clamp(min=1)).clamp(min=_MINIMUM_MOMENTUM) * seen
        step = momentum * (mean_square - self.running_mean_square)
        self.running_mean_square.add_(step.to(self.running_mean_square.dtype))

    def extra_repr(self) -> str:
        """Shows width, kind and eps."""
        return f"{self.weight.numel()}, kind={self.kind!r}, eps={self.eps}"


class DynamicNorm(Scales):
    """DyT, ``y = g tanh(a x) + b``, or Derf, ``y = g erf(a x + s) + b``, in place of a norm.

    Zhu et al. (arXiv 2503.10622) and Chen et al. (arXiv 2512.10938). Nothing is normalized: each
    element is squashed by itself, so the module is the same in training and evaluation. It does not
    fold into the next weights. Inputs should be of order 1: scale the embeddings up.

    Args:
        width: number of channels C.
        kind: ``"tanh"`` (DyT) or ``"erf"`` (Derf).

    Attributes:
        alpha: a, [1], starts at 0.5.
        shift: s, [1], starts at 0; None for ``"tanh"``.
        weight: g, [C], starts at 1.
        bias: b, [C], starts at 0.
    """

    _scale_names = ("alpha", "shift", "weight")

    def __init__(self, width: int, *, kind: Literal["tanh", "erf"]) -> None:
        super().__init__()
        if kind not in ("tanh", "erf"):
            raise ValueError(f"DynamicNorm: kind must be 'tanh' or 'erf', got {kind!r}")
        self.alpha = nn.Parameter(torch.full((1,), INITIAL_ALPHA))
        self.shift = nn.Parameter(torch.zeros(1)) if kind == "erf" else None
        self.weight = nn.Parameter(torch.ones(width))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """Returns [B, T, C] of [B, T, C]."""
        scaled = self.alpha * x
        squashed = scaled.tanh() if self.shift is None else torch.erf(scaled + self.shift)
        return self.weight * squashed + self.bias


class _SumOverProcesses(torch.autograd.Function):
    """Sum over the default process group; the gradient of every process's loss comes back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        summed = values.clone()
        torch.distributed.all_reduce(summed)
        return summed

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        summed = gradient.clone()
        torch.distributed.all_reduce(summed)
        return summed
