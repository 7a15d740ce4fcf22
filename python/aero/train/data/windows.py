"""Windows of T tokens out of a token file.

Letters: B windows, T tokens per window.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset


class TrainingWindows(Dataset[Any]):
    """A fixed sequence of training windows: the same for every run with this seed.

    Each epoch cuts the corpus at another offset into disjoint windows and shuffles them. Window n
    depends on the seed and n alone, so a resumed run and several processes see the same order.

    Args:
        tokens: [tokens], uint16 or uint32, at least T + 1 of them.
        context_length: T.
        count: how many windows the run takes.
        seed: of the order.
    """

    def __init__(self, tokens: NDArray[Any], context_length: int, *, count: int, seed: int) -> None:
        self._tokens = tokens
        self._context_length = context_length
        self._count = count
        self._seed = seed
        # As many as fit whatever the offset below T; a very short corpus allows fewer offsets.
        self._per_epoch = max(1, (len(tokens) - context_length + 1) // context_length)
        self._offsets = min(context_length, len(tokens) - self._per_epoch * context_length + 1)
        self._epoch = -1
        self._starts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        """Windows of the whole run."""
        return self._count

    def __getitem__(self, index: int) -> NDArray[Any]:
        """One window, [1, T]."""
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> NDArray[Any]:
        """Several windows at once, [B, T]; the loader calls this with a whole batch."""
        starts = np.array([self._start(index) for index in indices])
        return self._tokens[starts[:, None] + np.arange(self._context_length)]

    def starts(self) -> NDArray[np.int64]:
        """Start positions of all windows of the run in order, [count]."""
        return np.array([self._start(index) for index in range(self._count)])

    def _start(self, index: int) -> int:
        epoch, position = divmod(index, self._per_epoch)
        if epoch != self._epoch:
            generator = np.random.default_rng([self._seed, epoch])
            offset = generator.integers(self._offsets)
            order = generator.permutation(self._per_epoch)
            self._epoch, self._starts = epoch, offset + order * self._context_length
        return int(self._starts[position])


def collate_windows(windows: Any) -> dict[str, Tensor]:
    """Returns a batch for the model: input_ids and labels, [B, T], int64.

    Args:
        windows: [B, T], any integer type.
    """
    ids = torch.from_numpy(np.asarray(windows).astype(np.int64))
    return {"input_ids": ids, "labels": ids}


def validation_windows(
    tokens: NDArray[Any], context_length: int, *, max_tokens: int | None, stride: int | None = None
) -> NDArray[np.int64]:
    """Returns where the windows of an evaluation start.

    Args:
        tokens: [tokens].
        context_length: T.
        max_tokens: at most this many tokens are covered, at least T, in windows spread evenly over
            the file; None takes all.
        stride: distance between windows; None is T, disjoint.

    Returns:
        Start positions, [windows], int64, at least one.

    Raises:
        ValueError: the stride does not fit between 1 and T, or the tokens hold no window.
    """
    stride = context_length if stride is None else stride
    if not 1 <= stride <= context_length:
        raise ValueError(f"evaluate: stride must be between 1 and {context_length}, got {stride}")
    if max_tokens is not None and max_tokens < context_length:
        raise ValueError(
            f"evaluate: max_tokens must be at least one window of {context_length} tokens, got "
            f"{max_tokens}"
        )
    if len(tokens) < context_length:
        raise ValueError(
            f"evaluate: the text must hold a window of {context_length} tokens, got {len(tokens)} "
            "tokens; measure on more text"
        )
    available = (len(tokens) - context_length) // stride + 1
    wanted = available if max_tokens is None else (max_tokens - context_length) // stride + 1
    if wanted >= available:
        return np.arange(available) * stride
    if stride < context_length:
        # Overlapping windows only mean something next to each other.
        return np.arange(wanted) * stride
    return np.arange(wanted) * available // wanted * stride
