"""The measurements of run.py on a GPU as Markdown tables; missing ones are marked."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

from aero.tables import markdown_table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))


Results = dict[str, Any]
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
NAMES = ("ours", "flash", "cudnn", "flex", "listing")
DIRECTIONS = {"forward": "forward", "both": "forward + backward"}
#: As a type's name: heads of 128.
WIDE = "bfloat16 D128"
VARIANTS = ("window", "soft cap")
NOT_MEASURED = "-"


def found(results: Results, name: str, contender: str, dtype: str = "bfloat16") -> Any:
    """What is known of a contender at "T128/forward", from whichever comparison it was in."""
    for kind in ("attention", "flex", "listing"):
        result = results.get(f"{kind}/{dtype}/{name}", {}).get("found", {}).get(contender)
        if result is not None and "ms" in result:
            return result
    return None


def nanoseconds(result: Any) -> float:
    """Median time per head."""
    return 1e6 * float(statistics.median(result["ms"])) / float(result["heads"])


def number(value: float) -> str:
    """Three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def times(results: Results, direction: str, dtype: str) -> str:
    """Nanoseconds per head of everybody, and ours against the others."""
    rows = []
    for length in LENGTHS[2:] if dtype == WIDE else LENGTHS:
        of = {name: found(results, f"T{length}/{direction}", name, dtype) for name in NAMES}
        row = [str(length)]
        row += [NOT_MEASURED if x is None else number(nanoseconds(x)) for x in of.values()]
        for other in ("flash", "listing"):
            both = of["ours"], of[other]
            row.append(
                NOT_MEASURED
                if None in both
                else f"{nanoseconds(both[1]) / nanoseconds(both[0]):.2f}"
            )
        rows.append(row)
    return markdown_table(["T", *NAMES, "flash / ours", "listing / ours"], rows)


def floor_ns(result: Any, ceilings: Any) -> float:
    """The least time per head that the measured ceilings allow."""
    seconds = max(
        result["flops"] / ceilings["flops_per_second"],
        result["bytes_moved"] / ceilings["bytes_per_second"],
    )
    return 1e9 * float(seconds) / float(result["heads"])


def rates(results: Results, dtype: str) -> str:
    """Our rates, share of the floor and memory."""
    ceilings = results.get("ceilings", {}).get("found")
    rows = []
    for direction, words in DIRECTIONS.items():
        for length in LENGTHS:
            x = found(results, f"T{length}/{direction}", "ours", dtype)
            if x is None:
                continue
            seconds = statistics.median(x["ms"]) / 1e3
            floor = None if ceilings is None else floor_ns(x, ceilings)
            peak = x.get("peak_bytes")
            rows.append(
                [
                    words,
                    str(length),
                    number(nanoseconds(x)),
                    number(x["flops"] / seconds / 1e12),
                    number(x["bytes_moved"] / seconds / 1e9),
                    NOT_MEASURED if floor is None else f"{100 * floor / nanoseconds(x):.0f} %",
                    NOT_MEASURED if peak is None else f"{peak / 2**20:.0f}",
                ]
            )
    header = ["", "T", "ns per head", "TFLOP/s", "GB/s", "share of the floor", "peak MiB"]
    return markdown_table(header, rows)


def schemes(results: Results) -> str:
    """Nanoseconds per head by both ways of the backward direction."""
    rows = []
    for length in LENGTHS:
        of = results.get(f"schemes/bfloat16/T{length}/both", {}).get("found", {})
        known = [of[n] for n in ("heads", "split") if "ms" in of.get(n, {})]
        if len(known) == 2:
            heads, split = map(nanoseconds, known)
            rows.append([str(length), number(heads), number(split), f"{split / heads:.2f}"])
    return markdown_table(["T", "heads", "split", "split / heads"], rows) if rows else NOT_MEASURED


def variants(results: Results) -> str:
    """Nanoseconds per head of plain attention, and what a window and a soft cap take of them."""
    rows = []
    for length in LENGTHS:
        for direction in ("forward", "both"):
            of = results.get(f"variants/bfloat16/T{length}/{direction}", {}).get("found", {})
            if any("ms" not in of.get(name, {}) for name in ("ours", *VARIANTS)):
                continue
            plain = nanoseconds(of["ours"])
            shares = (nanoseconds(of[name]) / plain for name in VARIANTS)
            rows.append([direction, str(length), number(plain), *(f"{s:.2f}" for s in shares)])
    header = ["", "T", "plain", *(f"{name} / plain" for name in VARIANTS)]
    return markdown_table(header, rows) if rows else NOT_MEASURED


