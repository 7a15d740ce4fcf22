"""attention_entropy against torch's scaled_dot_product_attention and against the paper's listing.

    python benchmarks/attention_entropy.py [--quick] [--output results/NAME.md]

Causal, D = 64, a temperature per head and position, gradients of output and entropy; torch's
attention returns no entropy and has no temperature. Every table is measured in processes of its
own, with the allocator and the instruction sets that it names, between two measurements of the
machine's peaks. With --output the report comes with a chart of the same name.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import entropy_share
import torch
from attention_report import Case, Measured, Result, Section, chart, report
from peaks import Peaks, measure_peaks
from timer import KEEP_FREED_MEMORY, Timing, in_child, interleaved, parser, publish
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from aero.ops import attention_entropy

SIZES = ((8, 12, 128), (4, 12, 512), (2, 12, 1024))  # B, H, T: about the same work each
DTYPES = ("float32", "bfloat16")
AVX2 = {
    "AERO_CPU_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
}


def cases(
    head_dims: tuple[int, ...] = (64,),
    layout: str = "BHTD",
    backward: tuple[bool, ...] = (False, True),
) -> list[Case]:
    return [
        Case(dtype, *size, head_dim, back, layout)
        for head_dim, dtype, back, size in itertools.product(head_dims, DTYPES, backward, SIZES)
    ]


SECTIONS = {
    s.name: s
    for s in (
        Section("main", cases(), ("ours", "sdpa"), KEEP_FREED_MEMORY, rounds=40),
        Section("default allocator", cases(), ("ours", "sdpa", "listing"), {}, rounds=7),
        Section("one thread", cases(), ("ours", "sdpa"), KEEP_FREED_MEMORY, rounds=9, threads=1),
        # The listing frees more than 1e9 bytes at T = 1024.
        Section(
            "opponents",
            cases(),
            ("ours", "math", "listing"),
            {**KEEP_FREED_MEMORY, "MALLOC_TRIM_THRESHOLD_": "10000000000"},
            rounds=5,
        ),
        Section("head widths", cases((32, 80, 128)), ("ours", "sdpa"), KEEP_FREED_MEMORY, rounds=7),
        Section(
            "layout",
            cases(layout="BTHD"),
            ("ours", "ours BHTD", "sdpa"),
            KEEP_FREED_MEMORY,
            rounds=9,
        ),
        Section("avx2", cases(), ("ours", "sdpa"), {**KEEP_FREED_MEMORY, **AVX2}, rounds=7),
        Section(
            "decode",
            [
                Case(dtype, 8, 12, 1, 64, False, "BHTD", keys)
                for dtype in DTYPES
                for keys in (128, 512, 1024, 4096)
            ],
            ("ours", "sdpa"),
            KEEP_FREED_MEMORY,
            rounds=15,
        ),
    )
}
QUICK = ("main", "opponents")
# A whole process may run a fifth slower than the next, with every call of it.
PROCESSES = 5


def listing(q: Tensor, k: Tensor, v: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """Attention and entropy as in the paper's PyTorch listing: the [T, T] matrix is formed."""
    scores = q @ k.transpose(-2, -1) / (q.shape[-1] ** 0.5 * temperature[..., None].to(q.dtype))
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    attention = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    entropy = -torch.sum(attention * torch.log(attention + 1e-9), dim=-1)
    return attention @ v, entropy


def flash(q: Tensor, k: Tensor, v: Tensor, is_causal: bool) -> tuple[Tensor]:
    return (scaled_dot_product_attention(q, k, v, is_causal=is_causal),)


def contenders(case: Case, names: tuple[str, ...]) -> dict[str, Callable[[], object]]:
    """The calls to time on the same inputs."""
    dtype, generator = getattr(torch, case.dtype), torch.Generator().manual_seed(0)

    def draw(rows: int, layout: str) -> Tensor:
        shape = (case.batch, case.heads, rows, case.head_dim)
        x = torch.randn(shape, generator=generator).to(dtype)
        if layout == "BTHD":  # a view, as models pass it
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        return x

    q, k, v, dout = (
        draw(rows, case.layout) for rows in (case.queries, case.keys, case.keys, case.queries)
    )
    rows = (case.heads, case.queries)
    temperature = 0.5 + torch.rand(rows, generator=generator)
    dentropy = torch.randn(case.batch, *rows, generator=generator)
    is_causal = case.queries > 1

    def call(name: str) -> Callable[[], object]:
        inputs = [x.contiguous() if name == "ours BHTD" else x for x in (q, k, v)]
        leaves = [x.detach().requires_grad_(case.backward) for x in (*inputs, temperature)]

        def forward() -> tuple[Tensor, ...]:
            if name.startswith("ours"):
                return attention_entropy(*leaves[:3], temperature=leaves[3], is_causal=is_causal)[
                    :2
                ]
            if name == "listing":
                return listing(*leaves)
            if name == "sdpa":
                return flash(*leaves[:3], is_causal)
            with sdpa_kernel(SDPBackend.MATH):
                return flash(*leaves[:3], is_causal)

        def forward_and_backward() -> object:
            outputs = forward()
            used = leaves if len(outputs) == 2 else leaves[:3]
            return torch.autograd.grad(outputs, used, (dout, dentropy)[: len(outputs)])

        return forward_and_backward if case.backward else forward

    return {name: call(name) for name in names}


def measure(section: Section, rounds: int) -> list[dict[str, list[float]]]:
    """Samples in milliseconds for every case, in this process."""
    torch.set_num_threads(section.threads)
    torch.backends.cuda.enable_math_sdp(False)  # also on the CPU: flash attention or an error
    return [
        {
            name: list(timing.samples_ms)
            for name, timing in interleaved(
                contenders(case, section.contenders), rounds, cpu_time=section.threads == 1
            ).items()
        }
        for case in section.cases
    ]


def results(names: tuple[str, ...], scale: float) -> Iterator[Result]:
    """Measures section after section, each in children between two looks at the peaks."""
    for name in names:
        section = SECTIONS[name]
        rounds = max(3, round(section.rounds * scale / PROCESSES))
        before = measure_peaks(section.threads)
        children = [
            in_child(["--section", name, "--rounds", str(rounds)], section.environment)
            for _ in range(PROCESSES)
        ]
        after = measure_peaks(section.threads)
        measured = [
            Measured(case, {key: pooled([row[key] for row in rows]) for key in section.contenders})
            for case, rows in zip(section.cases, zip(*children, strict=True), strict=True)
        ]
        yield Result(section, measured, Peaks.larger(before, after))


def pooled(samples: Sequence[Sequence[float]]) -> Timing:
    """The rounds of all processes as one sample."""
    return Timing(tuple(itertools.chain.from_iterable(samples)))


def main() -> None:
    arguments = parser(__doc__.splitlines()[0])
    arguments.add_argument("--section", choices=SECTIONS, help="one table, as JSON")
    chosen = arguments.parse_args()
    if chosen.section:
        print(json.dumps(measure(SECTIONS[chosen.section], chosen.rounds)))
        return
    names, scale = (QUICK, 0.3) if chosen.quick else (tuple(SECTIONS), 1.0)
    shares = entropy_share.table(5 if chosen.quick else 15)
    measured = {result.section.name: result for result in results(names, scale)}
    command, image = "python benchmarks/attention_entropy.py", None
    if chosen.output:
        picture = chosen.output.with_suffix(".png")
        chart(measured["main"], picture)
        command, image = f"{command} --output {chosen.output}", picture.name
    publish(report(measured, shares, command, image), chosen.output)


if __name__ == "__main__":
    main()
