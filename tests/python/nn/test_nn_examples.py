"""The examples in the docstrings of modules, models and conversions run."""

import doctest
import importlib
import pkgutil

import pytest

import aero.conversion
import aero.models
import aero.nn

MODULES = [
    module.name
    for package in (aero.nn, aero.models, aero.conversion)
    for module in pkgutil.iter_modules(package.__path__, package.__name__ + ".")
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0
