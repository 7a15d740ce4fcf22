"""Proves the operators on a GPU and says what was not run.

    python3 tests/cuda/run.py [--budget 450] [--results build/cuda-results/tests.json]

Builds the package offline, runs the tests of this folder, then a few calls under compute-sanitizer.
Results are written one by one, so that a second call goes on where the first one ended. A test that
hangs or takes the device down counts as failed, and the others go on in a new process. The exit
status is 1 after a failure, 2 where time ran out before all was run, and 3 for both.

`--device cpu` runs what needs no GPU, on the installed package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
sys.path.insert(0, str(ROOT / "benchmarks" / "cuda"))

from gpu_run import (  # noqa: E402
    Deadline,
    Record,
    exit_status,
    in_words,
    prepared,
    run_until_ended,
)
from sanitizers import TOOLS, sanitized  # noqa: E402

#: Seconds that the tests leave to the sanitizers.
FOR_SANITIZERS = 130


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--budget", type=float, default=450, help="seconds, building included")
    parser.add_argument(
        "--results", type=Path, default=ROOT / "build" / "cuda-results" / "tests.json"
    )
    parser.add_argument("--every", type=int, default=1, help="only every n-th case of a test")
    parser.add_argument("--fresh", action="store_true", help="run again what was run before")
    parser.add_argument(
        "--stand-in", action="store_true", help="on the CPU: run the code of the GPU's tests too"
    )
    parser.add_argument("--only", default="", help="pytest's -k; no sanitizers then")
    parser.add_argument("--memcheck", action="store_true", help="five calls under it, no tests")
    return parser.parse_args()


def run_tests(chosen: argparse.Namespace, record: Record, deadline: Deadline) -> bool:
    """Runs pytest until it ends by itself, and says if it did: what hangs or crashes has failed."""
    reserve = FOR_SANITIZERS if chosen.device == "cuda" and not chosen.only else 0
    # On a machine with other packages, their pytest plugins are none of our business.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    command = [
        sys.executable, "-m", "pytest", str(FOLDER), "-q", "--no-header", "--tb=short",
        "-p", "no:cacheprovider", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml"),
        "-o", "addopts=--import-mode=importlib",
        f"--device={chosen.device}", f"--record={record.path}", f"--every={chosen.every}",
        f"--until={deadline.end - reserve}",
        *(["-k", chosen.only] if chosen.only else []),
        *(["--stand-in"] if chosen.stand_in else []),
    ]  # fmt: skip
    record.try_failures_again()
    return run_until_ended(command, record, lambda: deadline.left() - reserve)


def run_sanitizers(chosen: argparse.Namespace, record: Record, deadline: Deadline) -> None:
    """Runs a few calls under each tool of compute-sanitizer that starts here."""
    for tool in TOOLS:
        name = f"compute-sanitizer {tool}"
        if record.results.get(name, {}).get("outcome") == "passed":
            continue
        begun = time.time()
        result = sanitized(tool, chosen.device, deadline.left())
        record.add(name, {**result, "seconds": round(time.time() - begun, 1)})


def run_memcheck(chosen: argparse.Namespace, record: Record, deadline: Deadline) -> int:
    """Runs five calls under memcheck alone; returns the exit status."""
    result = sanitized("memcheck", chosen.device, deadline.left(), "few")
    record.add("compute-sanitizer memcheck, five calls", result)
    return exit_status([result], to_its_end=True)


def table(results: dict[str, Any]) -> str:
    """Counts by test, and what failed or was not run in words."""
    groups: dict[str, Counter[str]] = {}
    for name, result in results.items():
        group = name.partition("[")[0].rpartition("/")[2]
        groups.setdefault(group, Counter())[result["outcome"]] += 1
    columns = ("passed", "failed", "not run")
    width = max([len(group) for group in groups], default=0)
    lines = [f"{'':{width}}" + "".join(f"{column:>9}" for column in columns)]
    lines += [
        f"{group:{width}}" + "".join(f"{count[column] or '':>9}" for column in columns)
        for group, count in groups.items()
    ]
    total = sum(groups.values(), Counter())
    lines.append(f"{'all':{width}}" + "".join(f"{total[column]:>9}" for column in columns))
    for outcome in ("not run", "failed"):
        reasons: dict[str, list[str]] = {}
        for name, result in results.items():
            if result["outcome"] == outcome:
                reasons.setdefault(result["message"], []).append(name.rpartition("/")[2])
        lines += [
            f"{outcome}: {names[0]}{f' and {len(names) - 1} more' if names[1:] else ''}: {reason}"
            for reason, names in reasons.items()
        ]
    return "\n".join(lines)


def main() -> int:
    chosen = arguments()
    deadline = Deadline(chosen.budget)
    record = Record(chosen.results, prepared(chosen.device), fresh=chosen.fresh)
    record.end()
    if chosen.memcheck:
        status = run_memcheck(chosen, record, deadline)
    else:
        to_its_end = run_tests(chosen, record, deadline)
        if not chosen.only:
            run_sanitizers(chosen, record, deadline)
        status = exit_status(record.results.values(), to_its_end=to_its_end)
    print(f"\n{table(record.results)}\n{in_words(record.content['identity'])}\n{record.path}")
    return status


if __name__ == "__main__":
    sys.exit(main())
