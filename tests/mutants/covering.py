"""Which tests run which lines, recorded once for each file of tests and kept in build/mutants."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import time
from dataclasses import astuple, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.mutants.warm import BUILD, ROOT, run_in_fork

# Under coverage torch.compile takes many times as long.
CHOSEN = ["-k", "not compil"]
SETTINGS = """[run]
source = {package}
data_file = {data}
parallel = true
# A process that a test starts knows the test by this variable.
context = ${{PYTEST_CURRENT_TEST-}}
"""


@dataclass(order=True)
class Duration:
    """Of a test: of the processor, with processes that have ended, and of the clock.

    A busy machine takes as much of the first as an idle one.
    """

    processor_seconds: float
    clock_seconds: float

    @staticmethod
    def so_far() -> Duration:
        return Duration(time.process_time() + sum(os.times()[2:4]), time.monotonic())

    def since(self, begun: Duration) -> Duration:
        processor = self.processor_seconds - begun.processor_seconds
        return Duration(processor, self.clock_seconds - begun.clock_seconds)


@dataclass
class Covering:
    """Of one file of tests: how long each that passes takes, and who runs which line."""

    durations: dict[str, Duration]
    lines: dict[int, set[str]]


class _Recorder:
    """A pytest plugin: names the running test to coverage and keeps who passed and how long."""

    def __init__(self, measured: Any) -> None:
        self.measured = measured
        self.begun = Duration.so_far()
        self.durations: dict[str, Duration] = {}
        self.failed: set[str] = set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.begun = Duration.so_far()
        self.measured.switch_context(nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if not report.passed:
            self.failed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self.durations[nodeid] = Duration.so_far().since(self.begun)
        self.measured.switch_context("")


def _record(file: str, data: Path, settings: Path) -> dict[str, Any]:
    os.environ["COVERAGE_PROCESS_START"] = str(settings)
    import coverage
    import pytest

    measured = coverage.Coverage(config_file=str(settings))
    measured.set_option("run:context", "")
    recorder = _Recorder(measured)
    with measured.collect():
        pytest.main(["-q", "-p", "no:cacheprovider", *CHOSEN, file], plugins=[recorder])
    measured.save()
    all_of_it = coverage.Coverage(data_file=str(data), config_file=False)
    all_of_it.combine(data_paths=[str(data.parent)])
    all_of_it.save()
    passed = {k: astuple(v) for k, v in recorder.durations.items() if k not in recorder.failed}
    data_of_all = all_of_it.get_data()
    run = [path for path in data_of_all.measured_files() if data_of_all.lines(path)]
    sources = [file, *map(str, _above(file)), *run]
    return {
        "durations": passed,
        "failed": sorted(recorder.failed),
        "digests": {name: digest(name) for name in sources},
    }


def _above(file: str) -> list[Path]:
    folders = [ROOT / parent for parent in Path(file).parents]
    return [folder / "conftest.py" for folder in folders if (folder / "conftest.py").exists()]


def _is_older(path: str, than: Path) -> bool:
    return Path(path).stat().st_mtime < than.stat().st_mtime


@cache
def digest(path: str) -> str:
    """Of a file's bytes; empty where there is no such file."""
    there = ROOT / path
    return hashlib.sha256(there.read_bytes()).hexdigest() if there.is_file() else ""


@cache
def covering(file: str, path: str) -> Covering:
    """Which tests of a file run which lines of the source at `path`.

    What was recorded holds while tests and source are what they were. A change elsewhere may send a
    test another way, which can hide a test from a mutant and never passes off a survivor as caught.
    """
    folder = BUILD / "covering" / re.sub(r"\W", "_", file)
    folder.mkdir(parents=True, exist_ok=True)
    data, known, settings = folder / "data", folder / "known.json", folder / "settings"
    source = str(ROOT / path)
    fresh = False
    if known.exists():
        record = json.loads(known.read_text())
        wanted = [file, *map(str, _above(file)), source]
        was = {source: digest(source)} if _is_older(source, known) else {}  # no test ran it
        was |= record["digests"]
        fresh = "durations" in record and all(was.get(name) == digest(name) for name in wanted)
    if not fresh:
        for old in folder.iterdir():
            old.unlink()
        print(f"recording which lines {file} runs", flush=True)
        settings.write_text(SETTINGS.format(package=ROOT / "python" / "aero", data=data))
        record = run_in_fork(lambda: _record(file, data, settings), folder / "log", 1800)
        if record is None:
            raise RuntimeError(f"the tests of {file} did not end: see {folder / 'log'}")
        if record["failed"]:
            print(f"{file}: left out, as they fail or skip: {', '.join(record['failed'])}")
        known.write_text(json.dumps(record))
    import coverage

    recorded = coverage.CoverageData(str(data))
    recorded.read()
    by_line = recorded.contexts_by_lineno(source)
    lines = {
        line: {re.sub(r" \((setup|call|teardown)\)$", "", name) for name in names}
        for line, names in by_line.items()
    }
    return Covering({k: Duration(*v) for k, v in record["durations"].items()}, lines)


@cache
def statements(path: str) -> list[tuple[int, int]]:
    """First and last line of every simple statement and of every head of a compound one."""
    spans = []
    for node in ast.walk(ast.parse((ROOT / path).read_text())):
        if isinstance(node, ast.stmt):
            body = getattr(node, "body", None)
            last = body[0].lineno - 1 if body else node.end_lineno
            spans.append((node.lineno, max(node.lineno, last or 0)))
    return spans


def tests_of(path: str, line: int, files: list[str]) -> dict[str, Duration]:
    """The tests that run a line of a file, with how long they take, the quickest first.

    A line that runs when its module is imported may show in any test of a file that imports it.
    """
    around = [(first, last) for first, last in statements(path) if first <= line <= last]
    first, last = max(around, default=(line, line))
    chosen: dict[str, Duration] = {}
    for file in files:
        found = covering(file, path)
        names = set().union(*(found.lines.get(n, set()) for n in range(first, last + 1)))
        if "" in names:
            names = set(found.durations)
        chosen |= {name: found.durations[name] for name in names if name in found.durations}
    return {name: chosen[name] for name in sorted(chosen, key=chosen.__getitem__)}
