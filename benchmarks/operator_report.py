"""Common parts of the benchmarks of single operators: sections, command line, report."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from attention_report import hardware, ratio_text
from timer import KEEP_FREED_MEMORY, Timing, in_child, interleaved, parser, publish

from aero.tables import markdown_table

OURS = "ours"
Contenders = Mapping[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One size: its name, the calls to time by name (ours as "ours"), the bytes they must move."""

    name: str
    contenders: Callable[[], Contenders]
    least_bytes: int


@dataclass(frozen=True)
class Section:
    """One table, measured in a process of its own."""

    name: str
    threads: int
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def cpu_time(self) -> bool:
        return self.threads == 1


SECTIONS = (
    Section("two threads", 2, KEEP_FREED_MEMORY),
    Section("one thread, CPU time", 1, KEEP_FREED_MEMORY),
    Section("two threads, default allocator", 2),
)
METHOD = """\
Contenders take turns. A time is the median over the rounds in milliseconds, with its quartiles. A
ratio is the median of the rounds' own ratios (above 1: ours is faster). Except under "default
allocator", all run with `MALLOC_TRIM_THRESHOLD_` and `MALLOC_MMAP_THRESHOLD_` at 1e9, because glibc
otherwise returns freed memory to the kernel between calls. "least" counts the bytes of the tensors
that every method reads or writes once, and how many of them per second ours moves."""


def measure(section: Section, cases: Sequence[Case], rounds: int) -> list[dict[str, list[float]]]:
    """Samples in milliseconds for every case, in this process."""
    torch.set_num_threads(section.threads)
    return [
        {
            name: list(timing.samples_ms)
            for name, timing in interleaved(
                case.contenders(), rounds, cpu_time=section.cpu_time
            ).items()
        }
        for case in cases
    ]


def table(cases: Sequence[Case], samples: Sequence[Mapping[str, Sequence[float]]]) -> str:
    """Times of all, ratios of the opponents to ours."""
    opponents = [name for name in samples[0] if name != OURS]
    rows = []
    for case, row in zip(cases, samples, strict=True):
        times = {name: Timing(tuple(ms)) for name, ms in row.items()}
        cells = [case.name, str(times[OURS])]
        for name in opponents:
            cells += [str(times[name]), ratio_text(times[name].ratio_to(times[OURS]))]
        rate = case.least_bytes / times[OURS].median_ms / 1e6
        rows.append([*cells, f"{case.least_bytes / 1e6:.1f} MB, {rate:.0f} GB/s"])
    header = ["", "ours"]
    for name in opponents:
        header += [name, "ratio"]
    return markdown_table([*header, "least"], rows)


def run(title: str, notes: str, script: str, cases: Sequence[Case], *, rounds: int = 11) -> None:
    """The command line of a benchmark: measures every section in a child and publishes a report.

    Args:
        title: of the report.
        notes: the compared methods, Markdown.
        script: name of the benchmark, for the command in the report.
        cases: the sizes; all with the same contenders.
        rounds: samples of each contender; a third of it with --quick, which leaves sections out.
    """
    arguments = parser(title)
    arguments.add_argument("--section", choices=[s.name for s in SECTIONS], help="one, as JSON")
    arguments.set_defaults(rounds=rounds)
    chosen = arguments.parse_args()
    if chosen.section:
        (section,) = (s for s in SECTIONS if s.name == chosen.section)
        print(json.dumps(measure(section, cases, chosen.rounds)))
        return
    count = max(3, chosen.rounds // 3) if chosen.quick else chosen.rounds
    command = f"python benchmarks/{script}" + (
        f" --output {chosen.output}" if chosen.output else ""
    )
    parts = [f"# {title}", f"`{command}`", hardware(), notes, METHOD]
    for section in SECTIONS[: 1 if chosen.quick else None]:
        samples = in_child(["--section", section.name, "--rounds", str(count)], section.environment)
        parts += [f"## {section.name.capitalize()}", table(cases, samples)]
    publish("\n\n".join(parts), chosen.output)
