"""Applies each edit of edits.yaml to a copy of the sources, builds, and runs its tests.

    make mutants ROOM=edits

Every edit must be caught. The copy is build/mutants/edits: without sanitizers, and of the kernels
only the plain set, which shares its source with the wider ones. An edit of a Python file needs no
copy: the hook puts it in its module's place.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
EDITS = Path(__file__).parent / "edits.yaml"
FOLDER = ROOT / "build" / "mutants" / "edits"
SOURCE, BUILD, RESULTS = FOLDER / "source", FOLDER / "build", FOLDER / "results.jsonl"
# For the hook: the module that is built in the copy, with the operator library beside it.
BUILT = f"aero._core|{BUILD / '_core'}{sysconfig.get_config_var('EXT_SUFFIX')}|"
COPIED = ["CMakeLists.txt", "kernels", "csrc", "tests/cpp"]
OPTIONS = {
    "CMAKE_BUILD_TYPE": "None", "CMAKE_CXX_FLAGS": "-O1", "AERO_TESTS": "ON", "AERO_CUDA": "OFF",
    "CMAKE_UNITY_BUILD": "OFF", "Python_EXECUTABLE": sys.executable,
    "CMAKE_MAKE_PROGRAM": str(Path(sys.executable).parent / "ninja"),
}  # fmt: skip
OTHER_SETS = re.compile(r"kernels/cpu/(avx2|avx512|avx512bf16|amx|neon|neonbf16)\.cpp")


@dataclass(frozen=True)
class Edit:
    """What is broken where: the text that stands there once, and what takes its place."""

    file: str
    before: str
    after: str

    def applied(self) -> str:
        """The file's text with the edit.

        Raises:
            ValueError: the text to replace does not stand there exactly once.
        """
        text = (ROOT / self.file).read_text()
        if text.count(self.before) != 1:
            found = text.count(self.before)
            raise ValueError(f"{self.file}: expected once, found {found} times: {self.before!r}")
        return text.replace(self.before, self.after)


def edits() -> list[Edit]:
    """Every edit of the list."""
    listed = yaml.safe_load(EDITS.read_text())
    return [Edit(file, *pair) for file, pairs in listed["edits"].items() for pair in pairs]


@cache
def tests_by_folder() -> dict[str, dict[str, Any]]:
    """Where a source's tests are: by the longest prefix of its path."""
    listed: dict[str, dict[str, Any]] = yaml.safe_load(EDITS.read_text())["tests"]
    return listed


def tests_of(edit: Edit) -> dict[str, Any]:
    """The C++ tests (`target`) of an edit, then what Python needs and its tests."""
    prefixes = [prefix for prefix in tests_by_folder() if edit.file.startswith(prefix)]
    return tests_by_folder()[max(prefixes, key=len)]


def _write(path: Path, text: str) -> None:
    # An unchanged file keeps its time, so that nothing of it is built again.
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def copied_text(file: str, text: str) -> str:
    """A file's text in the copy, where the wider instruction sets are empty tables."""
    if OTHER_SETS.fullmatch(file):
        table = re.findall(r"const Kernels k\w+", text)[0]
        header = '#include "kernels/cpu/kernel_table.h"'
        return f"{header}\nnamespace aero::kernels::cpu {{\n{table}{{}};\n}}\n"
    if file == "kernels/cpu/dispatch.cpp":
        return text.replace("#if defined(__x86_64__)", "#if 0")
    return text


def copy_sources() -> None:
    """Brings the copy to what the sources are now."""
    there = set()
    for name in COPIED:
        path = ROOT / name
        for source in [path] if path.is_file() else filter(Path.is_file, path.rglob("*")):
            file = str(source.relative_to(ROOT))
            there.add(SOURCE / file)
            _write(SOURCE / file, copied_text(file, source.read_text()))
    for path in filter(Path.is_file, SOURCE.rglob("*")):
        if path not in there:
            path.unlink()


def build(target: str, log: Path) -> bool:
    """Whether a target of the copy could be built."""
    with log.open("w") as out:
        if not (BUILD / "build.ninja").exists():
            options = [f"-D{name}={value}" for name, value in OPTIONS.items()]
            command = ["cmake", "-S", SOURCE, "-B", BUILD, "-G", "Ninja", *options]
            subprocess.run(command, check=True, stdout=out, stderr=out)
        command = ["cmake", "--build", BUILD, "--target", target, "--parallel", "1"]
        return subprocess.run(command, stdout=out, stderr=out).returncode == 0


