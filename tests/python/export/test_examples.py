"""The examples in the docstrings of `aero.export` run."""

import doctest
import importlib
import pkgutil

import pytest

import aero.export

MODULES = [module.name for module in pkgutil.iter_modules(aero.export.__path__, "aero.export.")]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_names_are_there():
    for name in aero.export.__all__:
        assert getattr(aero.export, name).__name__ == name
