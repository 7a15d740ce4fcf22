"""Loss on held-out text: sums in float64 over all predicted tokens, in evaluation mode.

perplexity = exp(sum NLL / tokens); bits per byte = sum NLL / (ln 2 * bytes), which compares across
tokenizers. A window of T tokens predicts T - 1 of them.

Another text would give another loss: `aero.analysis.statistics` makes the interval.

Training normalizes by the statistics of its batch, evaluation by running ones. `norm_gap` is
their cost: the loss with batch statistics is not one of a causal model, for they see later
positions, and only the difference counts.

Letters: B windows, T tokens per window, V vocabulary, D documents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from aero.analysis.context_use import ContextUse, repeated_bigrams
from aero.analysis.statistics import mean_over_documents
from aero.nn import FoldableNorm
from aero.nn.linear import in_mode
from aero.train.data.prepared_data import PreparedData
from aero.train.data.windows import validation_windows
from aero.train.progress import progress_bar


@dataclass(frozen=True)
class HeldOutLoss:
    """Sums over the predicted tokens of held-out text.

    Attributes:
        nll: sum of -log p, nats.
        tokens: predicted tokens.
        bytes: UTF-8 bytes they stand for.
        document_nll: of each document that has tokens, [D]; empty where nothing marks their ends.
        document_tokens: likewise.
        context: loss by position and on repeated bigrams.

    Example:
        >>> import math
        >>> from aero.train.runs.perplexity import HeldOutLoss
        >>> round(HeldOutLoss(nll=100 * math.log(8), tokens=100, bytes=300).perplexity, 6)
        8.0
    """

    nll: float
    tokens: int
    bytes: int
    document_nll: tuple[float, ...] = ()
    document_tokens: tuple[int, ...] = ()
    context: ContextUse = field(default_factory=ContextUse)

    @property
    def loss(self) -> float:
        """Nats per token; NaN where none was predicted."""
        return self.nll / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite beyond the largest float."""
        return _exp(self.loss)

    @property
    def perplexity_interval(self) -> tuple[float, float] | None:
        """95 % interval of the perplexity over documents; None for fewer than two."""
        found = mean_over_documents(self.document_nll, self.document_tokens)
        return None if found is None else (_exp(found[1]), _exp(found[2]))

    @property
    def bits_per_byte(self) -> float:
        """Bits per UTF-8 byte of the predicted text."""
        return self.nll / (math.log(2.0) * self.bytes) if self.bytes else math.nan


def _exp(loss: float) -> float:
    try:
        return math.exp(loss)
    except OverflowError:
        return math.inf


class _Sums:
    """What windows add up to in this process, and over all.

    Letters: N tokens, D documents.

    Args:
        tokens: [N], the held-out split.
        token_bytes: [V].
        context_length: T.
        end_mark: the token that ends a document; None: documents are not told apart.
    """

    def __init__(
        self,
        tokens: NDArray[Any],
        token_bytes: NDArray[np.int64],
        context_length: int,
        end_mark: int | None,
    ) -> None:
        self._bytes, self._context = token_bytes, context_length
        # Of position p: how many documents end before it.
        self._documents: NDArray[Any] | None = None
        if end_mark is not None:
            self._documents = np.cumsum(tokens == end_mark) - (tokens == end_mark)
        count = 0 if self._documents is None else int(self._documents[-1]) + 1
        # Loss, tokens and bytes; then loss and tokens, by position, of repeated bigrams, and of
        # each document.
        self._totals, self._positions, self._repeated, self._of_documents = (
            torch.zeros(shape, dtype=torch.float64)
            for shape in ((3,), (2, context_length - 1), (2,), (2, count))
        )

    def add(
        self,
        starts: NDArray[np.int64],
        windows: NDArray[np.int64],
        nll: Tensor,
        counted: NDArray[np.bool_],
    ) -> None:
        """Adds windows.

        Args:
            starts: [B], where they begin.
            windows: [B, T], their tokens.
            nll: [B, T - 1], of each target.
            counted: [B, T - 1], which of them count.
        """
        counts, targets = torch.from_numpy(counted), windows[:, 1:][counted]
        self._totals += torch.tensor(
            [nll[counts].sum().item(), targets.size, self._bytes[targets].sum()],
            dtype=torch.float64,
        )
        self._positions += torch.stack([(nll * counts).sum(0), counts.sum(0).double()])
        again = torch.from_numpy(repeated_bigrams(windows)) & counts
        self._repeated += torch.stack([nll[again].sum(), again.sum().double()])
        if self._documents is not None:
            places = (starts[:, None] + np.arange(1, self._context))[counted]
            for row, weights in enumerate((nll[counts].numpy(), None)):
                each = np.bincount(
                    self._documents[places], weights, minlength=self._of_documents.shape[1]
                )
                self._of_documents[row] += torch.from_numpy(each)

    def add_up(self, device: torch.device) -> None:
        """Makes them the sums over all processes."""
        for sums in (self._totals, self._positions, self._repeated, self._of_documents):
            on_device = sums.to(device)
            torch.distributed.all_reduce(on_device)
            sums.copy_(on_device)

    def result(self) -> HeldOutLoss:
        """The measurement."""
        nll, tokens = self._of_documents.numpy()
        seen = tokens > 0
        return HeldOutLoss(
            float(self._totals[0]),
            int(self._totals[1]),
            int(self._totals[2]),
            tuple(nll[seen].tolist()),
            tuple(tokens[seen].astype(int).tolist()),
            ContextUse(
                tuple(self._positions[0].tolist()),
                tuple(self._positions[1].int().tolist()),
                float(self._repeated[0]),
                int(self._repeated[1]),
            ),
        )


