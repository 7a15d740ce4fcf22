"""What attention computes beside the plain form: where, in which dtype, direction and transform.

`python -m tests.python.ops.attention_support` in the repository's folder writes
docs/reference/attention.md. `test_attention_support.py` computes every cell of the CPU, and looks
up which tests of the emulated GPU and of the launchers hold those of CUDA.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aero.tables import markdown_table

from .transforms import NO_RANDOMNESS, WORKS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "attention.md"
MISSING = "an error"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Direction -> queries of the call.
DIRECTIONS = {"forward": 70, "backward": 70, "few queries": 2, "few queries, backward": 3}
#: Column of the page -> directions. Narrow ones, as tables of the manual are.
CPU = {
    "CPU, forward": ("forward",),
    "CPU, backward": ("backward",),
    "CPU, few queries, both": ("few queries", "few queries, backward"),
}
#: Feature -> widths of heads and values; 24 and 24 for all others.
WIDTHS = {"values of another width": (24, 40), "heads of 257 to 512 columns": (512, 512)}

Draw = Callable[..., Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    queries: int
    heads: int = 4
    keys: int = 90


#: Feature, as the call is written -> the arguments of it for such sizes.
FEATURES: dict[str, Callable[[Draw, Sizes], dict[str, Any]]] = {
    "plain": lambda draw, n: {},
    "`temperature`": lambda draw, n: {"temperature": 1 + 0.1 * draw(n.heads, n.queries).abs()},
    "`is_causal=True`": lambda draw, n: {"is_causal": True},
    "`mask` of booleans": lambda draw, n: {"mask": draw(1, 1, n.queries, n.keys) > 0},
    "`mask` of numbers": lambda draw, n: {"mask": draw(n.queries, n.keys)},
    "`window`": lambda draw, n: {"window": (n.keys * 2 // 9, n.keys // 30)},
    "`softcap`": lambda draw, n: {"softcap": 1.5},
    "`bias`": lambda draw, n: {"bias": draw(n.heads, n.queries, n.keys)},
    "`alibi_slopes`": lambda draw, n: {"alibi_slopes": 0.1 * draw(n.heads).abs()},
    "`sinks`": lambda draw, n: {"sinks": draw(n.heads)},
    "`return_max_logits=True`": lambda draw, n: {"return_max_logits": True},
    "values of another width": lambda draw, n: {},
    "heads of 257 to 512 columns": lambda draw, n: {},
    "`dropout_p`": lambda draw, n: {"dropout_p": 0.2},
    "`cu_seqlens`": lambda draw, n: {
        "cu_seqlens": (
            torch.tensor([0, n.queries // 2, n.queries], dtype=torch.int32),
            torch.tensor([0, n.keys * 4 // 9, n.keys], dtype=torch.int32),
        )
    },
}
_PLAIN = "CudaAttentionEntropy, AgreesWithTheDefinitions"
#: Feature -> the tests of the emulated GPU that compute it in both directions. Values of another
#: width are padded, and each packed sequence is a launch of its own: plain calls of the kernels.
EMULATED = {
    "plain": f"{_PLAIN}OverAwkwardSizes",
    "`temperature`": f"{_PLAIN}ForEveryMaskTemperatureAndLayout",
    "`is_causal=True`": f"{_PLAIN}OverAwkwardSizes",
    "`mask` of booleans": f"{_PLAIN}ForEveryMaskTemperatureAndLayout",
    "`window`": "CudaAttentionVariants, WindowsShowTheKeysBesideTheDiagonal",
    "`softcap`": "CudaAttentionVariants, SoftCapsBendScores",
    "`sinks`": "CudaAttentionVariants, SinksTakeTheirShareOfEveryRow",
    "`return_max_logits=True`": "CudaAttentionVariants, TheLargestScoreIsFoundWithItsKey",
    "values of another width": f"{_PLAIN}ForEveryHeadWidth",
    "`dropout_p`": "CudaAttentionVariants, DropoutDropsTheSameWeightsInBothDirections",
    "`cu_seqlens`": f"{_PLAIN}OverAwkwardSizes",
}
#: Feature -> the call of test_cuda_launchers.py that CUDA refuses.
REFUSED = {
    "`mask` of numbers": "attention with a bias",
    "`bias`": "attention with a bias",
    "`alibi_slopes`": "attention with slopes",
    "heads of 257 to 512 columns": "attention of wide heads",
}
#: Column of the page -> rows of `transforms.EAGER`.
TRANSFORMS: dict[str, Sequence[str]] = {
    "backward, up to thrice": ("backward", "double backward", "third derivative by backward"),
    "forward mode": (
        "`forward_ad.dual_level`", "... a tangent of one argument alone",
        "... in `torch.no_grad`", "... through `backward` (Hessian-vector product)",
        "`torch.func.jvp`", "`jvp(grad)` (Hessian-vector product)",
    ),
    "`grad`, `vjp`, `jacrev`": (
        "`torch.func.grad`", "`torch.func.vjp`", "... of `grad`, called after it ended",
        "`jacrev`", "`jacrev(jacrev)`", "`is_grads_batched`",
    ),
    "`jacfwd`, `hessian`": ("`jacfwd`", "`hessian`"),
    "`vmap` of and in these": (
        "`vmap`", "... over one argument", "`vmap(grad)`", "`vmap(vmap(grad))`", "`grad(vmap)`",
        "`vmap(hessian)`",
    ),
    "checkpoint": ("`torch.utils.checkpoint`, differentiated twice",),
}  # fmt: skip


def refuses_randomness(feature: str, transform: str) -> bool:
    """Whether torch's own error takes the place of the result."""
    return feature == "`dropout_p`" and transform in NO_RANDOMNESS


