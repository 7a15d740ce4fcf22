"""Attacks the package for as long as it is told, and goes on where the last attack ended.

    python tests/fuzz/run.py --minutes 30
    python tests/fuzz/run.py --replay operators:123456
    python tests/fuzz/run.py --table

An attack is a module with `attack(seed) -> int`: it draws a case from the seed alone, tries it,
raises where something is wrong, and returns how much it tried. Each attack runs in a process of its
own. A case that crashes or hangs that process has failed, and the next case gets a new process.
Every failure is printed with its seed. What was tried and what failed is kept in `build/fuzz`.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import importlib
import json
import mmap
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
#: In the place of a seed while a worker imports what it needs, and the seconds that it may take.
STARTING, LONGEST_START = 2**63 - 1, 600.0


@dataclasses.dataclass(frozen=True)
class Attack:
    module: str
    share: float = 0.0  # of the time of a run that names no attack
    limit: float = 120.0  # seconds that one case may take, on a busy machine
    first: int = 0  # the first seed
    unit: str = "cases"


ATTACKS = {
    "operators": Attack("operator_calls", 0.2, unit="calls"),
    "variants": Attack("variant_calls", 0.1, unit="calls"),
    "transforms": Attack("transformed_calls", 0.1, unit="calls"),
    "files": Attack("strange_files", 0.25, unit="files"),
    "command_lines": Attack("command_lines", 0.1, unit="command lines"),
    "kills": Attack("kills", 0.25, unit="kills"),
    # `make fuzz-sanitized`: the same attacks from other seeds, on a library built for it.
    "sanitized_operators": Attack("operator_calls", first=10**9, unit="calls"),
    "sanitized_variants": Attack("variant_calls", first=10**9, unit="calls"),
}


class Record:
    """What one attack has tried: a line of JSON after each second or failure."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.attack = ATTACKS.get(name, Attack(name))
        folder.mkdir(parents=True, exist_ok=True)
        self.path, self.errors = folder / f"{name}.jsonl", folder / f"{name}.stderr"
        # The seed at work, where a process that dies in the middle of it leaves it.
        with (folder / f"{name}.seed").open("a+b") as file:
            file.truncate(8)
            self.seed = mmap.mmap(file.fileno(), 8)

    def lines(self) -> Iterator[dict[str, Any]]:
        if self.path.exists():
            for line in self.path.read_text(encoding="utf-8").splitlines():
                yield json.loads(line)

    def add(self, **line: Any) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def next_seed(self) -> int:
        return max(
            (line["next"] for line in self.lines() if "next" in line), default=self.attack.first
        )

    def failing(self) -> list[int]:
        """Seeds that failed, and did so again when they were last tried."""
        state: dict[int, bool] = {}
        for line in self.lines():
            if "seed" in line:
                state[line["seed"]] = "failed" in line
        return [seed for seed, failed in state.items() if failed]


def commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip()


# --- the process that tries -----------------------------------------------------------------------


def work(record: Record, seeds: Iterator[int] | range, seconds: float, code: str) -> None:
    """Tries seed after seed until time is up."""
    try_one = importlib.import_module(record.attack.module).attack
    begun, parent = time.monotonic(), os.getppid()
    noted = begun
    cases = tried = 0
    for seed in seeds:
        record.seed[:] = seed.to_bytes(8, "little")
        try:
            tried += try_one(seed)
        except Exception:
            record.add(seed=seed, failed=traceback.format_exc()[-6000:], commit=code)
        cases += 1
        now = time.monotonic()
        if now - noted >= 1 or now - begun >= seconds or seed == seeds[-1]:
            record.add(next=seed + 1, cases=cases, tried=tried, seconds=now - noted, commit=code)
            cases, tried, noted = 0, 0, now
        if now - begun >= seconds or os.getppid() != parent:
            return


# --- the process that watches ---------------------------------------------------------------------


def watch(record: Record, state: Path, first: int, seconds: float, last: int, limit: float) -> int:
    """Starts workers until time is up or all cases are done; returns the seed after the last."""
    end = time.monotonic() + seconds
    while first < last and (left := end - time.monotonic()) > 0:
        record.seed[:] = STARTING.to_bytes(8, "little")
        command = [
            sys.executable, *["-S"] * sys.flags.no_site, __file__, "--state", str(state),
            "--work", record.name, str(first), str(last), str(left),
        ]  # fmt: skip
        with record.errors.open("wb") as errors:
            worker = subprocess.Popen(command, stdout=errors, stderr=errors)
        try:
            ending = wait_for(worker, record, limit)
        finally:
            worker.kill()
            worker.wait()
        if ending is None:
            return record.next_seed()
        stopped_at = int.from_bytes(record.seed[:], "little")
        report = record.errors.read_text(encoding="utf-8", errors="replace")
        if stopped_at == STARTING:
            sys.exit(f"fuzz: {record.name} cannot begin, {ending}: {report[-3000:]}")
        record.add(seed=stopped_at, failed=f"{report[-6000:]}\n{ending}", commit=commit())
        # What those before it tried in the last second is not known, and not counted.
        cases = stopped_at + 1 - record.next_seed()
        record.add(next=stopped_at + 1, cases=cases, tried=0, seconds=0, commit=commit())
        first = stopped_at + 1
    return first


