"""Torch's own attention on the CPU, computed by the kernels of `attention_entropy`.

Torch sends `scaled_dot_product_attention` on the CPU to two operators, forward and backward, where
its flash attention takes the call, and to a third for all else (`_torch_math.py`). `accelerate`
puts kernels of this library in their place, under torch's autograd, autocast and compiler.
`torch.nn.attention.register_flash_attention_impl` is no way to do it: it only calls a function that
registers such kernels, and has one place, which the implementations for GPUs share.
"""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from aero import _library as _library
from aero.ops._gradients import PLAIN, VARIANTS
from aero.ops._torch_math import DTYPES, MATH, MAX_HEAD_DIM, attention, seen_and_added

FORWARD = "_scaled_dot_product_flash_attention_for_cpu"
BACKWARD = f"{FORWARD}_backward"

_LOG2_E = math.log2(math.e)


class Acceleration:
    """What `accelerate` returns: `remove` ends it, and so does leaving a `with` block."""

    def __init__(self) -> None:
        self._depth = 0
        _hold(self)

    def remove(self) -> None:
        """Gives torch its kernels back, unless another acceleration lasts."""
        _release(self)

    def __enter__(self) -> Acceleration:
        with _lock:
            self._depth += 1
        _hold(self)
        return self

    def __exit__(self, *error: object) -> None:
        with _lock:
            self._depth -= 1
            is_outermost = self._depth == 0
        if is_outermost:
            _release(self)


def accelerate() -> Acceleration:
    """Makes `scaled_dot_product_attention` on the CPU run on this library's kernels.

    Programs stay as they are: their attention is faster, with and without gradients, and equal
    within the rounding of its dtype. It begins at once, for all threads of the process, and lasts
    until the result's `remove()` or the end of a `with` block. Calls nest: torch's kernels are back
    when the last has ended. The first call is not for a moment when another thread attends, for
    torch cannot register kernels beside running ones; later calls and ends may come at any time.

    What torch gives to its flash attention comes here: [B, H, T, D] in float32, bfloat16, float16
    or float64, causal or not, `scale`, `enable_gqa=True`, masks; under autocast, `torch.compile`
    and `torch.export`, in graphs compiled before too. So does most of what torch computes without
    it: values of another width than keys, masks that learn or are [H, T, S], [H, T, D], [T, D] and
    several dimensions of batches, keys of one batch entry or head for all queries, and dropout,
    which draws other numbers than torch's.

    The rest is torch's as before: D above 512, `is_causal` where T is not S, and empty operands. So
    is what torch computes without its flash attention in compiled and exported graphs, in
    `torch.func` and in dispatch modes, for subclasses of tensors, where `sdpa_kernel` asks for
    torch's operators, and, without dropout, of fewer than 131,072 scores (B H T S), or 262,144 with
    a mask, where torch takes less time. Packages of AOTInductor and the fast path that
    `torch.nn.MultiheadAttention` takes without gradients do not call
    `scaled_dot_product_attention`. Programs that call torch's internal
    `_scaled_dot_product_attention_math` for its second result, the weights, get none where it is
    computed here.

    A call costs about 0.03 ms more than torch's, 0.1 ms with gradients, so short
    attention in float32 is slower: of up to about 50 tokens, or of one query and 500 keys.

    Gradients keep their digits at large scores: the maximum and the sum of each row lie in the
    memory behind the logsumexp that torch saves. Where hooks save a copy of it, they have its
    rounding, which is 6e-5 of a gradient at scores of 1,000. Second derivatives are an error where
    torch's are.

    Returns:
        An object whose `remove()` ends it, harmless when called again; also a context manager.

    Raises:
        ImportError: torch or the operator library does not fit.

    Example:
        >>> import aero, torch
        >>> q, k, v = torch.randn(3, 1, 2, 8, 16)  # [B, H, T, D] each
        >>> theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> with aero.accelerate():
        ...     ours = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        >>> torch.allclose(ours, theirs, atol=1e-6)
        True
    """
    return Acceleration()


_lock = threading.RLock()
_holders: set[Acceleration] = set()
_registered: list[torch.library.Library] = []


def _hold(holder: Acceleration) -> None:
    with _lock:
        _holders.add(holder)
        if not _registered:
            _registered.append(_replace({FORWARD: _forward, BACKWARD: _backward}))
            general = partial(attention, lambda: bool(_holders))
            for keys in ("AutogradCPU", "CPU"):  # inference mode has no autograd
                _registered[0].impl(MATH, general, keys, allow_override=True)  # type: ignore[no-untyped-call]


def _release(holder: Acceleration) -> None:
    with _lock:
        _holders.discard(holder)
        # Torch changes its table of kernels without a lock: a call in another thread could find
        # half an entry. Beside other threads the kernels stay, and hand every call on.
        if not _holders and _registered and threading.active_count() == 1:
            _registered.pop()._destroy()  # type: ignore[no-untyped-call]


