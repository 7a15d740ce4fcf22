"""The lists that `make mutants` works from fit the sources as they are now."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def _load(name: str) -> ModuleType:
    path = ROOT / "tests" / "mutants" / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"mutants_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses looks for the module's names
    spec.loader.exec_module(module)
    return module


edits, meaning = _load("edits"), _load("meaning").meaning
EDITS = edits.edits()
SURVIVORS = yaml.safe_load((ROOT / "tests" / "mutants" / "survivors.yaml").read_text())


def test_words_of_errors_and_annotations_make_no_mutant() -> None:
    def of(limit: int, word: str, kind: str) -> str:
        return f"def f(x: {kind}):\n if x > {limit}:\n  raise ValueError(f'{word} {{x}}')\n"

    same = {meaning(of(1, *words)) for words in (("got", "int"), ("took", "int"), ("got", "str"))}
    assert len(same) == 1
    assert meaning(of(2, "got", "int")) not in same


@pytest.mark.parametrize("file", sorted({edit.file for edit in EDITS}))
def test_every_edit_still_changes_its_file_in_one_place(file: str) -> None:
    of_file = [edit for edit in EDITS if edit.file == file]
    for edit in of_file:
        assert edit.applied() != (ROOT / file).read_text(), edit
    assert len({edit.applied() for edit in of_file}) == len(of_file)


def test_every_edited_file_has_tests_that_are_there() -> None:
    for edit in EDITS:
        tests = edits.tests_of(edit)
        assert tests.get("target") or tests["python"]
        for file in tests.get("python", []):
            assert (ROOT / file).is_file(), file


def test_every_survivor_is_still_a_line_of_its_file_and_has_a_reason() -> None:
    for entry in SURVIVORS:
        code = (ROOT / entry["file"]).read_text().split()
        assert " ".join(entry["before"].split()) in " ".join(code), entry
        assert entry["after"] != entry["before"], entry
        assert len(entry["reason"].split()) > 2, entry
