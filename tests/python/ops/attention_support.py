"""What attention computes beside the plain form: where, in which dtype and direction.

`python -m tests.python.ops.attention_support` in the repository's folder writes
docs/reference/attention.md. `test_attention_support.py` computes every cell.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero.tables import markdown_table

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "attention.md"
WORKS, MISSING = "yes", "an error that says so"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Direction -> queries of the call.
DIRECTIONS = {"forward": 70, "backward": 70, "few queries": 2, "few queries, backward": 3}
HEADS, KEYS = 4, 90
#: Feature -> widths of heads and values; 24 and 24 for all others.
WIDTHS = {"values of another width": (24, 40), "heads of 257 to 512 columns": (512, 512)}

Draw = Callable[..., Tensor]
#: Feature, as the call is written -> the arguments of it for so many queries.
FEATURES: dict[str, Callable[[Draw, int], dict[str, Any]]] = {
    "plain": lambda draw, queries: {},
    "`temperature`": lambda draw, queries: {"temperature": 1 + 0.1 * draw(HEADS, queries).abs()},
    "`is_causal=True`": lambda draw, queries: {"is_causal": True},
    "`mask` of booleans": lambda draw, queries: {"mask": draw(1, 1, queries, KEYS) > 0},
    "`mask` of numbers": lambda draw, queries: {"mask": draw(queries, KEYS)},
    "`window`": lambda draw, queries: {"window": (20, 3)},
    "`softcap`": lambda draw, queries: {"softcap": 1.5},
    "`bias`": lambda draw, queries: {"bias": draw(HEADS, queries, KEYS)},
    "`alibi_slopes`": lambda draw, queries: {"alibi_slopes": 0.1 * draw(HEADS).abs()},
    "`sinks`": lambda draw, queries: {"sinks": draw(HEADS)},
    "`return_max_logits=True`": lambda draw, queries: {"return_max_logits": True},
    "values of another width": lambda draw, queries: {},
    "heads of 257 to 512 columns": lambda draw, queries: {},
    "`dropout_p`": lambda draw, queries: {"dropout_p": 0.2},
    "`cu_seqlens`": lambda draw, queries: {
        "cu_seqlens": (
            torch.tensor([0, queries // 2, queries], dtype=torch.int32),
            torch.tensor([0, 40, KEYS], dtype=torch.int32),
        )
    },
}
#: The features that the kernels for CUDA have.
ON_CUDA = (
    "plain", "`temperature`", "`is_causal=True`", "`mask` of booleans", "`window`", "`softcap`",
    "`sinks`", "`return_max_logits=True`", "values of another width", "`dropout_p`", "`cu_seqlens`",
)  # fmt: skip


def page() -> str:
    """docs/reference/attention.md."""
    head = (
        "# Attention\n\n"
        "This page lists what `aero.ops.attention_entropy` computes. Every feature returns entropy "
        "and logsumexp. All features combine, except `cu_seqlens` with `mask` and `bias`. "
        "`return_max_logits=True` adds `max_logits`, the largest score of each row after scale, "
        "cap, bias, slopes and temperature, `max_j s_ij`, and `largest_key`, the first key that "
        "has it, counted from the first key of its sequence; a sink is no key. The gradient of "
        "`max_logits` goes to that key's score alone. Operands are [B, H, T, D], or without B, "
        "and views of any strides in the first three dimensions, such as [B, T, H, D] transposed, "
        "are read in place. "
        "`tests/python/ops/test_attention_support.py` computes every cell of the CPU.\n\n"
        "The CPU has all features in float32, float64, bfloat16 and float16 and on every "
        'instruction set. `backend="reference"` has them on every device. On CUDA, in float32, '
        "bfloat16 and float16, some are missing yet, and each of those is an error.\n\n"
    )
    names = [str(dtype).removeprefix("torch.") for dtype in DTYPES]
    rows = [
        (feature, *[", ".join(names)] * len(DIRECTIONS), WORKS if feature in ON_CUDA else MISSING)
        for feature in FEATURES
    ]
    header = ("feature", *(f"CPU, {direction}" for direction in DIRECTIONS), "CUDA")
    speed = (
        "[What each takes](../../benchmarks/results/attention_variants_zen4_amd_epyc_202611.md), "
        "beside attention without it and beside other libraries, is measured on a Zen 4. A learned "
        "bias takes the most: its gradient is as large as the scores, and is written to memory."
    )
    return f"{head}{markdown_table(header, rows)}\n\n{speed}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