def _replace(kernels: dict[str, Callable[..., Any]]) -> torch.library.Library:
    """Registers kernels for the CPU, which get torch's own as their first argument."""
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name, kernel in kernels.items():
            torchs = torch.library.get_kernel(f"aten::{name}", "CPU")
            ours = partial(kernel, torchs)
            library.impl(  # type: ignore[no-untyped-call]
                name, ours, "CPU", with_keyset=True, allow_override=True
            )
    return library


def _forward(
    torchs: Any,
    keys: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    if not _is_ours(query, key, value, dropout_p, is_causal, scale):
        return torchs.call_boxed(  # type: ignore[no-any-return]
            keys, query, key, value, dropout_p, is_causal, attn_mask=attn_mask, scale=scale
        )
    visible, variants = _visibility(attn_mask, query)
    native = torch.ops.aero.attention_entropy.default
    out, _, logsumexp, statistics, _, _ = native(
        query, key, value, None, visible, is_causal, scale, *variants, False
    )
    if attn_mask is not None:  # torch's of a row without keys
        logsumexp.masked_fill_(logsumexp == -math.inf, 0)
    return _laid_out_like(query, out), _with_statistics(logsumexp, statistics)


def _backward(
    torchs: Any,
    keys: Any,
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, ...]:
    if not _is_ours(query, key, value, dropout_p, is_causal, scale):
        return torchs.call_boxed(  # type: ignore[no-any-return]
            keys, grad_out, query, key, value, out, logsumexp, dropout_p, is_causal,
            attn_mask=attn_mask, scale=scale,
        )  # fmt: skip
    visible, variants = _visibility(attn_mask, query)
    gradients = torch.ops.aero.attention_entropy_backward.default(
        grad_out, None, None, None, query, key, value, None, visible, out,
        _statistics_of(logsumexp), None, is_causal, scale, *variants, True, True, True,
        *[False] * 4,
    )  # fmt: skip
    return tuple(map(_heads_last, gradients[:3]))


def _is_ours(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> bool:
    """Returns whether the kernels compute what torch's would; torch has checked the shapes."""
    return (
        bool(_holders)
        and dropout_p == 0
        and query.dtype in DTYPES
        and query.shape[-1] <= MAX_HEAD_DIM
        # With other numbers of keys torch's causal rule counts from the first key, ours from the
        # last.
        and (not is_causal or query.shape[2] == key.shape[2])
        and (scale is None or math.isfinite(scale))
        and key.shape == value.shape
        and query.dtype == key.dtype == value.dtype
    )


def _visibility(mask: Tensor | None, query: Tensor) -> tuple[Tensor | None, tuple[Any, ...]]:
    """The mask of the operator, and its variants."""
    visible, bias = seen_and_added(mask, query.dtype)
    if bias is None:
        return visible, PLAIN
    return None, tuple(
        bias if name == "bias" else x for name, x in zip(VARIANTS, PLAIN, strict=True)
    )


def _laid_out_like(query: Tensor, out: Tensor) -> Tensor:
    """`out` in the memory layout that torch's has, on which compiled graphs rely."""
    like = torch.empty_like(query)
    return out if _is_same_layout(out.shape, out.stride(), like.stride()) else like.copy_(out)


def _heads_last(gradient: Tensor) -> Tensor:
    """A gradient in the memory layout that torch's has: [B, T, H, D]."""
    return gradient.transpose(1, 2).contiguous().transpose(1, 2)


def _is_same_layout(shape: Iterable[int], one: Iterable[int], other: Iterable[int]) -> bool:
    return all(n <= 1 or a == b for n, a, b in zip(shape, one, other, strict=True))


def _with_statistics(logsumexp: Tensor, statistics: Tensor) -> Tensor:
    """Logsumexp [B, H, T] in torch's layout; behind it in memory maximum, sum and itself again."""
    batch, heads, queries = logsumexp.shape
    statistics.select(2, 2).copy_(logsumexp)  # for the offset, which only entropies need
    memory = torch.cat((logsumexp.transpose(1, 2).reshape(-1), statistics.view(-1)))
    return memory.as_strided((batch, heads, queries), (queries * heads, 1, heads))


def _statistics_of(logsumexp: Tensor) -> Tensor:
    """The statistics [B, H, 3, T] behind logsumexp, or from it where it is torch's or a copy."""
    batch, heads, queries = logsumexp.shape
    size = logsumexp.numel()
    held = logsumexp.untyped_storage().nbytes() == 4 * size * logsumexp.element_size()
    if held and logsumexp.storage_offset() == 0:
        strides = (3 * heads * queries, 3 * queries, queries, 1)
        kept = logsumexp.as_strided((batch, heads, 3, queries), strides, size)
        if torch.equal(kept.select(2, 2), logsumexp):
            return kept
    exact = logsumexp.double() * _LOG2_E
    maximum = exact.to(logsumexp.dtype)
    rest = torch.exp2(exact - maximum).to(logsumexp.dtype)  # what rounding the maximum has lost
    return torch.stack((maximum, rest, torch.zeros_like(rest)), dim=2)
