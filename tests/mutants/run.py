"""Changes aero in many small ways, runs the tests of each change, and lists the ones not caught.

    make mutants ROOM=ops SAMPLE=60 SEED=1

draws 60 places of `aero.ops` and one change of each before it runs anything. Without SAMPLE all
places have their turn. What was caught is kept in build/mutants, so that a run goes on where it
ended; what survived runs again, as its tests may have been sharpened.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import time
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from tests.mutants import edits, warm
from tests.mutants.covering import Duration, tests_of
from tests.mutants.sites import ROOT, Mutant, sample

KNOWN = Path(__file__).parent / "survivors.yaml"
RESULTS = warm.BUILD / "results.jsonl"
# The folders and files of tests that may catch a folder's mutants.
FOR_ALL = ["test_frozen.py", "test_signatures.py"]
TESTS_OF_ROOM = {
    "ops": ["ops"],
    "nn": ["nn", "conversion"],
    "models": ["models", "conversion"],
    "mpc": ["mpc"],
    "train": ["train", "test_cli_train.py", "test_cli_errors.py", "test_settings_documented.py"],
    "conversion": ["conversion"],
}
# Nothing but torch.compile, which covering.py leaves out.
WITHOUT_TESTS = {"test_compile.py"}
# A survivor has run this much of the tests that run its line, the quickest first; of the processor.
FIRST_SECONDS, ALL_SECONDS = 5.0, 40.0


class _FirstFailure:
    """A pytest plugin that keeps the name of the test that failed."""

    name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed and not self.name:
            self.name = report.nodeid


def _run_tests(mutant: Mutant | None, file: Path, names: list[str]) -> list[Any]:
    """Exit status of pytest and the first test that failed; runs in a fork."""
    import pytest
    import sitecustomize

    if mutant is not None:
        package = (ROOT / mutant.path).relative_to(ROOT / "python").with_suffix("")
        module = ".".join(package.parts).removesuffix(".__init__")
        os.environ["AERO_MUTANT"] = f"{module}|{file}|{ROOT / mutant.path}"
        sitecustomize.install(os.environ["AERO_MUTANT"])
    failure = _FirstFailure()
    status = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *names], plugins=[failure])
    return [int(status), failure.name]


def _verdict(mutant: Mutant, chosen: dict[str, Duration]) -> tuple[str, str]:
    """caught, survived or undecided, and the test that caught it or why."""
    order = list(chosen)
    if not order:
        return "survived", "no test runs it"
    file = warm.BUILD / f"{os.getpid()}.py"
    log = warm.BUILD / f"{os.getpid()}.log"
    file.write_text(mutant.source())
    done, spent, first = 0, 0.0, True
    while done < len(order) and spent < ALL_SECONDS:
        last, batch = done, 0.0
        while last < len(order) and (last == done or batch < FIRST_SECONDS or not first):
            batch += chosen[order[last]].processor_seconds
            last += 1
            if spent + batch > ALL_SECONDS:
                break
        names = order[done:last]
        limit = 90 + 10 * sum(chosen[name].clock_seconds for name in names)
        run = partial(_run_tests, mutant, file, names)
        answer = warm.run_in_fork(run, log, limit)
        status, failed = answer or (-1, "does not end, or ends the process")
        if status == 1:
            return "caught", failed
        if status != 0:  # because of the mutant, or of a busy machine?
            begun = time.monotonic()
            sound = warm.run_in_fork(partial(_run_tests, None, file, names), log, limit)
            if sound is None or sound[0] != 0:
                return "undecided", "without the mutant these do not pass in time either"
            limit += 10 * (time.monotonic() - begun)
            answer = warm.run_in_fork(run, log, limit)
            status, failed = answer or (-1, "does not end, or ends the process")
            if status != 0:
                return "caught", failed or "cannot be imported"
        done, spent, first = last, spent + batch, False
    return "survived", f"{done} of {len(order)} tests that run it"


def wilson(caught: int, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (Wilson 1927, equation 5)."""
    if total == 0:
        return 0.0, 1.0
    z, share = 1.96, caught / total
    middle = share + z * z / (2 * total)
    spread = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return (middle - spread) / (1 + z * z / total), (middle + spread) / (1 + z * z / total)


