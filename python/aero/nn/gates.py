"""Factors from 0 to 1 on parts of a network: at 1 the part is as it is, at 0 as if it were absent.

The gates of activations are those of Selective Network Linearization (Cho et al., ICML 2022, arXiv
2202.02340), c act(x) + (1 - c) x; heads and feed-forwards have them likewise.
"""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn

from aero.nn.weight_decay import Scales

# What may have gates, in the order of their names in settings.
GATED_PARTS = ("heads", "ffns", "activation", "windows")
# Into so many equal parts gates divide a context.
_MOST_WINDOWS = 8


def window_step(context_length: int) -> int:
    """How many tokens each gate of a window adds to it; the first so many are always seen."""
    return -(-context_length // _MOST_WINDOWS)


class Gates(Scales):
    """The gates of a network, all at 1 at first.

    Args:
        parts: those of `GATED_PARTS` that have gates.
        num_heads: H.
        num_layers: L.
        context_length: T.

    Attributes:
        heads: [H], of the head of this number in every layer; None without.
        ffns: [L], of the feed-forward with its norm and residual scales; None without.
        activation: [1], of all feed-forwards; None without.
        windows: [W], of all layers: how far queries see, `window_step` tokens further with each
            gate. A key counts with the product of the gates up to its distance, so that a gate at
            0 hides all that is further away. None without.
    """

    _scale_names = GATED_PARTS
    heads: nn.Parameter | None
    ffns: nn.Parameter | None
    activation: nn.Parameter | None
    windows: nn.Parameter | None

    def __init__(
        self, parts: Collection[str], num_heads: int, num_layers: int, context_length: int
    ) -> None:
        super().__init__()
        self.window_step = window_step(context_length)
        steps = -(-context_length // self.window_step) - 1
        for part, count in zip(GATED_PARTS, (num_heads, num_layers, 1, steps), strict=True):
            gate = nn.Parameter(torch.ones(count)) if part in parts else None
            self.register_parameter(part, gate)

    def on_heads(self, attended: Tensor) -> Tensor:
        """Heads' outputs, [B, H, T, D], times their gates."""
        gates = self.heads
        return attended if gates is None else attended * gates.to(attended.dtype).view(-1, 1, 1)

    def on_scores(self, num_queries: int, num_keys: int, num_cached: int | Tensor) -> Tensor | None:
        """What gates of windows add to the scores, [1, 1, T, S], float32: logarithms; else None.

        Args:
            num_queries: T.
            num_keys: S, from the first position on.
            num_cached: the position of the first query.
        """
        gates = self.windows
        if gates is None:
            return None
        queries = num_cached + torch.arange(num_queries, device=gates.device)[:, None]
        distance = queries - torch.arange(num_keys, device=gates.device)
        # Gates stay finite at 0, where nothing can come back through them.
        logarithms = torch.where(gates > 0, gates.clamp(min=1e-30).log(), -torch.inf).float()
        added = torch.zeros_like(distance, dtype=torch.float32)
        for number, logarithm in enumerate(logarithms, start=1):
            added = added + torch.where(distance >= number * self.window_step, logarithm, 0.0)
        return added[None, None]

    def on_ffn(self, stream: Tensor, fed: Tensor, layer_index: int) -> Tensor:
        """The stream before a feed-forward at a gate of 0, after it at 1, [B, T, C]."""
        gates = self.ffns
        if gates is None:
            return fed
        return torch.lerp(stream, fed, gates[layer_index].to(fed.dtype))

    def by_name(self) -> dict[str, Tensor]:
        """The gates that there are, by the name of their parts."""
        return dict(self.named_parameters(recurse=False))
