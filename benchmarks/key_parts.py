"""What generation gains where threads share the keys of a row, not only the rows.

    python benchmarks/key_parts.py [--quick] [--output results/NAME.md]

One query per head, B = 1, D = 64, two threads. Processor time, not wall clock: what counts is the
thread that has most to do, and then `finish`, which puts the parts together.
"""

from __future__ import annotations

import itertools
import subprocess
from pathlib import Path

from peaks import compiled
from timer import Timing, machine, parser, publish

from aero.tables import markdown_table

THREADS, HEADS, KEYS = 2, (1, 3, 5), (1024, 4096)


def parts_of(heads: int, keys: int) -> int:
    """The choice of kernels/cpu/attention_entropy.cpp: four items to a thread, 256 keys each."""
    return max(1, min(-(-4 * THREADS // heads), keys // 256))


def measured(dtype: str, heads: int, keys: int, rounds: int) -> tuple[Timing, Timing]:
    """Times with whole keys and in parts."""
    program = compiled(Path(__file__).with_suffix(".cpp"), "key_parts")
    numbers = (heads, keys, parts_of(heads, keys), rounds)
    run = subprocess.run(
        [str(program), dtype, *map(str, numbers)], capture_output=True, text=True, check=True
    )
    samples = [[float(us) / 1e3 for us in line.split()] for line in run.stdout.splitlines()]
    whole, cut = (Timing(tuple(row[i] for row in samples)) for i in (0, 1))
    return whole, cut


def report(rounds: int, command: str) -> str:
    rows = []
    for dtype, heads, keys in itertools.product(("float32", "bfloat16"), HEADS, KEYS):
        whole, cut = measured(dtype, heads, keys, rounds)
        gain = whole.ratio_to(cut)
        most = -(-heads // THREADS) * THREADS / heads
        rows.append(
            [
                dtype, str(heads), str(keys), str(parts_of(heads, keys)), str(whole), str(cut),
                f"{gain.median:.2f} ({gain.lower:.2f} .. {gain.upper:.2f})", f"{most:.2f}",
            ]
        )  # fmt: skip
    header = ["dtype", "H", "S", "parts", "whole, ms", "in parts, ms", "ratio", "at most"]
    return "\n\n".join(
        [
            "# Generation with the keys of a row in parts",
            f"`{command}`",
            machine(),
            "One query per head against cached keys, B = 1, D = 64, two threads: the processor "
            f"time of the busier\nthread, the best of 5, and of what puts the parts together; "
            f"medians over {rounds} rounds with quartiles,\nwhole and in parts in turns. "
            "Processor time holds on a busy machine too. From eight rows on keys stay whole.\n"
            '"at most" is what two threads gain when they share the work evenly.',
            markdown_table(header, rows),
        ]
    )


def main() -> None:
    chosen = parser(__doc__.splitlines()[0]).parse_args()
    command = "python benchmarks/key_parts.py"
    if chosen.output:
        command += f" --output {chosen.output}"
    publish(report(7 if chosen.quick else 41, command), chosen.output)


if __name__ == "__main__":
    main()
