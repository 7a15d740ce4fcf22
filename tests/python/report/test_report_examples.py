"""The examples in the docstrings of `aero.report` run."""

import doctest
import importlib
import pkgutil

import pytest

import aero.report as room

MODULES = ["aero.report"] + [
    found.name for found in pkgutil.walk_packages(room.__path__, "aero.report.")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    assert doctest.testmod(importlib.import_module(name)).failed == 0
