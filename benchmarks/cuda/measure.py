"""The measurements of run.py, one after the other, each kept as soon as it is known.

    python3 benchmarks/cuda/measure.py --record FILE --until SECONDS_SINCE_THE_EPOCH

The most telling ones come first, for the case that time runs out.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import contenders
import torch
from contenders import Inputs, Shape
from device_timer import ceilings, is_gpu, taking_turns, wait
from gpu_run import DEVICE_LOST, Record
from training_steps import STEPS, training_step
from without_entropy import without_entropy

Result = dict[str, Any]
#: T, the most telling first.
LENGTHS = (512, 1024, 128, 2048, 4096, 256)
#: Query rows of a call; the listing forms T scores for each, so it gets fewer.
TOKENS = 131_072
LISTING_TOKENS = 16_384
PLAIN = ("ours", "flash", "cudnn")
#: T at which heads of 128 are measured.
WIDE_LENGTHS = (512, 1024, 2048, 4096)
#: T at which both ways of the backward direction are measured, around where it is chosen.
SCHEME_LENGTHS = (512, 1024, 128, 2048, 4096)
#: Seconds that a measurement takes at most, by kind; the first of a process takes START longer. On
#: an H100 the slowest took 2.6 of attention, 0.8 of schemes, 5 of step.
NEEDED = {
    "attention": 4,
    "schemes": 4,
    "variants": 4,
    "flex": 60,
    "listing": 6,
    "step": 8,
    "share": 60,
    "ceilings": 3,
}
START = 10


def shape_of(length: int, tokens: int, dtype: str, width: int, is_tiny: bool) -> Shape:
    if is_tiny:
        return Shape(1, length // 16, dtype, heads=2, head_dim=width)
    return Shape(max(1, tokens // length), length, dtype, head_dim=width)


def peak_bytes(device: torch.device, call: Callable[[], object]) -> int | None:
    """Memory that a call takes besides its inputs; None where it is not counted."""
    if not is_gpu(device):
        return None
    wait(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    wait(device)
    return torch.cuda.max_memory_allocated(device) - before


def compare(
    device: torch.device, shape: Shape, names: tuple[str, ...], backward: bool, tiny: bool
) -> dict[str, Result]:
    """Times, memory and the output's distance from ours; what does not work says why."""
    torch.set_float32_matmul_precision("high" if shape.dtype == "tf32" else "highest")
    x = Inputs.drawn(shape, device, backward)
    known = contenders.contenders(device)
    calls, results, outputs = {}, {}, {}
    for name in names:
        call = contenders.call(name, known[name], x, backward)
        try:
            outputs[name] = known[name](x)[0].detach()
            peak = peak_bytes(device, call)
        except Exception as error:  # out of memory, not for this device, a compiler's: others go on
            results[name] = {"outcome": "not run", "message": " ".join(str(error).split())[:300]}
            continue
        calls[name] = call
        results[name] = {"outcome": "passed", "message": "", "peak_bytes": peak}
    rounds = {"rounds": 2, "sample_ms": 1.0} if tiny else {}
    for name, samples in taking_turns(device, calls, **rounds).items():
        results[name] |= {
            "ms": samples,
            "heads": shape.all_heads,
            "flops": shape.flops(backward),
            "bytes_moved": shape.bytes_moved(backward),
        }
    if "ours" in outputs and "flash" in outputs:
        # Theirs has no temperature, so ours is called again without one.
        alone = contenders.attention_entropy(x.q, x.k, x.v, is_causal=True)[0].detach()
        difference = (alone.float() - outputs["flash"].float()).norm()
        distance = (difference / outputs["flash"].float().norm()).item()
        results["ours"]["distance_from_flash"] = distance
        if not distance < 0.02:
            results["ours"] |= {"outcome": "failed", "message": f"differs by {distance:.1e}"}
    return results


