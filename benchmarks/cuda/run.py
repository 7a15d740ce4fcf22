"""Times attention with entropy on a GPU against everything that comes close to it.

    python3 benchmarks/cuda/run.py [--budget 450] [--results build/cuda-results/benchmark.json]

Builds the package offline, measures until the budget ends, prints tables and leaves one JSON; a
second call goes on where the first one ended. Causal, 12 heads, D = 64 for T = 128 .. 4096 and
D = 128 for T = 512 .. 4096. The exit status is that of tests/cuda/run.py.

`--device cpu --tiny` runs all of the code on the installed package; its numbers say nothing.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from gpu_run import (
    ROOT,
    Deadline,
    Record,
    exit_status,
    in_words,
    prepared,
    run_until_ended,
)

#: Seconds that a measurement in progress may take beyond the budget before it is ended.
LAST = 15


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=450, help="seconds, building included")
    folder = ROOT / "build" / "cuda-results"
    parser.add_argument("--results", type=Path, default=folder / "benchmark.json")
    parser.add_argument("--fresh", action="store_true", help="measure again what was measured")
    parser.add_argument("--tiny", action="store_true", help="sizes that say nothing")
    parser.add_argument(
        "--only", default="", help="regular expression, as attention or step: how names begin"
    )
    chosen = parser.parse_args()
    deadline = Deadline(chosen.budget)
    found = prepared(chosen.device)
    from report import report  # needs the package, which may just have been built

    record = Record(chosen.results, found, fresh=chosen.fresh)
    record.end()
    command = [sys.executable, str(Path(__file__).with_name("measure.py"))]
    command += [f"--record={record.path}", f"--device={chosen.device}"]
    command += [f"--until={deadline.end - LAST}", f"--only={chosen.only}"]
    command += ["--tiny"] if chosen.tiny else []
    to_its_end = run_until_ended(command, record, lambda: deadline.left() - LAST)
    print(report(record.results, f"`python3 benchmarks/cuda/run.py` on {in_words(found)}"))
    print(f"\n{record.path}")
    if not record.results:
        print("nothing was measured: there was no time left, or measure.py did not start")
    asked = [result for name, result in record.results.items() if re.match(chosen.only, name)]
    return exit_status(asked, to_its_end=to_its_end)


if __name__ == "__main__":
    sys.exit(main())
