"""Every public package and file behind it has an example; each pastes into an empty Python."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import inspect
import io
import pkgutil
import sys
import types
from pathlib import Path

import pytest

import aero
from aero import _core as core

PACKAGES = ["aero", *(f"aero.{n}" for n in aero.__all__ if inspect.ismodule(getattr(aero, n)))]
# Modules that import jax or spu, code that export copies, the command itself, native code.
JAX = ["elements", "forward", "in_process", "inference", "pieces", "spu_runtime", "tcp_parties"]
ELSEWHERE = (
    *(f"aero.private.compute.{name}" for name in JAX),
    "aero.private.parties.both_parties_worker",
    "aero.export.remote.",
    "aero.cli.__main__",
    "aero.libaero_ops",
)
MODULES = ["aero"] + [
    module.name
    for module in pkgutil.walk_packages(aero.__path__, "aero.")
    if not module.name.startswith(ELSEWHERE)
]


def files_behind(package: str) -> set[str]:
    """The modules of this library that define the names of a package."""
    module = importlib.import_module(package)
    homes = {getattr(getattr(module, name), "__module__", "") for name in module.__all__}
    return {home for home in homes if home.startswith("aero.") and home != "aero._core"}


@pytest.mark.parametrize("name", PACKAGES)
def test_a_public_package_begins_with_an_example(name: str) -> None:
    module = importlib.import_module(name)
    (documentation,) = doctest.DocTestFinder(recurse=False).find(module, name)
    assert documentation.examples


@pytest.mark.parametrize("name", PACKAGES)
def test_every_file_that_defines_something_public_has_an_example(name: str) -> None:
    for home in files_behind(name):
        assert ">>>" in inspect.getsource(sys.modules[home]), f"{home} has no example"


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run_in_an_empty_interpreter(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(importlib.import_module(name), globs={}).failed == 0


def test_the_native_examples_run_in_an_empty_interpreter() -> None:
    owners = [core, *(held for held in vars(core).values() if inspect.isclass(held))]
    examples = 0
    for owner in owners:
        for name, held in [("", owner), *inspect.getmembers(owner, inspect.isroutine)]:
            text = inspect.getdoc(held) or ""
            test = doctest.DocTestParser().get_doctest(text, {}, name, None, None)
            examples += len(test.examples)
            assert doctest.DocTestRunner().run(test).failed == 0, name
    assert examples > 10


def test_an_example_that_leans_on_its_module_fails() -> None:
    leaning = types.ModuleType("leaning", ">>> helper()\n1\n")
    leaning.helper = lambda: 1  # type: ignore[attr-defined]
    with contextlib.redirect_stdout(io.StringIO()):
        assert doctest.testmod(leaning).failed == 0
        assert doctest.testmod(leaning, globs={}).failed == 1
