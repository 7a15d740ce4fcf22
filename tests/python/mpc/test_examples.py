"""The examples in the docstrings of the cost model."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

from aero import mpc

MODULES = ["aero.mpc", *(f"aero.mpc.{one.name}" for one in pkgutil.iter_modules(mpc.__path__))]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name: str) -> None:
    assert doctest.testmod(importlib.import_module(name)).failed == 0
