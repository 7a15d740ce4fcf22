"""What the functions of `aero.flash_attn` are given, checked; `where` names the function."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor


def visible_window(
    where: str, window: tuple[int, int], causal: bool, num_queries: int, num_keys: int
) -> tuple[int | None, int | None]:
    """How far back and ahead a query sees; None where it is all keys."""
    try:
        left, right = map(operator.index, window)
    except (TypeError, ValueError):
        expected = "window_size must be two integers (left, right)"
        raise ValueError(f"{where}: {expected}, got {window!r}") from None
    right = 0 if causal else right
    sees_first = left < 0 or left >= num_keys - 1
    sees_last = right < 0 or (right >= num_queries - 1 and not causal)
    return None if sees_first else left, None if sees_last else right


def lengths_of(where: str, name: str, starts: Tensor, tokens: Tensor) -> list[int]:
    """The lengths of the sequences."""
    if not isinstance(starts, Tensor) or starts.is_floating_point() or starts.is_complex():
        got = starts.dtype if isinstance(starts, Tensor) else type(starts).__name__
        raise ValueError(f"{where}: {name} must be a tensor of integers, got {got}")
    numbers = starts.tolist() if starts.dim() == 1 else []
    lengths = [after - before for before, after in pairwise(numbers)]
    if not numbers or numbers[0] != 0 or numbers[-1] != len(tokens) or min(lengths, default=0) < 0:
        raise ValueError(
            f"{where}: {name} must rise from 0 to the {len(tokens)} tokens, got {numbers or starts}"
        )
    return lengths


def held_keys(where: str, lengths: int | Tensor | None, cache: Tensor, has_new: bool) -> list[int]:
    """How many keys the cache holds for each sequence."""
    batch, room = cache.shape[:2]
    if lengths is None and has_new:
        raise ValueError(f"{where}: expected cache_seqlens where k is given, got None")
    given = room if lengths is None else lengths
    numbers = given.tolist() if isinstance(given, Tensor) else given
    try:
        held = (
            [operator.index(n) for n in numbers]
            if isinstance(numbers, list)
            else [operator.index(numbers)] * batch
        )
    except TypeError:
        held = []
    if len(held) != batch or not all(0 <= n <= room for n in held):
        raise ValueError(
            f"{where}: cache_seqlens must be an integer or [B] = [{batch}] of them from 0 to "
            f"{room}, got {numbers}"
        )
    return held


def refuse(where: str, **arguments: Any) -> None:
    """Raises an error for what is asked for and not supported."""
    for name, value in arguments.items():
        if value is not None and (isinstance(value, Tensor) or value):
            got = f"[{', '.join(map(str, value.shape))}]" if isinstance(value, Tensor) else value
            raise ValueError(f"{where}: {name} is not supported, leave it out, got {got}")


def require_sizes(
    where: str,
    layout: str,
    sizes: Sequence[int | None],
    like: Tensor | None = None,
    **tensors: Tensor,
) -> None:
    """Refuses what is no tensor of these sizes, where None is any, and of the dtype of q."""
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{where}: {name} must be a tensor, got {type(tensor).__name__}")
        shape = list(tensor.shape)
        fits = len(shape) == len(sizes) and all(
            want is None or want == has for want, has in zip(sizes, shape, strict=True)
        )
        if not fits:
            known = any(size is not None for size in sizes)
            wanted = f" = [{', '.join('any' if n is None else str(n) for n in sizes)}]"
            raise ValueError(
                f"{where}: {name} must be {layout}{wanted if known else ''}, got {shape}"
            )
        if like is not None and tensor.dtype != like.dtype:
            raise ValueError(f"{where}: {name} must be {like.dtype} like q, got {tensor.dtype}")
