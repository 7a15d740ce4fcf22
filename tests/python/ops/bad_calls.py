"""Calls of the operators with one argument changed, and what each error names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from aero import ops


def attend(**changed: Any) -> tuple[Tensor, ...]:
    q, k, v = torch.zeros(3, 2, 4, 6, 8)
    return ops.attention_entropy(**({"q": q, "k": k, "v": v} | changed))


def softmax(**changed: Any) -> tuple[Tensor, ...]:
    return ops.temperature_softmax(**({"scores": torch.zeros(2, 4, 6, 7)} | changed))


def penalty(**changed: Any) -> Tensor:
    arguments = {"entropies": torch.zeros(3, 2, 4, 6), "thresholds": torch.zeros(3, 4)}
    return ops.entropy_regularization(**(arguments | changed))  # type: ignore[arg-type]


def feed(**changed: Any) -> Tensor:
    arguments = {"x": torch.zeros(2, 3, 5), "weight": torch.eye(5), "bias": torch.zeros(5)}
    scales = {"alpha": torch.ones(1), "beta": torch.ones(1)}
    return ops.scaled_ffn(**(arguments | scales | changed))


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


OPERATORS = {
    attend: "attention_entropy",
    softmax: "temperature_softmax",
    penalty: "entropy_regularization",
    feed: "scaled_ffn",
}
INVERTIBLE = "a number with a finite inverse"
LEGAL_TEMPERATURES = "a scalar, [1], [H], [H, T] or [B, H, T] with [B, H, T] = [2, 4, 6]"
ADDRESS = "at an address that is a multiple of 4"
ELEMENTS = "at most 1099511627776"
KEYS_SEEN = "bool (true where the query sees the key)"
LAYERS = "[L, B, H, T] or L tensors of one shape"
FLOATS = "float32, bfloat16, float16 or float64"
MARGIN = "a finite number, at least 0"

# The call, what is changed, the argument that the error names, what it expects, and what it got.
BAD: list[tuple[Callable[..., Any], dict[str, Any], str, str, str]] = [
    (attend, {"q": torch.zeros(2, 6, 8)}, "q", "[B, H, T, D]", "[2, 6, 8]"),
    (attend, {"k": torch.zeros(2, 6, 8)}, "k", "[B, G, S, D]", "[2, 6, 8]"),
    (attend, {"k": torch.zeros(2, 4, 6, 9)}, "k", "[B, H, S, D] = [2, 4, 6, 8]", "[2, 4, 6, 9]"),
    (attend, {"v": torch.zeros(2, 4, 5, 8)}, "v", "[B, H, S, Dv] = [2, 4, 6, 8]", "[2, 4, 5, 8]"),
    (attend, {"v": torch.zeros(4, 6, 8)}, "v", "[B, G, S, Dv]", "[4, 6, 8]"),
    (attend, {"v": torch.zeros(2, 4, 6, 513)}, "Dv", "from 1 to 512", "513"),
    (attend, {"k": torch.zeros(8).expand(2, 4, 2**31, 8),
      "v": torch.zeros(8).expand(2, 4, 2**31, 8), "return_max_logits": True},
     "S", "below 2^31 with return_max_logits", "2147483648"),
    (attend, {"k": torch.zeros(1, 2, 6, 8), "v": torch.zeros(1, 2, 6, 8)},
     "k", "[B, G, S, D] = [2, 2, 6, 8]", "[1, 2, 6, 8]"),
    (attend, {"k": torch.zeros(2, 3, 6, 8), "v": torch.zeros(2, 3, 6, 8)},
     "H", "a multiple of k's heads (3)", "4"),
    (attend, dict.fromkeys("qkv", torch.zeros(1, 1, 2, 513)), "D", "from 1 to 512", "513"),
    (attend, dict.fromkeys("qkv", torch.zeros(1, 1, 2, 0)), "D", "from 1 to 512", "0"),
    (attend, dict.fromkeys("qkv", torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)),
     "T", ELEMENTS, "2199023255552"),
    (attend, dict.fromkeys("kv", torch.zeros(2, 4, 1, 8).expand(2, 4, 2**41, 8)),
     "S", ELEMENTS, "2199023255552"),
    (attend, {"q": misaligned(2, 4, 6, 8)}, "q", ADDRESS, "1 more"),
    (attend, {"v": misaligned(2, 4, 6, 8)}, "v", ADDRESS, "1 more"),
    (attend, {"temperature": misaligned(4)}, "temperature", ADDRESS, "1 more"),
    (attend, {"k": torch.zeros(2, 4, 6, 8, device="meta")}, "k", "on cpu like q", "meta"),
    (attend, {"mask": torch.ones(6, 6, dtype=torch.bool, device="meta")},
     "mask", "on cpu like q", "meta"),
    (attend, {"v": torch.zeros(2, 4, 6, 8, dtype=torch.bfloat16)},
     "v", "float32 like q", "bfloat16"),
    (attend, {"q": torch.zeros(2, 4, 6, 8, dtype=torch.int64)}, "q", FLOATS, "Long"),
    (attend, {"temperature": torch.ones(6, 4)}, "temperature", LEGAL_TEMPERATURES, "[6, 4]"),
    (attend, {"temperature": torch.ones(3)}, "temperature", LEGAL_TEMPERATURES, "[3]"),
    (attend, {"temperature": zero_at()}, "temperature", INVERTIBLE, "0 at head 0, position 0"),
    (attend, {"temperature": zero_at(3)}, "temperature", INVERTIBLE, "0 at head 3, position 0"),
    (attend, {"temperature": zero_at(2, 5)}, "temperature", INVERTIBLE, "0 at head 2, position 5"),
    (attend, {"temperature": zero_at(1, 2, 5)},
     "temperature", INVERTIBLE, "0 at head 2, position 5, batch entry 1"),
    (attend, {"temperature": torch.tensor([1, 2, math.nan, 3])},
     "temperature", INVERTIBLE, "nan at head 2, position 0"),
    (attend, {"temperature": torch.tensor(-1e-40)},
     "temperature", INVERTIBLE, "-9.99995e-41 at head 0, position 0"),
    (attend, {"mask": torch.zeros(2, 1, 6, 6, dtype=torch.int64)}, "mask", KEYS_SEEN, "Long"),
    (attend, {"mask": torch.ones(2, 1, 6, 5, dtype=torch.bool)},
     "mask", "broadcastable to [B, H, T, S] = [2, 4, 6, 6]", "[2, 1, 6, 5]"),
    (attend, {"mask": torch.ones(1, 1, 1, 1, 1, dtype=torch.bool)},
     "mask", "broadcastable to [B, H, T, S] = [2, 4, 6, 6]", "[1, 1, 1, 1, 1]"),
    (attend, {"mask": torch.ones(6, 6, dtype=torch.bool).to_sparse()},
     "mask", "a dense tensor", "torch.sparse_coo"),
    (attend, {"scale": math.nan}, "scale", "a finite number", "nan"),
    (attend, {"scale": -math.inf}, "scale", "a finite number", "-inf"),
    (attend, {"backend": "cuda"}, "backend", "'native' or 'reference'", "'cuda'"),
    (softmax, {"scores": torch.zeros(6, 7)}, "scores", "[B, H, T, S]", "[6, 7]"),
    (softmax, {"scores": torch.zeros(2, 4, 6, 7, dtype=torch.complex64)},
     "scores", "real", "torch.complex64"),
    (softmax, {"scores": misaligned(2, 4, 6, 7)}, "scores", ADDRESS, "1 more"),
    (softmax, {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 2**41, 1)},
     "T", ELEMENTS, "2199023255552"),
    (softmax, {"scores": torch.zeros(1, 1, 1, 1).expand(1, 1, 1, 2**41)},
     "S", ELEMENTS, "2199023255552"),
    (softmax, {"temperature": torch.ones(4, device="meta")},
     "temperature", "on cpu like scores", "meta"),
    (softmax, {"temperature": zero_at()}, "temperature", INVERTIBLE, "0 at head 0, position 0"),
    (softmax, {"temperature": torch.tensor([[math.nan] * 6] * 4)},
     "temperature", INVERTIBLE, "nan at head 0, position 0"),
    (softmax, {"mask": torch.zeros(6, 7)}, "mask", KEYS_SEEN, "float32"),
    (softmax, {"temperature": torch.ones(2, 4, 7)}, "temperature", LEGAL_TEMPERATURES, "[2, 4, 7]"),
    (softmax, {"temperature": zero_at(1, 2, 5)},
     "temperature", INVERTIBLE, "0 at head 2, position 5, batch entry 1"),
    (softmax, {"mask": torch.ones(7, 6, dtype=torch.bool)},
     "mask", "broadcastable to [B, H, T, S] = [2, 4, 6, 7]", "[7, 6]"),
    (penalty, {"entropies": torch.zeros(3, 2, 4)}, "entropies", "[L, B, H, T]", "[3, 2, 4]"),
    (penalty, {"entropies": []}, "entropies", LAYERS, "[]"),
    (penalty, {"entropies": "0"}, "entropies", LAYERS, "str"),
    (penalty, {"entropies": 0}, "entropies", LAYERS, "int"),
    (penalty, {"entropies": torch.zeros(3, 2, 4, 6).to(torch.float8_e4m3fn),
      "max_entropy": "log_visible"},
     "entropies", "float32 or float64", "float8_e4m3fn"),
    (penalty, {"entropies": torch.zeros(3, 2, 4, 6).to_sparse()},
     "entropies", "a dense tensor", "torch.sparse_coo"),
    (penalty, {"thresholds": torch.zeros(3, 4, dtype=torch.complex64)},
     "thresholds", "real", "torch.complex64"),
    (penalty, {"row_mask": [True]}, "row_mask", "a tensor", "list"),
    (feed, {"alpha": torch.ones(1, dtype=torch.complex64)}, "alpha", "real", "torch.complex64"),
    (penalty, {"entropies": [torch.zeros(2, 4, 6), torch.zeros(2, 4, 5)]},
     "entropies", LAYERS, "[[2, 4, 6], [2, 4, 5]]"),
    (penalty, {"entropies": torch.zeros(3, 2, 4, 6, dtype=torch.bfloat16)},
     "entropies", "float32 or float64", "bfloat16"),
    (penalty, {"entropies": misaligned(3, 2, 4, 6)}, "entropies", ADDRESS, "1 more"),
    (penalty, {"entropies": torch.zeros(1, 1, 1, 1).expand(3, 1, 4, 2**41)},
     "L * B * H * T", ELEMENTS, "26388279066624"),
    (penalty, {"thresholds": torch.zeros(3, 4, device="meta")},
     "thresholds", "on cpu like entropies", "meta"),
    (penalty, {"thresholds": torch.zeros(4, 3)}, "thresholds", "[L, H] = [3, 4]", "[4, 3]"),
    (penalty, {"row_mask": torch.ones(2, 6)},
     "row_mask", "bool (true where the row counts)", "float32"),
    (penalty, {"row_mask": torch.ones(6, 2, dtype=torch.bool)},
     "row_mask", "[B, T] = [2, 6]", "[6, 2]"),
    (penalty, {"margin": -0.5}, "margin", MARGIN, "-0.500000"),
    (penalty, {"margin": math.nan}, "margin", MARGIN, "nan"),
    (penalty, {"margin": math.inf}, "margin", MARGIN, "inf"),
    (penalty, {"reduction": "mean"}, "reduction", "'position_sum' or 'query_mean'", "'mean'"),
    (penalty, {"max_entropy": "log"}, "max_entropy", "'log_context' or 'log_visible'", "'log'"),
    (penalty, {"max_entropy": "log_visible", "context_length": 6},
     "context_length", "None with max_entropy='log_visible'", "6"),
    (penalty, {"context_length": 0}, "context_length", "at least 1", "0"),
    (penalty, {"visible_keys": torch.ones(2, 6, dtype=torch.int64)},
     "visible_keys", "None with max_entropy='log_context'", "a tensor"),
    (penalty, {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 6)},
     "visible_keys", "an integer tensor", "torch.float32"),
    (penalty, {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 5, dtype=torch.int64)},
     "visible_keys", "[B, T] = [2, 6]", "[2, 5]"),
    (feed, {"x": torch.zeros(())}, "x", "[..., C]", "[]"),
    (feed, {"x": torch.zeros(2, 4)}, "weight", "[C, C] = [4, 4]", "[5, 5]"),
    (feed, {"x": misaligned(2, 5)}, "x", ADDRESS, "1 more"),
    (feed, {"weight": misaligned(5, 5)}, "weight", ADDRESS, "1 more"),
    (feed, {"x": torch.zeros(1, 5).expand(2**41, 5)}, "rows of x", ELEMENTS, "2199023255552"),
    (feed, {"bias": torch.zeros(5, device="meta")}, "bias", "on cpu like x", "meta"),
    (feed, {"bias": torch.zeros(4)}, "bias", "[C] = [5]", "[4]"),
    (feed, {"weight": torch.eye(5, dtype=torch.float64)}, "weight", "float32 like x", "float64"),
    (feed, {"bias": torch.zeros(5, dtype=torch.float64)}, "bias", "float32 like weight", "float64"),
    (feed, {"alpha": torch.ones(2)}, "alpha", "a scalar or [1]", "[2]"),
    (feed, {"beta": torch.ones(1, 1)}, "beta", "a scalar or [1]", "[1, 1]"),
    *(
        (feed, {"alpha": torch.tensor(alpha)}, "alpha", INVERTIBLE, f"{alpha:g}")
        for alpha in (0.0, math.nan)
    ),
    (feed, {"x": torch.zeros(2, 5, dtype=torch.int32)}, "x", FLOATS, "Int"),
]  # fmt: skip