def first_failure(command: list[Any], env: dict[str, str], pattern: str) -> str:
    """The first test that a command's output says has failed; empty where all passed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, env=os.environ | env, cwd=ROOT, timeout=900
        )
    except subprocess.TimeoutExpired:
        return "does not end"
    if done.returncode == 0:
        return ""
    found = re.search(pattern, done.stdout)
    return found.group(1) if found else f"ends with status {done.returncode}"


def run_tests(tests: dict[str, Any], mutant: str, log: Path) -> str:
    """The first test that fails in the copy as it stands; empty where all pass."""
    if "target" in tests:
        program = [BUILD / tests["target"], "--gtest_brief=1", "--gtest_fail_fast"]
        failed = first_failure(program, {}, r"\[  FAILED  \] (\S+)")
        if failed:
            return failed
    for target in tests.get("modules", []):
        if not build(target, log):
            raise RuntimeError(f"{target} is not built: see {log}")
    if "python" not in tests:
        return ""
    env = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent / "hook")}
    if mutant:
        env["AERO_MUTANT"] = mutant
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    return first_failure([*command, *tests["python"]], env, r"(?:FAILED|ERROR) (\S+)")


def _mutant_module(edit: Edit) -> str:
    """What the hook is to put in which module's place; writes an edited Python file."""
    if not edit.file.endswith(".py"):
        return BUILT
    path = FOLDER / "mutant.py"
    path.write_text(edit.applied())
    module = ".".join(Path(edit.file).relative_to("python").with_suffix("").parts)
    return f"{module}|{path}|{ROOT / edit.file}"


def caught_by(edit: Edit, tests: dict[str, Any], log: Path) -> str:
    """The test that fails with an edit; empty where none does.

    Raises:
        RuntimeError: the edit does not compile.
    """
    if edit.file.endswith(".py"):
        return run_tests(tests, _mutant_module(edit), log)
    path = SOURCE / edit.file
    text = path.read_text()
    path.write_text(copied_text(edit.file, edit.applied()))
    try:
        if "target" in tests and not build(tests["target"], log):
            raise RuntimeError(f"{edit} does not compile: see {log}")
        return run_tests(tests, _mutant_module(edit), log)
    finally:
        path.write_text(text)


def run(only: str) -> tuple[int, int]:
    """Runs the edits of the files that begin with `only`; how many there are and are caught."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    lock = (FOLDER / "lock").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # there is one copy
    copy_sources()
    log = FOLDER / "log"
    known = set()
    if RESULTS.exists():
        records = map(json.loads, RESULTS.read_text().splitlines())
        known = {record["key"] for record in records if record["by"]}
    sound: set[str] = set()
    chosen = [edit for edit in edits() if edit.file.startswith(only)]
    survivors = 0
    for number, edit in enumerate(chosen, 1):
        key = hashlib.sha256(f"{edit.file}\n{edit.applied()}".encode()).hexdigest()[:16]
        if key in known:
            continue
        tests = tests_of(edit)
        if str(tests) not in sound:
            if "target" in tests and not build(tests["target"], log):
                raise RuntimeError(f"{tests['target']} is not built: see {log}")
            if failed := run_tests(tests, BUILT if "modules" in tests else "", log):
                raise RuntimeError(f"fails without an edit: {failed}")
            sound.add(str(tests))
        by = caught_by(edit, tests, log)
        with RESULTS.open("a") as out:
            out.write(json.dumps({"key": key, "by": by, **edit.__dict__}) + "\n")
        print(f"[{number}/{len(chosen)}] {'caught' if by else 'SURVIVED'} {edit.file}  ({by})")
        if not by:
            survivors += 1
            print(f"    - {edit.before}\n    + {edit.after}", flush=True)
    return len(chosen), len(chosen) - survivors


if __name__ == "__main__":
    drawn, caught = run(sys.argv[1] if len(sys.argv) > 1 else "")
    print(f"{caught} of {drawn} edits are caught")
    sys.exit(caught != drawn)