def dtypes_on_cuda() -> list[torch.dtype]:
    """Those of the emulated GPU's tests."""
    folder = ROOT / "tests" / "cpp" / "kernels" / "cuda"
    return [x for x in DTYPES if (folder / f"attention_entropy_emulation_{name(x)}.cpp").exists()]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def short(dtypes: Sequence[torch.dtype]) -> str:
    return ", ".join(name(x).replace("bfloat", "bf").replace("float", "fp") for x in dtypes)


def of_transforms(feature: str, column: str) -> str:
    refused = [refuses_randomness(feature, each) for each in TRANSFORMS[column]]
    return "with `randomness`" if any(refused) else WORKS


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
        "`tests/python/ops/test_attention_support.py` computes every cell of the CPU and of the "
        "transforms.\n\n"
        "## Devices, dtypes and directions\n\n"
        "The CPU has all features in float32, float64, bfloat16 and float16 and on every "
        'instruction set. `backend="reference"` has them on every device. On CUDA some are missing '
        "yet, and each of those is an error that says so. The cells of CUDA are what the tests of "
        "the emulated GPU and of the launchers hold, float32 also with TF32. They are no run on a "
        "GPU. Values of another width are padded there, and each packed sequence is a launch of "
        "its own. On the CPU few queries, as in generation, have passes of their own.\n\n"
    )
    every, on_cuda = short(DTYPES), short(dtypes_on_cuda())
    rows = [
        (feature, *[every] * len(CPU), *[on_cuda if feature in EMULATED else MISSING] * 2)
        for feature in FEATURES
    ]
    header = ("feature", *CPU, "CUDA, forward", "CUDA, backward")
    transforms = (
        "## Transforms\n\n"
        "Every feature under every transform that [Transforms](transforms.md) lists and that needs "
        "no compiler: native against the reference, in float64. Dropout draws random numbers, "
        "which torch refuses under `vmap`, `jacfwd` and `hessian`. "
        '`vmap(f, randomness="same")` and `jacfwd(f, randomness="same")` drop the same weights for '
        'every entry, and `"different"` others; a Hessian is `jacfwd(jacrev(f), '
        'randomness="same")`.\n\n'
    )
    found = [(f, *(of_transforms(f, column) for column in TRANSFORMS)) for f in FEATURES]
    speed = (
        "## Speed\n\n"
        "[What each takes](../../benchmarks/results/attention_variants_zen4_amd_epyc_202611.md), "
        "beside attention without it and beside other libraries, is measured on a Zen 4. A learned "
        "bias takes the most: its gradient is as large as the scores, and is written to memory. "
        "Where the batch shares the bias, the gradient is summed as it is formed, into as few "
        "copies as leave the threads equal work."
    )
    tables = markdown_table(header, rows), markdown_table(("feature", *TRANSFORMS), found)
    return f"{head}{tables[0]}\n\n{transforms}{tables[1]}\n\n{speed}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
