"""Calls of the penalty and of the feed-forward layer with one argument changed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from aero import ops

from .bad_attention import Bad, misaligned


def penalty(**changed: Any) -> Tensor:
    arguments = {"entropies": torch.zeros(3, 2, 4, 6), "thresholds": torch.zeros(3, 4)}
    return ops.entropy_regularization(**(arguments | changed))  # type: ignore[arg-type]


def feed(**changed: Any) -> Tensor:
    arguments = {"x": torch.zeros(2, 3, 5), "weight": torch.eye(5), "bias": torch.zeros(5)}
    scales = {"alpha": torch.ones(1), "beta": torch.ones(1)}
    return ops.scaled_ffn(**(arguments | scales | changed))


BAD_LAYERS: list[Bad] = [
    (
        penalty,
        {"entropies": torch.zeros(3, 2, 4)},
        "entropy_regularization: entropies must be [L, B, H, T], got [3, 2, 4]",
    ),
    (
        penalty,
        {"entropies": []},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape, got []",
    ),
    (
        penalty,
        {"entropies": "0"},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape, got str",
    ),
    (
        penalty,
        {"entropies": 0},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape, got int",
    ),
    (
        penalty,
        {
            "entropies": torch.zeros(3, 2, 4, 6).to(torch.float8_e4m3fn),
            "max_entropy": "log_visible",
        },
        "entropy_regularization: entropies must be float32 or float64, got float8_e4m3fn",
    ),
    (
        penalty,
        {"entropies": torch.zeros(3, 2, 4, 6).to_sparse()},
        "entropy_regularization: entropies must be a dense tensor, got torch.sparse_coo",
    ),
    (
        penalty,
        {"thresholds": torch.zeros(3, 4, dtype=torch.complex64)},
        "entropy_regularization: thresholds must be real, got torch.complex64",
    ),
    (
        penalty,
        {"row_mask": [True]},
        "entropy_regularization: row_mask must be a tensor, got list",
    ),
    (
        feed,
        {"alpha": torch.ones(1, dtype=torch.complex64)},
        "scaled_ffn: alpha must be real, got torch.complex64",
    ),
    (
        penalty,
        {"entropies": [torch.zeros(2, 4, 6), torch.zeros(2, 4, 5)]},
        "entropy_regularization: entropies must be [L, B, H, T] or L tensors of one shape,"
        " got [[2, 4, 6], [2, 4, 5]]",
    ),
    (
        penalty,
        {"entropies": torch.zeros(3, 2, 4, 6, dtype=torch.bfloat16)},
        "entropy_regularization: entropies must be float32 or float64, got bfloat16",
    ),
    (
        penalty,
        {"entropies": misaligned(3, 2, 4, 6)},
        "entropy_regularization: entropies must be at an address that is a multiple of 4,"
        " got 1 more",
    ),
    (
        penalty,
        {"entropies": torch.zeros(1, 1, 1, 1).expand(3, 1, 4, 2**41)},
        "entropy_regularization: L * B * H * T must be at most 1099511627776, got 26388279066624",
    ),
    (
        penalty,
        {"thresholds": torch.zeros(3, 4, device="meta")},
        "entropy_regularization: thresholds must be on cpu like entropies, got meta",
    ),
    (
        penalty,
        {"thresholds": torch.zeros(4, 3)},
        "entropy_regularization: thresholds must be [L, H] = [3, 4], got [4, 3]",
    ),
    (
        penalty,
        {"row_mask": torch.ones(2, 6)},
        "entropy_regularization: row_mask must be bool (true where the row counts), got float32",
    ),
    (
        penalty,
        {"row_mask": torch.ones(6, 2, dtype=torch.bool)},
        "entropy_regularization: row_mask must be [B, T] = [2, 6], got [6, 2]",
    ),
    (
        penalty,
        {"margin": -0.5},
        "entropy_regularization: margin must be a finite number, at least 0, got -0.500000",
    ),
    (
        penalty,
        {"margin": float("nan")},
        "entropy_regularization: margin must be a finite number, at least 0, got nan",
    ),
    (
        penalty,
        {"margin": float("inf")},
        "entropy_regularization: margin must be a finite number, at least 0, got inf",
    ),
    (
        penalty,
        {"reduction": "mean"},
        "entropy_regularization: reduction must be 'position_sum' or 'query_mean', got 'mean'",
    ),
    (
        penalty,
        {"max_entropy": "log"},
        "entropy_regularization: max_entropy must be 'log_context' or 'log_visible', got 'log'",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "context_length": 6},
        "entropy_regularization: context_length must be None with max_entropy='log_visible', got 6",
    ),
    (
        penalty,
        {"context_length": 0},
        "entropy_regularization: context_length must be at least 1, got 0",
    ),
    (
        penalty,
        {"visible_keys": torch.ones(2, 6, dtype=torch.int64)},
        "entropy_regularization: visible_keys must be None with max_entropy='log_context',"
        " got a tensor",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 6)},
        "entropy_regularization: visible_keys must be an integer tensor, got torch.float32",
    ),
    (
        penalty,
        {"max_entropy": "log_visible", "visible_keys": torch.ones(2, 5, dtype=torch.int64)},
        "entropy_regularization: visible_keys must be [B, T] = [2, 6], got [2, 5]",
    ),
    (feed, {"x": torch.zeros(())}, "scaled_ffn: x must be [..., C], got []"),
    (
        feed,
        {"x": torch.zeros(2, 4)},
        "scaled_ffn: weight must be [C, C] = [4, 4], got [5, 5]",
    ),
    (
        feed,
        {"x": misaligned(2, 5)},
        "scaled_ffn: x must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        feed,
        {"weight": misaligned(5, 5)},
        "scaled_ffn: weight must be at an address that is a multiple of 4, got 1 more",
    ),
    (
        feed,
        {"x": torch.zeros(1, 5).expand(2**41, 5)},
        "scaled_ffn: rows of x must be at most 1099511627776, got 2199023255552",
    ),
    (
        feed,
        {"bias": torch.zeros(5, device="meta")},
        "scaled_ffn: bias must be on cpu like x, got meta",
    ),
    (feed, {"bias": torch.zeros(4)}, "scaled_ffn: bias must be [C] = [5], got [4]"),
    (
        feed,
        {"weight": torch.eye(5, dtype=torch.float64)},
        "scaled_ffn: weight must be float32 like x, got float64",
    ),
    (
        feed,
        {"bias": torch.zeros(5, dtype=torch.float64)},
        "scaled_ffn: bias must be float32 like weight, got float64",
    ),
    (feed, {"alpha": torch.ones(2)}, "scaled_ffn: alpha must be a scalar or [1], got [2]"),
    (feed, {"beta": torch.ones(1, 1)}, "scaled_ffn: beta must be a scalar or [1], got [1, 1]"),
    *(
        (
            feed,
            {"alpha": torch.tensor(alpha)},
            f"scaled_ffn: alpha must be a number with a finite inverse, got {alpha:g}",
        )
        for alpha in (0.0, float("nan"))
    ),
    (
        feed,
        {"x": torch.zeros(2, 5, dtype=torch.int32)},
        "scaled_ffn: x must be float32, bfloat16, float16 or float64, got Int",
    ),
]
