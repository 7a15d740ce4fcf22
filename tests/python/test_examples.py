"""The examples in docstrings: every public package and every file behind it has one; all run."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import sys

import pytest

import aero

PACKAGES = ["aero", *(f"aero.{n}" for n in aero.__all__ if inspect.ismodule(getattr(aero, n)))]
# What runs in environments of its own, what runs the command when it is imported, native code.
ELSEWHERE = ("aero.private.", "aero.export.remote.", "aero.cli.__main__", "aero.libaero_ops")
MODULES = ["aero"] + [
    module.name
    for module in pkgutil.walk_packages(aero.__path__, "aero.")
    if not module.name.startswith(ELSEWHERE)
]


def files_behind(package: str) -> set[str]:
    """The modules of this library that define what a package exports."""
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
def test_examples_in_docstrings_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
