"""What held of the study as a room of the package holds of it here."""

from __future__ import annotations

import ast
import dataclasses
import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from tests.python.house import import_circles, imports_of
from tests.python.test_layering import PARSERS

STUDY = Path(__file__).parents[1]
ROOT = STUDY.parents[1]
FILES = sorted(path for path in STUDY.glob("*.py") if path.name != "__main__.py")
MODULES = [f"benchmarks.paper.{path.stem}".removesuffix(".__init__") for path in FILES]


def nodes(path: Path) -> list[ast.AST]:
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert import_circles(STUDY, "benchmarks.paper") == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_it_imports_neither_tests_nor_the_rest_of_the_benchmarks(path: Path) -> None:
    for name, _ in imports_of(path, STUDY, "benchmarks.paper"):
        assert name.split(".")[0] != "tests", name
        assert not name.startswith("benchmarks") or name.startswith("benchmarks.paper."), name
        assert not name.startswith("benchmarks.paper.experiments"), name


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_files_of_strangers_go_through_the_one_reader_and_nothing_prints(path: Path) -> None:
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            assert node.attr not in PARSERS.get(node.value.id, ()), ast.unparse(node)
        if isinstance(node, ast.ImportFrom):
            found = {alias.name for alias in node.names} & PARSERS.get(node.module or "", set())
            assert not found, found
        assert not (isinstance(node, ast.Name) and node.id == "print"), f"line {node.lineno}"


def test_costs_need_no_torch() -> None:
    program = (
        "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None\n"
        "from benchmarks.paper.cost_tables import reproduce_costs\n"
        "print(repr(reproduce_costs()))"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "<CostTables of 27 rows on spu-2024>\n", done.stderr


def test_dataclasses_are_frozen_but_for_the_jobs_of_a_queue() -> None:
    held = [held for name in MODULES for held in vars(importlib.import_module(name)).values()]
    ours = {
        each
        for each in held
        if dataclasses.is_dataclass(each) and isinstance(each, type) and each.__module__ in MODULES
    }
    changing = {each.__name__ for each in ours if not each.__dataclass_params__.frozen}
    assert len(ours) > 10 and changing == {"SlurmJobs"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run_in_an_empty_interpreter(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), globs={}).failed == 0


def test_the_wheel_holds_the_package_alone() -> None:
    settings = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'wheel.packages = ["python/aero"]' in settings
    named = [path.name for path in (ROOT / "python" / "aero").rglob("*reproduction*")]
    assert named == []
