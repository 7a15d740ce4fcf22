"""The examples in the docstrings of networks, conversions and commands."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

MODULES = [
    module.name
    for package in ("models", "conversion", "cli")
    for module in pkgutil.iter_modules(
        importlib.import_module(f"aero.{package}").__path__, f"aero.{package}."
    )
    if not module.name.endswith("__main__")  # runs the command
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
