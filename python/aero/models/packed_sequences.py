"""Packed sequences, whose positions start again, and windows, without a mask of T x T.

Letters: B batch, T queries, S keys.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from aero.nn.packed_mask import PackedMask


def is_packed(position_ids: Tensor | None) -> bool:
    """True if positions start again inside a row; a compiled graph cannot look and says no."""
    if position_ids is None or position_ids.dim() != 2 or torch.compiler.is_compiling():
        return False
    return bool((position_ids[:, 1:] == 0).any())


def packed_mask(
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    **sizes: Any,
) -> PackedMask | None:
    """The mask that `transformers` asks for, where it is of packed sequences or windows alone.

    It is then made of `causal_mask_function` and of functions whose names are looked for here;
    others, padding and compiled graphs, which cannot look at values, have a mask of values. So has
    plain causal attention, which needs none.
    """
    is_traced = torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None
    if use_vmap or is_traced:
        return None
    parts = dict(_parts(mask_function))
    packed = parts.pop("packed_sequence_mask_function", None)
    remapped = parts.pop("remap_positions_for_packed_sequence", None)
    if packed is None and remapped is None:
        window = _window_of(parts)
        return None if window is None else _mask_of_rows(window, attention_mask, **sizes)
    if packed is None or remapped is None or parts or attention_mask is not None:
        return None
    inner = dict(_parts(remapped["mask_function"]))
    window = _window_of(inner)
    if window is None and inner.keys() != {causal_mask_function.__name__}:
        return None
    sequences = packed["packed_sequence_mask"]
    if not sequences.is_cpu:  # looking at values makes the host wait there
        return None
    batch, length = sequences.shape
    begins = torch.ones_like(sequences, dtype=torch.bool)
    begins[:, 1:] = sequences.diff() != 0
    starts = begins.flatten().nonzero().flatten()
    return _mask_of([*starts.tolist(), batch * length], batch, length, window)


def _window_of(parts: dict[str, dict[str, Any]]) -> int | None:
    """The window of a mask that is made of it and of causality alone."""
    if parts.keys() != {"sliding_window_overlay", causal_mask_function.__name__}:
        return None
    window: int | None = parts["sliding_window_overlay"].get("sliding_window")
    return window


def _mask_of_rows(
    window: int,
    attention_mask: Tensor | None,
    *,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    device: Any = "cpu",
    **_: Any,
) -> PackedMask | None:
    """The mask of rows that are a sequence each; None where others say it, or hide more."""
    is_whole = q_length == kv_length >= window
    if not is_whole or not isinstance(q_offset, int) or (q_offset, kv_offset) != (0, 0):
        return None
    if torch.device(device).type != "cpu":  # looking at values makes the host wait there
        return None
    if attention_mask is not None and not (
        type(attention_mask) is Tensor
        and attention_mask.shape == (batch_size, q_length)
        and bool(attention_mask.all())
    ):
        return None
    starts = list(range(0, batch_size * q_length + 1, q_length))
    return _mask_of(starts, batch_size, q_length, window)


def _mask_of(starts: list[int], batch: int, length: int, window: int | None) -> PackedMask:
    left = None if window is None else window - 1
    return PackedMask(torch.tensor(starts, dtype=torch.int32), batch, length, left)


def _parts(function: Callable[..., Any]) -> list[tuple[str, dict[str, Any]]]:
    """The name of each function that a mask is made of, and what it was made with."""
    name = function.__qualname__.partition(".")[0]
    if function.__module__ != causal_mask_function.__module__:
        name = f"{function.__module__}.{name}"
    within = dict(inspect.getclosurevars(function).nonlocals)
    if name != "and_masks":
        return [(name, within)]
    return [part for each in within["mask_functions"] for part in _parts(each)]


def within_window(mask: Tensor, window: int, num_cached: int | Tensor) -> Tensor:
    """A causal mask that shows each query the last `window` keys at most, its own included.

    Args:
        mask: [B, H or 1, T, S], True where visible.
        window: the number.
        num_cached: keys before the first query's own.
    """
    if isinstance(mask, PackedMask):
        length = mask.shape[-1]
        return PackedMask(mask.starts, mask.shape[0], length, window - 1)
    queries, keys = (torch.arange(size, device=mask.device) for size in mask.shape[-2:])
    return mask & (keys > num_cached + queries[:, None] - window)


def packed_by_starts(
    where: str,
    mask: Tensor | None,
    rows: tuple[int, int],
    window: int | None,
    starts: Tensor | None,
    keys: Any,
) -> tuple[Tensor | None, Tensor | None]:
    """The mask of a call that says in `cu_seq_lens_q` where its sequences begin.

    Args:
        where: the beginning of the error.
        mask: as the layer got it.
        rows: B and T.
        window: the layer's, in `transformers`' way of counting.
        starts: `cu_seq_lens_q`, on the layer's device; None where it is not given.
        keys: `cu_seq_lens_k`.

    Returns:
        The mask, and positions that begin again where sequences do, by which one of values is
        to be looked at.

    Raises:
        ValueError: they do not fit, or differ from those of the mask.
    """
    if starts is None or len(starts) <= 2:
        return mask, None
    given = starts.tolist()
    batch, length = rows
    total = batch * length
    fits = given == sorted(given) and (given[0], given[-1]) == (0, total)
    fits = fits and set(range(0, total, length)) <= set(given)
    if not fits or given != torch.as_tensor(given if keys is None else keys).tolist():
        raise ValueError(
            f"{where}: cu_seq_lens_q must rise from 0 to the {total} tokens, begin a sequence in "
            f"each row, and be cu_seq_lens_k, got {given}"
        )
    begun = sorted(set(given[:-1]) - {total})
    own = _mask_of([*begun, total], batch, length, window)
    if isinstance(mask, PackedMask) and mask.is_packed:
        if not torch.equal(mask.starts, own.starts):
            raise ValueError(
                f"{where}: cu_seq_lens_q must begin sequences where position_ids do, got {given}"
            )
        return mask, None
    if mask is None and starts.is_cpu:
        return own, None
    at = torch.arange(total)
    positions = at - own.starts[torch.bucketize(at, own.starts[1:], right=True)]
    return mask, positions.view(batch, length).to(starts.device)


def refuse_crossing(
    where: str, position_ids: Tensor | None, mask: Tensor | None, num_keys: int
) -> None:
    """Refuses packed sequences that would see each other.

    `transformers` keeps them apart where it gets no cache and no mask of padding.

    Args:
        where: the beginning of the error.
        position_ids: [B, T] or [1, T].
        mask: boolean [B, 1, T, S], True where visible; None for plain causal attention.
        num_keys: S; more than T where keys are cached, which says nothing about their sequences.

    Raises:
        ValueError: a row sees a key before the start of its sequence.
    """
    if position_ids is None or position_ids.shape[-1] != num_keys or not is_packed(position_ids):
        return
    if isinstance(mask, PackedMask):
        if mask.is_packed:  # made of these positions
            return
        mask = None
    if mask is not None:
        sequence = (position_ids == 0).cumsum(dim=-1)
        is_other = sequence.unsqueeze(-1) != sequence.unsqueeze(-2)
        visible = mask.any(dim=1)
        # Rows of padding, which do not see themselves, may see anything.
        is_token = visible.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        if not (visible & is_other & is_token).any():
            return
    raise ValueError(
        f"{where} got position_ids that start again, and tokens would see the sequences before "
        "theirs; pass use_cache=False and no attention_mask, or a boolean [B, 1, T, S]"
    )


# Positions and mask of the last call that passed, and the positions' version.
_passed: tuple[list[weakref.ref[Tensor]], int] = ([], 0)


def refuse_packed_layer(
    module: nn.Module, mask: Tensor | None, num_keys: int, position_ids: Tensor | None
) -> None:
    """Refuses packed sequences that see each other; looks once per call, as GPUs wait for it."""
    global _passed
    is_packed_already = isinstance(mask, PackedMask) and mask.is_packed
    if position_ids is None or is_packed_already or torch.compiler.is_compiling():
        return
    call = [position_ids] if mask is None else [position_ids, mask]
    version = 0 if position_ids.is_inference() else position_ids._version
    before, at = _passed
    is_same = len(before) == len(call) and all(
        reference() is tensor for reference, tensor in zip(before, call, strict=True)
    )
    if not is_same or at != version:
        where = f"aero attention: {type(module).__name__}"
        refuse_crossing(where, position_ids, mask, num_keys)
        _passed = [weakref.ref(tensor) for tensor in call], version