def wait_for(worker: subprocess.Popen[bytes], record: Record, limit: float) -> str | None:
    """How a worker failed, None where it ended as it should."""
    seed, since = b"", time.monotonic()
    while True:
        try:
            status = worker.wait(0.2)
            return None if status == 0 else f"the process ended with status {status}"
        except subprocess.TimeoutExpired:
            pass
        if record.seed[:] != seed:
            seed, since = record.seed[:], time.monotonic()
        allowed = LONGEST_START if int.from_bytes(seed, "little") == STARTING else limit
        if time.monotonic() - since > allowed:
            return f"no end after {allowed:g} s"


def run_attack(name: str, state: Path, seconds: float, cases: int, limit: float | None) -> bool:
    """Attacks, tells of it, and returns whether nothing failed."""
    record = Record(state, name)
    limit = record.attack.limit if limit is None else limit
    with (state / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            sys.exit(f"fuzz: {name} is being run by another process")
        begun, known = time.monotonic(), len(list(record.lines()))
        first = record.next_seed()
        after = watch(record, state, first, seconds, first + cases, limit)
        lines = list(record.lines())[known:]
    failed = [line for line in lines if "failed" in line]
    for line in failed:
        print(f"failed: {name}:{line['seed']}: {line['failed'].strip().splitlines()[-1][:300]}")
    tried = sum(line.get("tried", 0) for line in lines)
    print(
        f"{name}: seeds {first} to {after - 1}, {tried:,} {record.attack.unit} tried, "
        f"{len(failed)} failed, {time.monotonic() - begun:.0f} s",
        flush=True,
    )
    return not failed


def replay(state: Path, name: str, seed: int) -> None:
    """Tries one seed in this process and shows where it fails."""
    record = Record(state, name)
    importlib.import_module(record.attack.module).attack(seed)
    if seed in record.failing():
        record.add(seed=seed, commit=commit())
    print(f"{name}:{seed} passes")


def table(state: Path) -> str:
    """What was tried in all, and what failed, as Markdown."""
    rows = ["| attack | cases | tried | failed | of these mended | hours |",
            "| --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, attack in ATTACKS.items():
        record = Record(state, name)
        lines = list(record.lines())
        total = {
            key: sum(line.get(key, 0) for line in lines) for key in ("cases", "tried", "seconds")
        }
        failed = len({line["seed"] for line in lines if "failed" in line})
        mended = failed - len(record.failing())
        rows.append(
            f"| {name} | {total['cases']:,} | {total['tried']:,} {attack.unit} | {failed} "
            f"| {mended} | {total['seconds'] / 3600:.2f} |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--attack", action="append", help="only these, in equal shares of the time")
    parser.add_argument("--cases", type=int, default=10**9, help="at most so many of each attack")
    parser.add_argument("--limit", type=float, help="seconds that one case may take")
    parser.add_argument("--replay", metavar="ATTACK:SEED", action="append")
    parser.add_argument("--table", action="store_true", help="print what was tried in all")
    parser.add_argument("--state", type=Path, default=ROOT / "build" / "fuzz")
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.work:
        name, first, last, seconds = chosen.work
        work(Record(chosen.state, name), range(int(first), int(last)), float(seconds), commit())
        return 0
    if chosen.table:
        print(table(chosen.state))
        return 0
    if chosen.replay:
        seeds = (one.split(":") for one in chosen.replay)
        for name, seed in seeds:
            replay(chosen.state, name, int(seed))
        return 0
    shares = {name: attack.share for name, attack in ATTACKS.items() if attack.share}
    if chosen.attack:
        shares = dict.fromkeys(chosen.attack, 1 / len(chosen.attack))
    passed = [
        run_attack(name, chosen.state, 60 * share * chosen.minutes, chosen.cases, chosen.limit)
        for name, share in shares.items()
    ]
    return not all(passed)


if __name__ == "__main__":
    sys.exit(main())
