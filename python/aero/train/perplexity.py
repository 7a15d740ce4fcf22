"""Loss on held-out text: sums in float64 over all predicted tokens, in evaluation mode.

perplexity = exp(sum NLL / tokens); bits per byte = sum NLL / (ln 2 * bytes), which compares across
tokenizers. A window of T tokens predicts T - 1 of them.

Letters: B windows, T tokens per window, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from aero.train.progress import progress_bar

__all__ = ["HeldOutLoss", "measure_loss"]


@dataclass(frozen=True)
class HeldOutLoss:
    """Sums over the predicted tokens of held-out text.

    Attributes:
        nll: sum of -log p, nats.
        tokens: predicted tokens.
        bytes: UTF-8 bytes they stand for.

    Example:
        >>> round(HeldOutLoss(nll=100 * math.log(8), tokens=100, bytes=300).perplexity, 6)
        8.0
    """

    nll: float
    tokens: int
    bytes: int

    @property
    def loss(self) -> float:
        """Nats per token."""
        return self.nll / self.tokens

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite beyond what a float holds."""
        return math.exp(self.loss) if self.loss < 709.0 else self.loss * math.inf

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the predicted text."""
        return self.nll / (math.log(2.0) * self.bytes) if self.bytes else math.nan


def measure_loss(
    model: nn.Module,
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    *,
    token_bytes: NDArray[np.int64],
    context_length: int,
    batch_tokens: int,
    stride: int | None = None,
    show_progress: bool = False,
) -> HeldOutLoss:
    """Measures the loss of a causal language model; under `torchrun` the processes share the work.

    Args:
        model: takes `input_ids` and returns `logits`; its mode is restored afterwards.
        tokens: [tokens], the held-out split.
        starts: [windows], where windows begin.
        token_bytes: [V], UTF-8 bytes of each token.
        context_length: T.
        batch_tokens: tokens in one forward pass.
        stride: for overlapping windows, the distance between them: all but the first count only
            their last `stride` tokens, which have at least T - stride tokens of context.
        show_progress: whether to draw a bar.

    Returns:
        The sums over all processes.
    """
    device = next(model.parameters()).device
    rank, world = _rank_and_world()
    batch = max(1, batch_tokens // context_length)
    chunks = [starts[first : first + batch] for first in range(0, len(starts), batch)]
    sums = torch.zeros(3, dtype=torch.float64)
    was_training = model.training
    model.eval()
    bar = progress_bar("evaluating", len(chunks), "batch") if show_progress else None
    try:
        with torch.inference_mode():
            for chunk in chunks[rank::world]:
                windows = tokens[chunk[:, None] + np.arange(context_length)].astype(np.int64)
                counted = _counted_targets(chunk, context_length, stride)
                nll = _token_losses(model, torch.from_numpy(windows).to(device))
                counts = torch.from_numpy(counted).to(device)
                targets = windows[:, 1:][counted]
                sums += torch.tensor(
                    [nll[counts].sum().item(), targets.size, token_bytes[targets].sum()],
                    dtype=torch.float64,
                )
                if bar is not None:
                    bar.update(world)
    finally:
        if bar is not None:
            bar.close()
        model.train(was_training)
    if world > 1:
        on_device = sums.to(device)
        torch.distributed.all_reduce(on_device)
        sums = on_device.cpu()
    return HeldOutLoss(float(sums[0]), int(sums[1]), int(sums[2]))


def _token_losses(model: nn.Module, windows: Tensor) -> Tensor:
    """-log p of every token but the first, [B, T - 1], float64."""
    logits = model(input_ids=windows, use_cache=False).logits[:, :-1]
    nll = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="none")
    return nll.double().view(len(windows), -1)


def _counted_targets(
    starts: NDArray[np.int64], context_length: int, stride: int | None
) -> NDArray[np.bool_]:
    """Which of the T - 1 predictions of each window count, [B, T - 1]."""
    counted = np.ones((len(starts), context_length - 1), dtype=np.bool_)
    if stride is not None and stride < context_length:
        counted[starts > 0, : context_length - 1 - stride] = False
    return counted


def _rank_and_world() -> tuple[int, int]:
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1