def attention_jobs(
    device: torch.device, tiny: bool
) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Kind, name and call of every comparison of attention."""

    def job(
        kind: str, length: int, names: tuple[str, ...], backward: bool, dtype: str, width: int = 64
    ) -> Any:
        tokens = LISTING_TOKENS if kind == "listing" else TOKENS
        shape = shape_of(length, tokens, dtype, width, tiny)
        direction = "both" if backward else "forward"
        of = dtype if width == 64 else f"{dtype} D{width}"
        return (
            kind,
            f"{kind}/{of}/T{length}/{direction}",
            lambda: compare(device, shape, names, backward, tiny),
        )

    half = "bfloat16"
    for length in LENGTHS[:3]:
        yield from (job("attention", length, PLAIN, back, half) for back in (False, True))
    yield from (job("listing", 512, ("listing",), back, half) for back in (False, True))
    for length in LENGTHS[3:]:
        yield from (job("attention", length, PLAIN, back, half) for back in (False, True))
    for length in WIDE_LENGTHS:
        yield from (job("attention", length, PLAIN, back, half, 128) for back in (False, True))
    yield from (job("schemes", n, contenders.SCHEMES, True, half) for n in SCHEME_LENGTHS)
    variants = ("ours", *contenders.VARIANTS)
    for length in (4096, 1024):
        yield from (job("variants", length, variants, back, half) for back in (False, True))
    yield from (job("flex", 512, ("flex",), back, half) for back in (False, True))
    for length in LENGTHS[1:]:
        yield from (job("listing", length, ("listing",), back, half) for back in (False, True))
    for dtype in ("float32", "tf32"):
        for length in (512, 1024):
            yield from (job("attention", length, ("ours",), back, dtype) for back in (False, True))
    for length in LENGTHS[1:]:
        yield from (job("flex", length, ("flex",), back, half) for back in (False, True))


def jobs(device: torch.device, tiny: bool) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """All measurements, in the order in which they are made."""
    yield "ceilings", "ceilings", lambda: ceilings(device, 64 if tiny else 8192)
    of_attention = list(attention_jobs(device, tiny))
    yield from of_attention[:8]
    for name in STEPS:
        yield "step", f"step/{name}", lambda name=name: training_step(device, name, tiny)
    if is_gpu(device):
        yield "share", "share", without_entropy
    yield from of_attention[8:]


def measure(record: Record, device: torch.device, until: float, tiny: bool, only: str) -> None:
    """Makes every measurement that has no result yet and fits in the time."""
    start = 0 if tiny else START
    for kind, name, job in jobs(device, tiny):
        if not re.match(only, name):
            continue
        before = record.results.get(name)
        if before is not None and before["outcome"] != "not run":
            continue
        if time.time() + (0 if tiny else NEEDED[kind]) + start > until:
            record.add(name, {"outcome": "not run", "message": "the time is used up"})
            continue
        start = 0
        record.begin(name)
        begun = time.time()
        try:
            result = {"outcome": "passed", "message": "", "found": job()}
        except Exception as error:  # whatever it is, it costs this measurement alone
            result = {"outcome": "failed", "message": " ".join(str(error).split())[:300]}
        record.add(name, {**result, "seconds": round(time.time() - begun, 1)})
        record.end()
        if is_lost(device):
            os._exit(DEVICE_LOST)
        if is_gpu(device):
            torch.cuda.empty_cache()


def is_lost(device: torch.device) -> bool:
    """True if an error of a kernel has taken the device from this process."""
    try:
        wait(device)
    except RuntimeError:
        return True
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--until", type=float, required=True)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--only", default="", help="regular expression for the names' beginnings")
    chosen = parser.parse_args()
    record, device = Record.reopened(chosen.record), torch.device(chosen.device)
    with nullcontext() if chosen.device == "cpu" else torch.cuda.device(0):
        measure(record, device, chosen.until, chosen.tiny, chosen.only)


if __name__ == "__main__":
    main()
    sys.exit(0)
