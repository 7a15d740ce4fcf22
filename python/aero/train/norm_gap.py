"""The cost of running statistics in networks with foldable norms: the loss with each batch's own.

Training normalizes by the statistics of its batch, evaluation by running ones. The first loss is
not one of a causal model, for batch statistics see later positions; only their difference counts.
"""

from __future__ import annotations

from torch import Tensor, nn

from aero.nn import FoldableNorm
from aero.train.perplexity import measure_loss
from aero.train.prepared_data import PreparedData
from aero.train.windows import validation_windows

__all__ = ["norm_gap"]


class _BatchNorm(FoldableNorm):
    """A foldable norm that takes the statistics of its input in evaluation too."""

    def scale(self, x: Tensor, token_mask: Tensor | None = None) -> Tensor:
        mean_square, _ = self._batch_statistics(x, token_mask)
        return self.weight * (mean_square + self.eps).rsqrt()


def norm_gap(
    model: nn.Module,
    data: PreparedData,
    *,
    context_length: int,
    max_tokens: int,
    batch_tokens: int,
) -> float | None:
    """Returns the loss with running statistics minus that with each batch's own, nats per token.

    Args:
        model: the trained network; afterwards it is as it was.
        data: its corpus.
        context_length: T.
        max_tokens: at most this many validation tokens.
        batch_tokens: tokens whose statistics are taken together; those of a training step compare
            with training.

    Returns:
        The difference, positive where running statistics are worse; None without foldable norms.
    """
    norms = [module for module in model.modules() if isinstance(module, FoldableNorm)]
    if not norms:
        return None

    def measured() -> float:
        starts = validation_windows(data.validation, context_length, max_tokens=max_tokens)
        return measure_loss(
            model,
            data.validation,
            starts,
            token_bytes=data.token_bytes,
            context_length=context_length,
            batch_tokens=batch_tokens,
        ).loss

    running = measured()
    try:
        # In place, for a copy of a sharded network is none of one.
        for norm in norms:
            norm.__class__ = _BatchNorm
        return running - measured()
    finally:
        for norm in norms:
            norm.__class__ = FoldableNorm
