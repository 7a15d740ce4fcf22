"""Attention with a differentiable entropy, ours and everybody else's, as calls to be timed.

All get the same q, k and v (causal, in the layout that models pass) and return nothing but what
their gradients need. Torch's own attentions have neither entropy nor temperature.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from attention_entropy import listing as papers_listing

from aero.ops import attention_entropy

Call = Callable[[], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Shape:
    """Sizes of an attention call, causal with T = S."""

    batch: int
    length: int
    dtype: str = "bfloat16"
    heads: int = 12
    head_dim: int = 64

    @property
    def all_heads(self) -> int:
        return self.batch * self.heads

    @property
    def element_type(self) -> torch.dtype:
        """The type of the tensors; "tf32" is float32 that products may round."""
        found: torch.dtype = getattr(torch, self.dtype.replace("tf32", "float32"))
        return found

    def flops(self, backward: bool) -> float:
        """FLOPs of the products of tiles: two forward, five backward, over the visible pairs."""
        pairs = self.all_heads * self.length * (self.length + 1) / 2
        return pairs * self.head_dim * (4 + 10 * backward)

    def bytes_moved(self, backward: bool) -> float:
        """Every tensor read or written once: q, k, v and out; then out, dout and the gradients.

        Of a row also its entropy, logsumexp, three statistics and temperature, and on the way back
        the statistics, two gradients and the temperature with its own.
        """
        rows = self.all_heads * self.length
        row = self.head_dim * self.element_type.itemsize
        return rows * (4 * row + 6 * 4 + backward * (8 * row + 7 * 4))


@dataclass(frozen=True)
class Inputs:
    """Tensors of one shape; leaves need gradients where the backward direction is timed."""

    shape: Shape
    q: Tensor
    k: Tensor
    v: Tensor
    temperature: Tensor
    dout: Tensor
    dentropy: Tensor

    @classmethod
    def drawn(cls, shape: Shape, device: torch.device, backward: bool) -> Inputs:
        generator = torch.Generator(device).manual_seed(0)
        options: dict[str, Any] = {"device": device, "generator": generator}

        def heads() -> Tensor:
            size = (shape.batch, shape.length, shape.heads, shape.head_dim)
            x = torch.randn(size, **options).to(shape.element_type)
            return x.transpose(1, 2)

        q, k, v = (heads().requires_grad_(backward) for _ in range(3))
        temperature = 0.5 + torch.rand(shape.heads, shape.length, **options)
        dentropy = torch.randn(shape.batch, shape.heads, shape.length, **options)
        return cls(shape, q, k, v, temperature.requires_grad_(backward), heads(), dentropy)


def ours(x: Inputs, **given: Any) -> tuple[Tensor, ...]:
    return attention_entropy(x.q, x.k, x.v, temperature=x.temperature, is_causal=True, **given)[:2]


def listing(x: Inputs) -> tuple[Tensor, ...]:
    with x.q.device:
        return papers_listing(x.q, x.k, x.v, x.temperature)


def sdpa(backend: SDPBackend) -> Callable[[Inputs], tuple[Tensor, ...]]:
    def attend(x: Inputs) -> tuple[Tensor, ...]:
        with sdpa_kernel(backend):
            return (scaled_dot_product_attention(x.q, x.k, x.v, is_causal=True),)

    return attend


def see_the_past(batch: Any, head: Any, query: Any, key: Any) -> Any:
    return query >= key


def flex(compiled: bool) -> Callable[[Inputs], tuple[Tensor, ...]]:
    """FlexAttention over v and k side by side: P [v, k] gives out, and P k the mean score.

    entropy_i = logsumexp_i - (scale / t_i) q_i . (P k)_i, which can be differentiated; the
    temperature is multiplied into q.
    """
    attend_to = torch.compile(flex_attention, dynamic=False) if compiled else flex_attention
    masks: dict[Any, Any] = {}

    def attend(x: Inputs) -> tuple[Tensor, ...]:
        length, width = x.q.shape[2:]
        if length not in masks:
            masks[length] = create_block_mask(
                see_the_past, None, None, length, length, device=x.q.device
            )
        q = x.q / x.temperature[..., None].to(x.q.dtype)
        both, aux = attend_to(
            q,
            x.k,
            torch.cat([x.v, x.k], dim=-1),
            block_mask=masks[length],
            return_aux=AuxRequest(lse=True),
        )
        out, mean_key = both.split(width, dim=-1)
        mean_score = (q.float() * mean_key.float()).sum(-1) * width**-0.5
        return out, aux.lse - mean_score

    return attend


#: Ours with what FlashAttention's other users ask for, by the passes that look for it.
VARIANTS: dict[str, dict[str, Any]] = {
    "window": {"window": (255, 0)},
    "soft cap": {"softcap": 50.0},
}
#: Ours with one way of doing the backward direction, whatever the size of the call.
SCHEMES = ("heads", "split")


@contextmanager
def backward_scheme(scheme: str) -> Iterator[None]:
    """Makes our backward direction go one way; "" leaves it to the size of the call."""
    before = os.environ.get("AERO_CUDA_BACKWARD", "")
    os.environ["AERO_CUDA_BACKWARD"] = scheme
    try:
        yield
    finally:
        os.environ["AERO_CUDA_BACKWARD"] = before


def contenders(device: torch.device) -> dict[str, Callable[[Inputs], tuple[Tensor, ...]]]:
    """Everybody, by name."""
    on_gpu = device.type == "cuda"
    flash = SDPBackend.FLASH_ATTENTION
    return {
        "ours": ours,
        **dict.fromkeys(SCHEMES, ours),
        **{name: partial(ours, **given) for name, given in VARIANTS.items()},
        "flash": sdpa(flash),
        "cudnn": sdpa(SDPBackend.CUDNN_ATTENTION if on_gpu else SDPBackend.MATH),
        "flex": flex(compiled=on_gpu),
        "listing": listing,
    }


def call(
    name: str, attend: Callable[[Inputs], tuple[Tensor, ...]], x: Inputs, backward: bool
) -> Call:
    """One direction, or both, of a contender as a function without arguments."""

    def forward_and_backward() -> tuple[Tensor, ...]:
        results = attend(x)
        leaves = (x.q, x.k, x.v) + (x.temperature,) * (len(results) == 2)
        return torch.autograd.grad(results, leaves, (x.dout, x.dentropy)[: len(results)])

    def by_scheme() -> tuple[Tensor, ...]:
        with backward_scheme(name):
            return forward_and_backward()

    if backward:
        return by_scheme if name in SCHEMES else forward_and_backward
    return lambda: attend(x)