def row(what: str, drawn: int, caught: int, equivalent: int) -> str:
    """A row of the table: what was drawn and what was caught of what is not equivalent."""
    real = drawn - equivalent
    low, high = wilson(caught, real)
    share = f"{100 * caught / max(real, 1):.1f} % ({100 * low:.1f} to {100 * high:.1f})"
    return f"| {what} | {drawn} | {caught} | {equivalent} | {real - caught} | {share} |"


def _test_files(room: str) -> list[str]:
    found: list[Path] = []
    for place in [*TESTS_OF_ROOM[room], *FOR_ALL]:
        path = ROOT / "tests" / "python" / place
        files = [path] if path.is_file() else sorted(path.glob("test_*.py"))
        found += [file for file in files if file.name not in WITHOUT_TESTS]
    return [str(path.relative_to(ROOT)) for path in found]


def _key(mutant: Mutant) -> str:
    text = f"{mutant.path}\n{(ROOT / mutant.path).read_text()}\n{mutant.source()}"
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_room(room: str, size: int | None, seed: int) -> str:
    """Runs a room's mutants and prints the survivors; the table's row."""
    paths = [
        str(path.relative_to(ROOT)) for path in sorted((ROOT / "python/aero" / room).glob("*.py"))
    ]
    drawn = sample(paths, size, seed)
    files = _test_files(room)
    known = {
        (entry["file"], entry["before"], entry["after"]): entry
        for entry in yaml.safe_load(KNOWN.read_text()) or []
    }
    caught_before = set()
    if RESULTS.exists():
        records = map(json.loads, RESULTS.read_text().splitlines())
        caught_before = {r["key"] for r in records if r["verdict"] == "caught"}
    caught = equivalent = undecided = 0
    for number, mutant in enumerate(drawn, 1):
        key = _key(mutant)
        if key in caught_before:
            caught += 1
            continue
        before, after = mutant.changed_lines()
        entry = known.get((mutant.path, before, after))
        if entry is not None and entry["equivalent"]:
            equivalent += 1
            continue
        verdict, by = _verdict(mutant, tests_of(mutant.path, mutant.position[0], files))
        caught += verdict == "caught"
        undecided += verdict == "undecided"
        record = {"key": key, "room": room, "path": mutant.path, "line": mutant.position[0]}
        record |= {"operator": mutant.operator, "before": before, "after": after}
        with RESULTS.open("a") as out:
            out.write(json.dumps(record | {"verdict": verdict, "by": by}) + "\n")
        print(f"[{number}/{len(drawn)}] {verdict} {mutant.path}:{mutant.position[0]}  ({by})")
        if verdict == "survived":
            print(f"    - {before}\n    + {after}", flush=True)
    return row(f"{room}, seed {seed}", len(drawn) - undecided, caught, equivalent)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--room", choices=[*TESTS_OF_ROOM, "edits"], action="append")
    parser.add_argument("--sample", type=int, help="places to draw of each room; all without it")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    os.chdir(ROOT)
    rooms = options.room or [*TESTS_OF_ROOM, "edits"]
    rows = []
    warm.BUILD.mkdir(parents=True, exist_ok=True)
    for room in rooms:
        if room == "edits":
            drawn, caught = edits.run("")
            rows.append(row("edits, the whole list", drawn, caught, 0))
        else:
            warm.warm_up(room)
            rows.append(run_room(room, options.sample, options.seed))
    print("\n| room | drawn | caught | equivalent | survived | caught of the rest |")
    print("|---|---|---|---|---|---|", *rows, sep="\n")


if __name__ == "__main__":
    main()
