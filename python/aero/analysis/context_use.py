"""Says whether a network uses its context: its loss by position, and on bigrams seen before.

Attention that stays spread out can still be used, and sharp attention can be of no use. A loss that
falls with the position uses what stands further back. A low loss on repeated bigrams copies.

Letters: B windows, T tokens per window.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from aero.internals.run_files import ContextLosses, CountedLoss, PositionLoss


@dataclass(frozen=True)
class ContextUse:
    """Sums of -log p, nats, over the predicted tokens of windows.

    A token is repeated if the token before it and it stood side by side earlier in its window.

    Attributes:
        position_nll: by how many tokens of context there were, from 1 on, [T - 1].
        position_tokens: likewise, the predicted tokens.
        repeated_nll: over repeated tokens.
        repeated_tokens: how many these are.

    Example:
        >>> from aero.analysis.context_use import ContextUse
        >>> found = ContextUse((4.0, 6.0, 9.0), (2, 2, 2), repeated_nll=1.0, repeated_tokens=2)
        >>> found.loss_by_position
        [(1, 1, 2.0), (2, 3, 3.75)]
        >>> found.loss_on_repeated, found.loss_on_new
        (0.5, 4.5)
    """

    position_nll: tuple[float, ...] = ()
    position_tokens: tuple[int, ...] = ()
    repeated_nll: float = 0.0
    repeated_tokens: int = 0

    @property
    def loss_by_position(self) -> list[tuple[int, int, float]]:
        """First and last number of tokens of context, and the loss; each range twice as long."""
        found, first = [], 1
        while first <= len(self.position_nll):
            last = min(2 * first - 1, len(self.position_nll))
            part = slice(first - 1, last)
            loss = _ratio(sum(self.position_nll[part]), sum(self.position_tokens[part]))
            found.append((first, last, loss))
            first = last + 1
        return found

    @property
    def loss_on_repeated(self) -> float:
        """Nats per token; NaN where none was repeated."""
        return _ratio(self.repeated_nll, self.repeated_tokens)

    @property
    def loss_on_new(self) -> float:
        """Nats per token that was not repeated; NaN where all were."""
        tokens = sum(self.position_tokens) - self.repeated_tokens
        return _ratio(sum(self.position_nll) - self.repeated_nll, tokens)

    def losses(self) -> ContextLosses:
        """Losses and counts as `evaluation.json` has them."""
        new_tokens = sum(self.position_tokens) - self.repeated_tokens
        return ContextLosses(
            [PositionLoss(*one) for one in self.loss_by_position],
            CountedLoss(self.loss_on_repeated, self.repeated_tokens),
            CountedLoss(self.loss_on_new, new_tokens),
        )


def repeated_bigrams(windows: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The tokens, but the first, that make a bigram which their window already had.

    Args:
        windows: token ids, [B, T].

    Returns:
        [B, T - 1].

    Example:
        >>> import numpy as np
        >>> from aero.analysis.context_use import repeated_bigrams
        >>> repeated_bigrams(np.array([[5, 6, 5, 6, 7]])).tolist()
        [[False, False, True, False]]
    """
    pairs = windows[:, :-1] * (int(windows.max(initial=0)) + 1) + windows[:, 1:]
    order = np.argsort(pairs, axis=1, kind="stable")
    in_order = np.take_along_axis(pairs, order, axis=1)
    follows = np.zeros(pairs.shape, dtype=np.bool_)
    follows[:, 1:] = in_order[:, 1:] == in_order[:, :-1]
    found = np.empty_like(follows)
    np.put_along_axis(found, order, follows, axis=1)
    return found


def context_text(found: ContextLosses) -> str:
    """All losses in one line."""
    ranges = [
        (f"{part.first}-{part.last}" if part.first < part.last else str(part.first))
        + f" {_shown(part.loss)}"
        for part in found.by_position
    ]
    return (
        f"loss by tokens of context: {', '.join(ranges)}; on repeated bigrams "
        f"{_shown(found.repeated.loss)}, on new tokens {_shown(found.new.loss)}"
    )


def _shown(loss: float | None) -> str:
    return "-" if loss is None or math.isnan(loss) else f"{loss:.2f}"


def _ratio(nll: float, tokens: int) -> float:
    return nll / tokens if tokens else math.nan
