"""Calls of torch's own attention, for the tests of `accelerate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from aero.ops.torch_attention import BACKWARD, FORWARD

OURS = {"aero::attention_entropy", "aero::attention_entropy_backward"}


def kernels_of_torch() -> list[str]:
    """The kernels that torch has for the CPU, forward and backward."""
    dumps = [torch._C._dispatch_dump(f"aten::{name}") for name in (FORWARD, BACKWARD)]
    return [line for dump in dumps for line in dump.splitlines() if line.startswith("CPU")]


def ran(call: Callable[[], Any]) -> set[str]:
    """The attention of this library that a call has run, by torch's profiler."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        call()
    return {event.key for event in profiler.key_averages()} & OURS


def operands(
    heads: int = 4,
    key_heads: int = 4,
    queries: int = 37,
    keys: int = 37,
    width: int = 16,
    *,
    dtype: torch.dtype = torch.float32,
    as_models: bool = True,
) -> list[Tensor]:
    """q, k, v, as views of [B, T, H, D] as models pass them."""
    generator = torch.Generator().manual_seed(heads + queries)
    found = []
    for n, rows in ((heads, queries), (key_heads, keys), (key_heads, keys)):
        x = torch.randn(2, rows, n, width, generator=generator).to(dtype).transpose(1, 2)
        found.append((x if as_models else x.contiguous()).requires_grad_())
    return found


def attended(inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """Output and gradients."""
    out = F.scaled_dot_product_attention(*inputs, **options)
    cotangent = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, inputs, cotangent)]


def exact(inputs: list[Tensor], **options: Any) -> list[Tensor]:
    """The same in float64 by torch's products and softmax."""
    doubles = [x.detach().double().requires_grad_() for x in inputs]
    if options.get("attn_mask") is not None and options["attn_mask"].is_floating_point():
        options["attn_mask"] = options["attn_mask"].double()
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        return attended(doubles, **options)


def errors(found: list[Tensor], want: list[Tensor]) -> list[float]:
    return [
        float((x.double() - y).norm() / y.norm().clamp(min=1e-30))
        for x, y in zip(found, want, strict=True)
    ]
