"""The examples in the docstrings of `aero.analysis` run."""

import doctest
import importlib
import pkgutil

import pytest

import aero.analysis as room

MODULES = ["aero.analysis", "aero.atomic_files"] + [
    found.name for found in pkgutil.walk_packages(room.__path__, "aero.analysis.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
