"""Calls of the attention operators with one argument changed, and the error of each."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aero import ops

Bad = tuple[Callable[..., Any], dict[str, Any], str]


def attend(**changed: Any) -> tuple[Tensor, ...]:
    q, k, v = torch.zeros(3, 2, 4, 6, 8)
    return ops.attention_entropy(**({"q": q, "k": k, "v": v} | changed))


def softmax(**changed: Any) -> tuple[Tensor, ...]:
    return ops.temperature_softmax(**({"scores": torch.zeros(2, 4, 6, 7)} | changed))


def zero_at(*index: int) -> Tensor:
    """A temperature with one zero, whose shape has as many dimensions as the index."""
    temperature = torch.ones([(), (4,), (4, 6), (2, 4, 6)][len(index)])
    temperature[index] = 0
    return temperature


def misaligned(*shape: int) -> Tensor:
    """Float32 zeros, one byte after an address that fits them."""
    count = torch.Size(shape).numel()
    memory = torch.zeros(4 * count + 4, dtype=torch.uint8).numpy()
    return torch.frombuffer(memory, dtype=torch.float32, count=count, offset=1).view(shape)


INVERTIBLE = "a number with a finite inverse"
LEGAL_TEMPERATURES = "a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = [2, 4, 6]"

BAD_ATTENTION: list[Bad] = [
    (
        attend,
        {"q": torch.zeros(2, 6, 8)},
        "attention_entropy: q must be [B, H, T, D], got [2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 6, 8)},
        "attention_entropy: k must be [B, G, S, D], got [2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 4, 6, 9)},
        "attention_entropy: k must be [B, H, S, D] = [2, 4, 6, 8], got [2, 4, 6, 9]",
    ),
    (
        attend,
        {"v": torch.zeros(2, 4, 5, 8)},
        "attention_entropy: v must be [B, H, S, Dv] = [2, 4, 6, 8], got [2, 4, 5, 8]",
    ),
    (
        attend,
        {"v": torch.zeros(4, 6, 8)},
        "attention_entropy: v must be [B, G, S, Dv], got [4, 6, 8]",
    ),
    (
        attend,
        {"v": torch.zeros(2, 4, 6, 513)},
        "attention_entropy: Dv must be from 1 to 512, got 513",
    ),
    (
        attend,
        {
            "k": torch.zeros(8).expand(2, 4, 2**31, 8),
            "v": torch.zeros(8).expand(2, 4, 2**31, 8),
            "return_max_logits": True,
        },
        "attention_entropy: S must be below 2^31 with return_max_logits, got 2147483648",
    ),
    (
        attend,
        {"k": torch.zeros(1, 2, 6, 8), "v": torch.zeros(1, 2, 6, 8)},
        "attention_entropy: k must be [B, G, S, D] = [2, 2, 6, 8], got [1, 2, 6, 8]",
    ),
    (
        attend,
        {"k": torch.zeros(2, 3, 6, 8), "v": torch.zeros(2, 3, 6, 8)},
        "attention_entropy: H must be a multiple of k's heads (3), got 4",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 513)),
        "attention_entropy: D must be from 1 to 512, got 513",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 2, 0)),
        "attention_entropy: D must be from 1 to 512, got 0",
    ),
    (
        attend,
        dict.fromkeys("qkv", torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)),
        "attention_entropy: T must be at most 1099511627776, got 2199023255552",
    ),
    (
        attend,
        dict.fromkeys("kv", torch.zeros(2, 4, 1, 8).expand(2, 4, 2**41, 8)),
        "attention_entropy: S must be at most 1099511627776, got 2199023255552",
    ),
    (
        attend,
        {"q": misaligned(2, 4, 6, 8)},
        "attention_entropy: q must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"v": misaligned(2, 4, 6, 8)},
        "attention_entropy: v must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"temperature": misaligned(4)},
        "attention_entropy: temperature must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        attend,
        {"k": torch.zeros(2, 4, 6, 8, device="meta")},
        "attention_entropy: k must be on cpu like q, got meta",
    ),
    (
        attend,
        {"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")},
        "attention_entropy: mask must be on cpu like q, got meta",
    ),
    (
        attend,
        {"v": torch.zeros(2, 4, 6, 8, dtype=torch.bfloat16)},
        "attention_entropy: v must be float32 like q, got bfloat16",
    ),
    (
        attend,
        {"q": torch.zeros(2, 4, 6, 8, dtype=torch.int64)},
        "attention_entropy: q must be float32, bfloat16, float16 or float64, got Long",
    ),
    (
        attend,
        {"temperature": torch.ones(6, 4)},
        f"attention_entropy: temperature must be {LEGAL_TEMPERATURES}, got [6, 4]",
    ),
    (
        attend,
        {"temperature": torch.ones(3)},
        f"attention_entropy: temperature must be {LEGAL_TEMPERATURES}, got [3]",
    ),
    (
        attend,
        {"temperature": zero_at()},
        f"attention_entropy: temperature must be {INVERTIBLE}, got 0 at head 0, position 0",
    ),
    (
        attend,
        {"temperature": zero_at(3)},
        f"attention_entropy: temperature must be {INVERTIBLE}, got 0 at head 3, position 0",
    ),
    (
        attend,
        {"temperature": zero_at(2, 5)},
        f"attention_entropy: temperature must be {INVERTIBLE}, got 0 at head 2, position 5",
    ),
    (
        attend,
        {"temperature": zero_at(1, 2, 5)},
        f"attention_entropy: temperature must be {INVERTIBLE}, got 0 at head 2, position 5,"
        " batch entry 1",
    ),
    (
        attend,
        {"temperature": torch.tensor([1, 2, math.nan, 3])},
        f"attention_entropy: temperature must be {INVERTIBLE}, got nan at head 2, position 0",
    ),
    (
        attend,
        {"temperature": torch.tensor(-1e-40)},
        f"attention_entropy: temperature must be {INVERTIBLE}, got -9.99995e-41 at head 0,"
        " position 0",
    ),
    (
        attend,
        {"mask": torch.zeros(2, 1, 6, 6, dtype=torch.int64)},
        "attention_entropy: mask must be bool (true where the query sees the key), got Long",
    ),
    (
        attend,
        {"mask": torch.ones(2, 1, 6, 5, dtype=torch.bool)},
        "attention_entropy: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 6],"
        " got [2, 1, 6, 5]",
    ),
    (
        attend,
        {"mask": torch.ones(1, 1, 1, 1, 1, dtype=torch.bool)},
        "attention_entropy: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 6],"
        " got [1, 1, 1, 1, 1]",
    ),
    (
        attend,
        {"mask": torch.ones(6, 6, dtype=torch.bool).to_sparse()},
        "attention_entropy: mask must be a dense tensor, got torch.sparse_coo",
    ),
    (
        attend,
        {"scale": math.nan},
        "attention_entropy: scale must be a finite number, got nan",
    ),
    (
        attend,
        {"scale": -math.inf},
        "attention_entropy: scale must be a finite number, got -inf",
    ),
    (
        attend,
        {"backend": "cuda"},
        "attention_entropy: backend must be 'native' or 'reference', got 'cuda'",
    ),
    (
        softmax,
        {"scores": torch.zeros(6, 7)},
        "temperature_softmax: scores must be [B, H, T, S], got [6, 7]",
    ),
    (
        softmax,
        {"scores": torch.zeros(2, 4, 6, 7, dtype=torch.complex64)},
        "temperature_softmax: scores must be real, got torch.complex64",
    ),
    (
        softmax,
        {"scores": misaligned(2, 4, 6, 7)},
        "temperature_softmax: scores must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        softmax,
        {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)},
        "temperature_softmax: T must be at most 1099511627776, got 2199023255552",
    ),
    (
        softmax,
        {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 1, 2**41)},
        "temperature_softmax: S must be at most 1099511627776, got 2199023255552",
    ),
    (
        softmax,
        {"temperature": torch.ones(4, device="meta")},
        "temperature_softmax: temperature must be on cpu like scores, got meta",
    ),
    (
        softmax,
        {"temperature": zero_at()},
        f"temperature_softmax: temperature must be {INVERTIBLE}, got 0 at head 0, position 0",
    ),
    (
        softmax,
        {"temperature": torch.tensor([[math.nan] * 6] * 4)},
        f"temperature_softmax: temperature must be {INVERTIBLE}, got nan at head 0, position 0",
    ),
    (
        softmax,
        {"mask": torch.zeros(6, 7)},
        "temperature_softmax: mask must be bool (true where the query sees the key), got float32",
    ),
    (
        softmax,
        {"temperature": torch.ones(2, 4, 7)},
        f"temperature_softmax: temperature must be {LEGAL_TEMPERATURES}, got [2, 4, 7]",
    ),
    (
        softmax,
        {"temperature": zero_at(1, 2, 5)},
        f"temperature_softmax: temperature must be {INVERTIBLE}, got 0 at head 2, position 5,"
        " batch entry 1",
    ),
    (
        softmax,
        {"mask": torch.ones(7, 6, dtype=torch.bool)},
        "temperature_softmax: mask must be broadcastable to [B, H, T, S] = [2, 4, 6, 7],"
        " got [7, 6]",
    ),
]
