"""What torch's attention computes without its flash attention, computed by `attention_entropy`.

Torch has one operator for it, which is made of others: for dropout, for masks that learn, and for
shapes that its flash attention does not take.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend
from torch.utils._python_dispatch import _get_current_dispatch_mode

from aero.ops._boundary import statistics_dtype
from aero.ops.attention_entropy import attention_entropy

MATH = "_scaled_dot_product_attention_math"
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
MAX_HEAD_DIM = 512  # kMaxHeadDim of kernels/attention_entropy.h

# Of fewer scores torch's products take less time than a call of ours. At as many, forward and
# backward, H 8, D 64, torch takes 1.03 to 1.45 times as long, with masks, which torch adds in
# place, 0.99 to 1.25 times (float32 and bfloat16, one thread of a busy Cascade Lake).
_FEWEST_SCORES = 2**17
_FEWEST_MASKED_SCORES = 2**18


def attention(
    is_lasting: Callable[[], bool],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    dropout_mask: Tensor | None = None,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[Tensor, Tensor]:
    """The attention that torch computes by its operators, where it is ours without the weights."""
    operands = None
    if (
        is_lasting()
        and dropout_mask is None
        and 0 <= dropout_p < 1
        and (scale is None or math.isfinite(scale))
        # With other numbers of keys torch's causal rule counts from the first key, ours from the
        # last.
        and (not is_causal or query.shape[-2] == key.shape[-2])
        and _is_in_reach(query, key, value, attn_mask)
        and _has_no_flash(query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
    ):
        operands = _operands(query, key, value, attn_mask, enable_gqa)
    if operands is None:
        return getattr(torch.ops.aten, MATH).default.decompose(  # type: ignore[no-any-return]
            query, key, value, attn_mask, dropout_p, is_causal, dropout_mask, scale=scale,
            enable_gqa=enable_gqa,
        )  # fmt: skip
    q, k, v, mask = operands
    visible, bias = seen_and_added(mask, query.dtype)
    out, _, _ = attention_entropy(
        q, k, v, mask=visible, bias=bias, is_causal=is_causal, scale=scale, dropout_p=dropout_p
    )
    batch = _common(query.shape[:-3], key.shape[:-3])
    out = out.reshape((*(batch or ()), *out.shape[1:])[-query.dim() :])
    return out.contiguous(), out.new_empty(0)  # as torch's is in memory


def seen_and_added(mask: Tensor | None, dtype: torch.dtype) -> tuple[Tensor | None, Tensor | None]:
    """What is visible and what is added to scores of `dtype`.

    A mask of 0 and -inf, as torch makes it of a boolean one, is that again, unless it learns; any
    other is a bias.
    """
    if mask is None or mask.dtype == torch.bool:
        return mask, None
    if not mask.requires_grad:
        for dim, stride in enumerate(mask.stride()):
            if stride == 0:  # expanded
                mask = mask.narrow(dim, 0, min(1, mask.shape[dim]))
        visible = mask == 0
        if torch.equal(visible, mask != -math.inf):
            return visible, None
    return None, mask if mask.dtype == dtype else mask.to(statistics_dtype(dtype))


def _is_in_reach(*tensors: Tensor | None) -> bool:
    """Returns whether these are plain tensors of the CPU, outside torch's transforms and graphs.

    Not traced: graphs outlast the acceleration. Torch also keeps compiled ones on disk, under keys
    that do not tell who computes attention, and a process that has compiled one before keeps using
    its old table of kernels. Subclasses and dispatch modes know torch's operators alone.
    """
    python = torch._C.DispatchKey.Python
    return (
        _get_current_dispatch_mode() is None
        and not torch._C._are_functorch_transforms_active()
        and all(
            x.is_cpu and not torch._C._dispatch_keys(x).has(python)
            for x in tensors
            if x is not None
        )
    )


def _has_no_flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
) -> bool:
    """Returns whether torch is here as its flash attention cannot, and takes more time than ours.

    Who switches that off wants these operators, and who calls them where it could, their weights.
    """
    if not torch._C._get_flash_sdp_enabled():
        return False
    fewest = _FEWEST_SCORES if mask is None else _FEWEST_MASKED_SCORES
    if dropout_p == 0 and query.shape[:-1].numel() * key.shape[-2] < fewest:
        return False
    choice = torch._fused_sdp_choice(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )
    return choice == SDPBackend.MATH.value


def _operands(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None] | None:
    """The operands as [B, H, T, D] and the mask; None where torch is to decide."""
    if (
        not query.dim() == key.dim() == value.dim() >= 2
        or not query.dtype == key.dtype == value.dtype
        or query.dtype not in DTYPES
        or key.shape[:-1] != value.shape[:-1]
        or max(query.shape[-1], value.shape[-1]) > MAX_HEAD_DIM
        or min(query.numel(), value.numel()) == 0
        or (mask is not None and mask.dim() > query.dim())
    ):
        return None
    if query.dim() == 2:
        query, key, value = query[None], key[None], value[None]
    heads, groups = query.shape[-3], key.shape[-3]
    batch = _common(query.shape[:-3], key.shape[:-3])
    if batch is None or not (groups in (1, heads) or (enable_gqa and heads % groups == 0)):
        return None
    if mask is not None:
        scores = torch.Size((*batch, heads, query.shape[-2], key.shape[-2]))
        if _common(mask.shape, scores) != scores:
            return None
        mask = mask if mask.dim() < 4 else _of_one_batch(mask, batch)
    q, k, v = (_of_one_batch(x, batch) for x in (query, key, value))
    return q, k, v, mask


def _of_one_batch(x: Tensor, batch: torch.Size) -> Tensor:
    """An operand or mask of [*batch, ...] with one dimension for all of `batch`."""
    if len(batch) == 1 and x.shape[:-3] == batch:
        return x
    return x.expand(*batch, *x.shape[-3:]).reshape(-1, *x.shape[-3:])


def _common(one: torch.Size, other: torch.Size) -> torch.Size | None:
    """The shape to which both broadcast."""
    try:
        return torch.Size(torch.broadcast_shapes(one, other))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
