"""The peaks of the machine, measured in the same minutes as the times compared with them.

python benchmarks/peaks.py --threads 2
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from timer import parser

ROOT = Path(__file__).parent.parent
SOURCE = Path(__file__).with_suffix(".cpp")


@dataclass(frozen=True)
class Peaks:
    """Rates of all threads together."""

    fp32_gflops: float  #: float32 fused multiply-adds, two operations each
    bf16_gflops: float  #: bfloat16 products, of AMX's tiles or of pairs; 0 where there are none
    exp2_gvalues: float  #: the kernels' own powers of two, with their two sums
    read_gbytes: float  #: reading from memory

    @classmethod
    def larger(cls, a: Peaks, b: Peaks) -> Peaks:
        """The higher of each: what disturbs a measurement of a peak only lowers it."""
        return cls(*(max(x, y) for x, y in zip(vars(a).values(), vars(b).values(), strict=True)))


PROGRAMS = tempfile.TemporaryDirectory()  # until this process ends


@functools.cache
def compiled(source: Path, name: str, *flags: str) -> Path:
    """Compiles a C++ file of this folder for this very machine; returns the program `name`."""
    program = Path(PROGRAMS.name, name)
    command = [os.environ.get("CXX", "c++"), "-O3", "-march=native", "-std=c++20", "-pthread"]
    folders = [f"-I{ROOT}"]
    subprocess.run([*command, *flags, *folders, str(source), "-o", str(program)], check=True)
    return program


def measure_peaks(threads: int, seconds: float = 0.3) -> Peaks:
    """Takes about four times `seconds`."""
    command = [str(compiled(SOURCE, "peaks")), str(threads), str(seconds)]
    return Peaks(**json.loads(subprocess.run(command, capture_output=True, check=True).stdout))


def main() -> None:
    print(measure_peaks(parser(__doc__.splitlines()[0]).parse_args().threads))


if __name__ == "__main__":
    main()
