"""The measurements of attention_entropy.py as Markdown and as a chart."""

from __future__ import annotations

import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from peaks import Peaks
from timer import Quartiles, Timing, machine

import aero
from aero._library import cpu_isa
from aero.tables import markdown_table

LENGTHS = (128, 512, 1024)


@dataclass(frozen=True)
class Case:
    """Sizes and types of one comparison."""

    dtype: str
    batch: int
    heads: int
    queries: int
    head_dim: int
    backward: bool
    layout: str = "BHTD"
    cached_keys: int | None = None  #: S where it is not T

    @property
    def keys(self) -> int:
        return self.cached_keys or self.queries

    @property
    def direction(self) -> str:
        return "forward + backward" if self.backward else "forward"

    @property
    def size(self) -> str:
        return f"B{self.batch} H{self.heads} T{self.queries}"

    def scores(self, queries: int) -> int:
        """Scores computed for groups of queries: keys that none of a group sees are skipped."""
        seen = (
            min(self.keys, first + queries + self.keys - self.queries)
            for first in range(0, self.queries, queries)
        )
        return self.batch * self.heads * queries * sum((n + 3) // 4 * 4 for n in seen)

    def flops(self, lanes: int) -> int:
        """FLOPs of the products: q k and P v; backward the scores again, dP, dV, dK and dQ."""
        # Queries in the lanes of vectors; head columns there, and few queries together.
        in_lanes, in_groups = self.scores(lanes), self.scores(4 if self.head_dim > 32 else 8)
        products = 3 * in_lanes + 4 * in_groups if self.backward else in_lanes + in_groups
        return 2 * self.head_dim * products

    def bytes(self) -> int:
        """Every tensor once: q, k, v, out; then q, k, v, out, dout, dq, dk and dv."""
        one = self.batch * self.heads * self.head_dim * (2 if self.dtype == "bfloat16" else 4)
        queries, keys = (5, 7) if self.backward else (2, 2)
        return one * (queries * self.queries + keys * self.keys)


@dataclass(frozen=True)
class Section:
    """One table: the contenders and their environment."""

    name: str
    cases: Sequence[Case]
    contenders: tuple[str, ...]
    environment: Mapping[str, str]
    rounds: int
    threads: int = 2


@dataclass(frozen=True)
class Measured:
    """The times of all contenders in one case."""

    case: Case
    times: Mapping[str, Timing]

    def ratio(self, opponent: str = "sdpa") -> Quartiles:
        return self.times[opponent].ratio_to(self.times["ours"])

    @property
    def ours_seconds(self) -> float:
        return self.times["ours"].median_ms / 1e3


@dataclass(frozen=True)
class Result:
    """A measured section with the peaks of the same minutes."""

    section: Section
    measured: Sequence[Measured]
    peaks: Peaks

    @property
    def lanes(self) -> int:
        isa = self.section.environment.get("AERO_CPU_ISA", cpu_isa())
        return {"scalar": 4, "avx2": 8}.get(isa, 16)

    def peak_flops(self, case: Case) -> float:
        return 1e9 * (
            self.peaks.bf16_gflops if case.dtype == "bfloat16" else self.peaks.fp32_gflops
        )

    def bound_seconds(self, case: Case) -> tuple[float, float, float]:
        """Products at the peak of multiply-adds, exponentials at theirs, tensors through memory."""
        exponentials = (2 if case.backward else 1) * case.scores(self.lanes)
        return (
            case.flops(self.lanes) / self.peak_flops(case),
            exponentials / (1e9 * self.peaks.exp2_gvalues),
            case.bytes() / (1e9 * self.peaks.read_gbytes),
        )


def ratio_text(q: Quartiles) -> str:
    return f"{q.median:.2f} ({q.lower:.2f} .. {q.upper:.2f})"


def ratios(result: Result) -> str:
    """Every ratio, and the ratio at the processor's own peaks."""
    rows = []
    for m in result.measured:
        products, exponentials, _memory = result.bound_seconds(m.case)
        bound = m.times["sdpa"].median_ms / 1e3 / (products + exponentials)
        rows.append(
            [
                m.case.dtype, m.case.direction, str(m.case.queries), ratio_text(m.ratio()),
                f"{bound:.1f}",
            ]
        )  # fmt: skip
    header = ["dtype", "direction", "T", "ratio to SDPA", "at the peaks"]
    return markdown_table(header, rows)


def times_and_shares(result: Result) -> str:
    rows = []
    for m in result.measured:
        products, exponentials, memory = result.bound_seconds(m.case)
        rows.append(
            [
                m.case.dtype, m.case.size, m.case.direction, str(m.times["sdpa"]),
                str(m.times["ours"]), f"{m.case.flops(result.lanes) / m.ours_seconds / 1e9:.0f}",
                f"{100 * products / m.ours_seconds:.0f} %", f"{1e3 * products:.3f}",
                f"{1e3 * exponentials:.3f}", f"{1e3 * memory:.3f}",
            ]
        )  # fmt: skip
    header = [
        "dtype", "size", "direction", "SDPA flash, ms", "ours, ms", "GFLOP/s", "share of peak",
        "products at peak, ms", "exponentials, ms", "memory, ms",
    ]  # fmt: skip
    return markdown_table(header, rows)


def comparison(result: Result, opponents: tuple[str, ...]) -> str:
    """Times and ratios."""
    rows = []
    for m in result.measured:
        row = [
            m.case.dtype,
            m.case.size,
            str(m.case.head_dim),
            m.case.direction,
            str(m.times["ours"]),
        ]
        for name in opponents:
            row += [str(m.times[name]), ratio_text(m.ratio(name))]
        rows.append(row)
    header = ["dtype", "size", "D", "direction", "ours, ms"]
    for name in opponents:
        header += [f"{name}, ms", "ratio"]
    return markdown_table(header, rows)


def decode(result: Result) -> str:
    rows = []
    for m in result.measured:
        rate = m.case.bytes() / m.ours_seconds / 1e9
        rows.append(
            [
                m.case.dtype, str(m.case.keys), str(m.times["sdpa"]), str(m.times["ours"]),
                ratio_text(m.ratio()), f"{rate:.0f}",
            ]
        )  # fmt: skip
    header = ["dtype", "S", "SDPA, ms", "ours, ms", "ratio", "GB/s of keys and values"]
    return markdown_table(header, rows)


def listing_ratio(result: Result) -> str:
    """The listing's least ratio, and the ratio at the peaks."""
    found = []
    for m in result.measured:
        if m.case.dtype == "float32" and m.case.queries >= 512 and m.case.backward:
            products, exponentials, _memory = result.bound_seconds(m.case)
            bound = m.times["listing"].median_ms / 1e3 / (products + exponentials)
            found.append((m.ratio("listing").median, bound))
    least, at_peaks = min(found)
    return (
        f"The listing in float32 at T >= 512, forward + backward, takes at least {least:.1f} times "
        f"as long ({at_peaks:.1f} times at the peaks)."
    )


def hardware() -> str:
    """Lines on processor, caches, system and versions."""
    listed = subprocess.run(["lscpu"], capture_output=True, text=True, check=True).stdout
    caches = re.findall(r"^(L\d\w*) cache:\s*(.*)$", listed, re.MULTILINE)
    compiler = subprocess.run(
        ["c++", "--version"], capture_output=True, text=True, check=True
    ).stdout
    return "\n".join(
        [
            f"- {machine()}; {', '.join(f'{name} {size}' for name, size in caches)}",
            f"- {platform.system()} {platform.release()}, {'-'.join(platform.libc_ver())}, "
            f"{compiler.splitlines()[0]}",
            f"- aero-torch {aero.__version__}, kernels for {cpu_isa()}",
        ]
    )


def chart(result: Result, path: Path) -> None:
    """Ratios as bars with their quartiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 4, figsize=(10, 3), sharey=True, layout="constrained")
    keys = list(dict.fromkeys((m.case.dtype, m.case.backward) for m in result.measured))
    for ax, key in zip(axes, keys, strict=True):
        rows = [m for m in result.measured if (m.case.dtype, m.case.backward) == key]
        ratios = [m.ratio() for m in rows]
        errors = [[r.median - r.lower for r in ratios], [r.upper - r.median for r in ratios]]
        ax.bar(range(3), [r.median for r in ratios], yerr=errors, color="#4878a8", width=0.6)
        ax.set_xticks(range(3), [f"T={n}" for n in LENGTHS])
        ax.set_title(f"{key[0]}, {rows[0].case.direction}", fontsize=9)
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("times faster than SDPA flash")
    figure.suptitle("attention_entropy against torch's attention", fontsize=10)
    figure.savefig(path, dpi=180)


TITLE = "# attention_entropy against torch's attention and the paper's listing"
METHOD = """\
All attention is causal. Ours has a temperature per head and position, entropy, and gradients of
both. Torch's (flash attention, its fastest here) has neither. Contenders take turns, in five
processes one after the other, because a whole process may run a fifth slower than the next. A
figure is the median over the rounds of all five, with its quartiles. A ratio is the median of the
rounds' own ratios (above 1: ours is faster). Two threads and wall clock count unless a heading says
otherwise. `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` are 1e9 for all contenders, unless
a heading says "default allocator". By default,
glibc returns freed memory to the kernel between calls.

Operations are those executed: two per multiply-add of the products (2 forward, 5 backward), over
the scores that they use. For scores and dP the causal rule skips keys that no query of a vector
sees (12 % more than the visible scores at T = 128, 2 % at 1024). The other products skip keys that
none of four queries sees (2 %). Peaks are the best of ten measurements before and after each table,
with 24 accumulators."""
PEAKS = """\
"At the peaks" is the ratio of a kernel whose products run at the peak of multiply-adds, followed by
exponentials at their own peak. No kernel that does this work in these precisions is faster.
"memory" is the time to read or write every tensor once at the rate of reading. If it is the largest
of the three, bandwidth bounds the call, not arithmetic."""


def peaks_line(result: Result) -> str:
    p = result.peaks
    return (
        f"Peaks of {result.section.threads} threads in the same minutes: {p.fp32_gflops:.0f} "
        f"GFLOP/s float32, {p.bf16_gflops:.0f} GFLOP/s bfloat16, {p.exp2_gvalues:.1f} "
        f"exponentials per nanosecond, {p.read_gbytes:.0f} GB/s from memory."
    )


def report(results: Mapping[str, Result], shares: str, command: str, image: str | None) -> str:
    """The whole text; sections that were not measured are left out."""
    sdpa = ("sdpa",)
    parts = [TITLE, f"`{command}`", hardware(), METHOD]
    if image:
        parts.append(f"![Ratios to SDPA]({image})")
    bodies = {
        "main": lambda r: [
            "## Ratios", ratios(r), PEAKS, "## Times, D = 64", peaks_line(r), times_and_shares(r)
        ],
        "default allocator": lambda r: [
            "## Default allocator", comparison(r, ("sdpa", "listing")), listing_ratio(r)
        ],
        "one thread": lambda r: ["## One thread, CPU time", peaks_line(r), comparison(r, sdpa)],
        "opponents": lambda r: [
            "## SDPA math and the paper's listing (trim threshold 1e10)",
            comparison(r, ("math", "listing")), listing_ratio(r),
        ],
        "head widths": lambda r: ["## Other head widths", comparison(r, sdpa)],
        "layout": lambda r: [
            "## Transposed views of [B, T, H, D], as models pass them",
            comparison(r, ("ours BHTD", "sdpa")),
        ],
        "avx2": lambda r: ["## Both restricted to AVX2", comparison(r, sdpa)],
        "decode": lambda r: [
            "## One query against a cache of keys: B = 8, H = 12", peaks_line(r), decode(r)
        ],
    }  # fmt: skip
    for name, body in bodies.items():
        if name in results:
            parts += body(results[name])
    parts += ["## The cost of entropy and temperature", shares]
    return "\n\n".join(parts)
