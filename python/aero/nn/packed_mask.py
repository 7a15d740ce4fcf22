"""The mask of windows and of sequences packed one after the other, without its T x T values.

Letters: B batch, H heads, G key heads, T queries and as many keys, D head width, N sequences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from aero import ops


class PackedMask(Tensor):
    """Boolean [B, 1, T, T]: causal, within each sequence, and within a window where there is one.

    `attend` reads where the sequences begin. Whoever computes with it gets the values.

    Args:
        starts: [N + 1] int32, where each sequence begins in the B rows in a row, and B T.
        batch: B; each row begins a sequence.
        length: T.
        window: how many keys before itself a query sees; None for all of its sequence.
    """

    starts: Tensor
    window: int | None

    @staticmethod
    def __new__(cls, starts: Tensor, batch: int, length: int, window: int | None) -> PackedMask:
        """A tensor without memory of its own."""
        make: Any = Tensor._make_wrapper_subclass
        return make(cls, (batch, 1, length, length), dtype=torch.bool, device=starts.device)  # type: ignore[no-any-return]

    def __init__(self, starts: Tensor, batch: int, length: int, window: int | None) -> None:
        self.starts, self.window = starts, window

    @property
    def is_packed(self) -> bool:
        """True if a row has several sequences."""
        return len(self.starts) > self.shape[0] + 1

    def values(self) -> Tensor:
        """The mask as any other."""
        batch, _, length, _ = self.shape
        at = torch.arange(batch * length, device=self.starts.device)
        sequence = torch.bucketize(at, self.starts[1:], right=True).view(batch, 1, length)
        back = at[:length, None] - at[:length]
        seen = (sequence.unsqueeze(-1) == sequence.unsqueeze(-2)) & (back >= 0)
        return seen if self.window is None else seen & (back <= self.window)

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(PackedMask, PackedMask.values, (args, kwargs or {}))
        return func(*args, **kwargs)

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        return ["starts"], (self.shape[0], self.shape[-1], self.window)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, *_: Any) -> PackedMask:
        return PackedMask(inner["starts"], *context)


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    temperature: Tensor | None = None,
    bias: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """`aero.ops.attention_entropy`, for packed sequences in one call without a mask.

    Args:
        query: [B, H, T, D].
        key: [B, G, T, D].
        value: [B, G, T, Dv].
        mask: a `PackedMask`, or as there.
        temperature: as there.
        bias: as there; the mask's values are formed beside one.
        **options: as there; a packed mask has the window, and says that it is causal.
    """
    if not isinstance(mask, PackedMask) or bias is not None or key.shape[2] != query.shape[2]:
        mask = mask.values() if isinstance(mask, PackedMask) else mask
        options.update(mask=mask, temperature=temperature, bias=bias)
        out, entropy, logsumexp = ops.attention_entropy(query, key, value, **options)
        return out, entropy, logsumexp
    window = None if mask.window is None else (mask.window, 0)
    options.update(is_causal=True, window=window)
    if not mask.is_packed:
        options.update(temperature=temperature)
        out, entropy, logsumexp = ops.attention_entropy(query, key, value, **options)
        return out, entropy, logsumexp
    batch, heads, length, _ = query.shape
    if temperature is not None and temperature.dim() > 1:
        temperature = temperature.expand(batch, heads, length).transpose(0, 1).reshape(1, heads, -1)
    options.update(temperature=temperature, cu_seqlens=mask.starts)
    rows = (x.transpose(1, 2).flatten(0, 1)[None].transpose(1, 2) for x in (query, key, value))
    out, entropy, logsumexp = ops.attention_entropy(*rows, **options)
    out = out.transpose(1, 2).view(batch, length, heads, -1).transpose(1, 2)
    entropy, logsumexp = (
        x.view(heads, batch, length).transpose(0, 1) for x in (entropy, logsumexp)
    )
    return out, entropy, logsumexp
