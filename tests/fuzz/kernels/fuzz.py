"""Lets libFuzzer look for cases of attention that reach new code, from the corpus that is kept.

    python tests/fuzz/kernels/fuzz.py BUILD --minutes 30

BUILD holds `attention_fuzzer`. The cases that reach most are written to the C++ tests' corpus, the
old ones only where they still reach something. A case that fails is printed in hexadecimal
digits, for a line of the corpus, and ends this with 1.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

CORPUS = Path(__file__).parents[2] / "cpp" / "kernels" / "attention_corpus.inc"


def main() -> int:
    """Fuzzes, then keeps the fewest cases that reach as much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    chosen = parser.parse_args()
    program = str(chosen.build / "attention_fuzzer")
    with tempfile.TemporaryDirectory() as name:
        found, kept, failed = (Path(name) / part for part in ("found", "kept", "failed"))
        for folder in (found, kept, failed):
            folder.mkdir()
        for index, digits in enumerate(corpus()):
            (found / str(index)).write_bytes(bytes.fromhex(digits))
        seconds = f"-max_total_time={chosen.minutes * 60:.0f}"
        options = ["-max_len=24", "-timeout=120", "-print_final_stats=1"]
        done = subprocess.run([program, *options, seconds, f"-artifact_prefix={failed}/", found])
        for case in failed.iterdir():
            print(f"failed: {case.read_bytes().hex()}", file=sys.stderr)
        if done.returncode:
            return 1
        subprocess.run([program, "-merge=1", kept, found], check=True)
        cases = sorted({case.read_bytes()[:24].hex() for case in kept.iterdir()})
    CORPUS.write_text("".join(f'"{digits}",\n' for digits in cases))
    print(f"{len(cases)} cases in {CORPUS}")
    return 0


def corpus() -> list[str]:
    """The cases that are kept, in hexadecimal digits."""
    return [line.strip('",\n') for line in CORPUS.read_text().splitlines()]


if __name__ == "__main__":
    sys.exit(main())