def measure_loss(
    model: nn.Module,
    tokens: NDArray[Any],
    starts: NDArray[np.int64],
    *,
    token_bytes: NDArray[np.int64],
    context_length: int,
    batch_tokens: int,
    stride: int | None = None,
    end_mark: int | None = None,
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
        end_mark: the token that ends a document, for the interval over them; None goes without.
        show_progress: whether to draw a bar.

    Returns:
        The sums over all processes.

    Raises:
        ValueError: the windows predict no token.
    """
    if context_length < 2 or not len(starts):
        raise ValueError(
            f"evaluate: the windows must predict a token, got {len(starts)} windows of "
            f"{context_length} tokens; the first token of a window is not predicted"
        )
    device = next(model.parameters()).device
    rank, world = rank_and_world()
    batch = max(1, batch_tokens // context_length)
    chunks = [starts[first : first + batch] for first in range(0, len(starts), batch)]
    sums = _Sums(tokens, token_bytes, context_length, end_mark)
    bar = progress_bar("evaluating", len(chunks), "batch") if show_progress else None
    try:
        with in_mode(model), torch.inference_mode():
            for first in range(0, len(chunks), world):
                # The forward pass of a sharded network needs all processes: one without a batch
                # left takes part in it and counts nothing.
                counts_here = first + rank < len(chunks)
                chunk = chunks[first + rank if counts_here else first]
                windows = tokens[chunk[:, None] + np.arange(context_length)].astype(np.int64)
                nll = _token_losses(model, torch.from_numpy(windows).to(device)).cpu()
                if not counts_here:
                    continue
                sums.add(chunk, windows, nll, _counted_targets(chunk, context_length, stride))
                if bar is not None:
                    bar.update(world)
    finally:
        if bar is not None:
            bar.close()
    if world > 1:
        sums.add_up(device)
    return sums.result()


def _token_losses(model: nn.Module, windows: Tensor) -> Tensor:
    """-log p of every token but the first, [B, T - 1], float64."""
    logits = model(input_ids=windows, use_cache=False).logits[:, :-1]
    nll = F.cross_entropy(logits.flatten(0, 1).float(), windows[:, 1:].flatten(), reduction="none")
    return nll.double().view(len(windows), -1)


def _counted_targets(
    starts: NDArray[np.int64], context_length: int, stride: int | None
) -> NDArray[np.bool_]:
    """The predictions that count, of the T - 1 of each window, [B, T - 1]."""
    counted = np.ones((len(starts), context_length - 1), dtype=np.bool_)
    if stride is not None and stride < context_length:
        counted[starts > 0, : context_length - 1 - stride] = False
    return counted


def rank_and_world() -> tuple[int, int]:
    """Returns this process's number and how many there are; 0 and 1 without a process group."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return 0, 1


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