def steps(results: Results) -> str:
    """A training step of everybody."""
    rows = []
    for name in ("ours", "listing", "sdpa"):
        x = results.get(f"step/{name}", {}).get("found")
        if x is None:
            rows.append([name, NOT_MEASURED, NOT_MEASURED, NOT_MEASURED])
            continue
        memory = [x.get("peak"), x.get("resting")]
        rows.append(
            [name, f"{x['median_ms']:.1f}"]
            + [NOT_MEASURED if b is None else f"{b / 2**30:.2f}" for b in memory]
        )
    return markdown_table(["", "ms per step", "peak GiB", "GiB between steps"], rows)


def shares(results: Results) -> str:
    """The cost of entropy and temperature inside the kernels."""
    x = results.get("share", {}).get("found")
    if x is None:
        return NOT_MEASURED
    rows = [
        [
            length,
            direction,
            f"{100 * (with_[direction] / x['without'][length][direction] - 1):.1f} %",
        ]
        for length, with_ in x["with"].items()
        for direction in ("forward", "backward")
    ]
    return markdown_table(["T", "", "more time than without"], rows)


def summary(results: Results) -> str:
    """The main ratios, bfloat16 and D = 64 where nothing else is said."""
    rows: list[list[str]] = []

    def row(name: str, value: float | None) -> None:
        rows.append([name, NOT_MEASURED if value is None else number(value)])

    def ratio(name: str, mine: str, theirs: str, dtype: str = "bfloat16") -> float | None:
        both = found(results, name, mine, dtype), found(results, name, theirs, dtype)
        return None if None in both else nanoseconds(both[0]) / nanoseconds(both[1])

    ceilings, first = (
        results.get("ceilings", {}).get("found"),
        found(results, "T128/forward", "ours"),
    )
    known = ceilings is not None and first is not None
    row(
        "T = 128 forward, times the floor",
        nanoseconds(first) / floor_ns(first, ceilings) if known else None,
    )
    for length in LENGTHS[2:]:
        for direction, words in DIRECTIONS.items():
            value = ratio(f"T{length}/{direction}", "ours", "flash")
            row(f"T = {length} {words}, times flash", value)
            value = ratio(f"T{length}/{direction}", "ours", "flash", WIDE)
            row(f"T = {length} {words}, D = 128, times flash", value)
    value = ratio("T512/both", "listing", "ours")
    row("T = 512 forward + backward, listing over ours", value)
    share = results.get("share", {}).get("found")
    cost = None
    if share is not None:
        cost = max(
            with_[d] / share["without"][length][d] - 1
            for length, with_ in share["with"].items()
            for d in with_
        )
    row("entropy and temperature, share of the time without", cost)
    mine, theirs = (results.get(f"step/{n}", {}).get("found") or {} for n in ("ours", "listing"))
    saved = None
    if "peak" in mine and "peak" in theirs:
        saved = (theirs["peak"] - theirs["resting"]) / (mine["peak"] - mine["resting"])
    row("memory of a step above its rest, listing over ours", saved)
    return markdown_table(["", "measured"], rows)


def troubles(results: Results) -> str:
    """Failed and missing measurements, in words."""
    lines = []
    for name, result in results.items():
        if result["outcome"] != "passed":
            lines.append(f"- {name}: {result['outcome']}: {result['message']}")
        inner = result.get("found") or {}
        lines += [
            f"- {name}, {contender}: {x['outcome']}: {x['message']}"
            for contender, x in inner.items()
            if isinstance(x, dict) and x.get("outcome", "passed") != "passed"
        ]
    return "\n".join(lines) or "none"


def report(results: Results, head: str) -> str:
    """All tables; the most telling ones last, where a terminal shows them."""
    ceilings = results.get("ceilings", {}).get("found")
    measured = NOT_MEASURED
    if ceilings is not None:
        measured = (
            f"copying {ceilings['bytes_per_second'] / 1e12:.2f} TB/s, "
            f"products {ceilings['flops_per_second'] / 1e12:.0f} TFLOP/s (bfloat16)"
        )
    parts = [
        ("Not measured or failed", troubles(results)),
        ("Ours, float32", rates(results, "float32")),
        ("Ours, float32 that products may round to TF32", rates(results, "tf32")),
        ("Ours, bfloat16", rates(results, "bfloat16")),
        (
            "ns per head, forward + backward, bfloat16, by way of the backward direction",
            schemes(results),
        ),
        ("ns per head, with a window of 256 keys and a soft cap of 50", variants(results)),
        ("Cost of entropy and temperature", shares(results)),
        ("Training step, GPT-2 small, B 32, T 512, bfloat16 autocast", steps(results)),
        *(
            (f"ns per head, {words}, {dtype}", times(results, direction, dtype))
            for dtype in (WIDE, "bfloat16")
            for direction, words in DIRECTIONS.items()
        ),
        ("Summary", summary(results)),
    ]
    body = "\n\n".join(f"## {title}\n\n{text}" for title, text in parts)
    return f"# Attention with entropy on a GPU\n\n{head}\n\nCeilings: {measured}\n\n{body}"
