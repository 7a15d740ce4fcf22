"""How many keys each row of a layer sees, counted in the mask that the layer got.

Windows, chunks, padding and packed sequences are in that mask, and layers of one model may differ.

Letters: L layers, B batch, H heads, T queries, S keys.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The facts about one layer's attention that decide what its rows see.

    Attributes:
        mask: boolean, broadcastable to [B, 1, T, S], True where visible; None for causal.
        num_keys: S, those of a cache included; the last query sees all of them where mask is None,
            or those of the window.
        window: how many keys a row sees at most where mask is None; 0: all.
    """

    mask: Tensor | None
    num_keys: int
    window: int = 0


class _Recording(threading.local):  # data parallelism runs its replicas in threads
    def __init__(self) -> None:
        self.calls: list[AttentionCall] | None = None


#: Where layers add their calls, if anybody asks for them.
recording = _Recording()


@contextmanager
def recorded_calls() -> Iterator[list[AttentionCall]]:
    """Fills the list with a call for every layer whose attention is computed meanwhile."""
    before = recording.calls
    calls: list[AttentionCall] = []
    recording.calls = calls
    try:
        yield calls
    finally:
        recording.calls = before


def keys_by_layer(
    where: str,
    calls: Sequence[AttentionCall],
    entropies: Sequence[Tensor],
    attention_mask: object = None,
) -> tuple[Tensor, ...] | None:
    """How many keys the rows see, L tensors [B, T], one and the same for layers of the same mask.

    Args:
        where: the beginning of the error.
        calls: of the layers, in their order.
        entropies: L tensors [B, H, T].
        attention_mask: as the model got it. [B, S], not 0 for tokens, says which rows are padding;
            all other forms are in the masks of the layers.

    Returns:
        The numbers, 0 in rows of padding; None where all rows are causal and none is padding.

    Raises:
        ValueError: a layer without call, or a mask that differs by head.
    """
    if len(calls) != len(entropies):
        raise ValueError(
            f"{where}: expected one attention per layer, got {len(calls)} in {len(entropies)} "
            "layers; compute every layer's attention once per call with 'aero_entropy'"
        )
    batch, _, length = entropies[0].shape
    tokens = None
    if isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        tokens = attention_mask[:, -length:].bool()
    causal = AttentionCall(None, length)
    if tokens is None and all(_is_same(call, causal) for call in calls):
        return None
    keys: list[Tensor] = []
    for index, call in enumerate(calls):
        alike = [other for other in range(index) if _is_same(calls[other], call)]
        if alike:
            keys.append(keys[alike[0]])
            continue
        seen = _visible_keys(where, call, length, entropies[0].device).expand(batch, length)
        keys.append(seen if tokens is None else seen.masked_fill(~tokens, 0))
    return tuple(keys)


def _is_same(one: AttentionCall, other: AttentionCall) -> bool:
    alike = (one.num_keys, one.window) == (other.num_keys, other.window)
    return alike and one.mask is other.mask


def _visible_keys(where: str, call: AttentionCall, length: int, device: torch.device) -> Tensor:
    if call.mask is None:
        seen = torch.arange(call.num_keys - length + 1, call.num_keys + 1, device=device)[None]
        return seen.clamp(max=call.window) if call.window else seen
    if call.mask.shape[1] != 1:
        raise ValueError(
            f"{where}: attention_mask must be the same for all heads, [B, 1, T, S], got "
            f"{list(call.mask.shape)}"
        )
    return call.mask[:, 0].sum(dim=-1)
