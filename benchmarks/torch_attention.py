"""scaled_dot_product_attention with and without `aero.accelerate()`, alone and in GPT-2's step.

python benchmarks/torch_attention.py [--quick] [--output results/NAME.md]
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
import torch.nn.functional as F
from attention_report import hardware, ratio_text
from timer import KEEP_FREED_MEMORY, Timing, in_child, interleaved, parser, publish
from transformers import GPT2Config, GPT2LMHeadModel

import aero
from aero.tables import markdown_table

DTYPES = (torch.float32, torch.bfloat16)
SIZES = ((8, 128), (4, 512), (2, 1024))  # B, T
HEADS, HEAD_DIM = 12, 64
CALLS = 2  # in one `with` block, which takes a small part of them to begin and to end
METHOD = f"""\
The same call of `torch.nn.functional.scaled_dot_product_attention`, causal, H {HEADS}, D
{HEAD_DIM}, on transposed views of [B, T, H, D] as models pass them: "torch" is its own flash
attention, "ours" the call inside `with aero.accelerate():`. A step is forward, backward and fused
AdamW of a transformers' GPT2LMHeadModel (2 layers of width 768, 1,000 tokens of vocabulary, no
dropout, `attn_implementation="sdpa"`); bfloat16 is autocast there. The two take turns in one
process of one thread, and its CPU time counts. A time is the median over the rounds in
milliseconds, with its quartiles. A ratio is the median of the rounds' own ratios (above 1: ours is
faster). `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` are 1e9 for both, because glibc
otherwise returns freed memory to the kernel between calls."""


def attention(dtype: torch.dtype, batch: int, length: int, back: bool) -> Callable[[], object]:
    """A call of torch's attention."""
    generator = torch.Generator().manual_seed(0)
    shape = (4, batch, length, HEADS, HEAD_DIM)
    q, k, v, dout = torch.randn(shape, generator=generator).to(dtype).transpose(2, 3)
    operands = [x.requires_grad_(back) for x in (q, k, v)]

    def call() -> object:
        out = F.scaled_dot_product_attention(*operands, is_causal=True)
        return torch.autograd.grad(out, operands, dout) if back else out

    return call


def step(dtype: torch.dtype, batch: int, length: int) -> Callable[[], object]:
    """A step of training."""
    config = GPT2Config(
        vocab_size=1000,
        n_positions=length,
        n_layer=2,
        bos_token_id=0,
        eos_token_id=0,
        attn_pdrop=0,
        resid_pdrop=0,
        embd_pdrop=0,
    )
    model = GPT2LMHeadModel._from_config(config, attn_implementation="sdpa").train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(1000, (batch, length))

    def call() -> None:
        is_bfloat16 = dtype == torch.bfloat16
        with torch.autocast("cpu", dtype) if is_bfloat16 else nullcontext():
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return call


def times(call: Callable[[], object], calls: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of one call, with torch's kernels and with ours, in turn."""

    def repeated(accelerated: bool) -> None:
        with aero.accelerate() if accelerated else nullcontext():
            for _ in range(calls):
                call()

    contenders = {"ours": partial(repeated, True), "torch": partial(repeated, False)}
    found = interleaved(contenders, rounds, cpu_time=True)
    return {name: [ms / calls for ms in timing.samples_ms] for name, timing in found.items()}


def measure(rounds: int, quick: bool) -> list[tuple[list[str], dict[str, list[float]]]]:
    """Runs in a child: what is timed, and its times."""
    torch.set_num_threads(1)
    found = []
    for dtype, (batch, length), back in itertools.product(DTYPES, SIZES, (False, True)):
        name = [str(dtype)[6:], f"B{batch} T{length}", "forward + backward" if back else "forward"]
        found.append((name, times(attention(dtype, batch, length, back), CALLS, rounds)))
    batch, length = SIZES[0] if quick else SIZES[1]
    for dtype in DTYPES:
        name = [str(dtype)[6:], f"B{batch} T{length}", "a step of GPT-2"]
        found.append((name, times(step(dtype, batch, length), 1, max(3, rounds // 2))))
    return found


def main() -> None:
    """Measures in a child and publishes a report."""
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--section", choices=["all"], help="the measurements, as JSON")
    arguments.set_defaults(rounds=7)
    chosen = arguments.parse_args()
    if chosen.section:
        print(json.dumps(measure(chosen.rounds, chosen.quick)))
        return
    child = ["--section", "all", "--rounds", str(3 if chosen.quick else chosen.rounds)]
    measured = in_child([*child, *["--quick"] * chosen.quick], KEEP_FREED_MEMORY)
    rows = []
    for name, samples in measured:
        timings = {key: Timing(tuple(ms)) for key, ms in samples.items()}
        ratio = ratio_text(timings["torch"].ratio_to(timings["ours"]))
        rows.append([*name, str(timings["torch"]), str(timings["ours"]), ratio])
    header = ["dtype", "size", "", "torch, ms", "ours, ms", "ratio"]
    command = "python benchmarks/torch_attention.py"
    command += f" --output {chosen.output}" if chosen.output else ""
    parts = ["# Torch's attention on the CPU with aero.accelerate", f"`{command}`", hardware()]
    publish("\n\n".join([*parts, METHOD, markdown_table(header, rows)]), chosen.output)


if __name__ == "__main__":
    main()
