"""The examples in the docstrings of `aero.train` and `aero.cli` run."""

import doctest
import importlib
import pkgutil

import pytest

import aero.cli
import aero.train

MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (aero.train, aero.cli)
    for module in pkgutil.iter_modules(package.__path__)
    if module.name != "__main__"
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_give_what_they_show(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_the_public_names_are_there():
    for name in aero.train.__all__:
        assert getattr(aero.train, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        aero.train.evaluat  # noqa: B018


def test_no_module_bears_the_name_of_an_exported_function():
    assert not set(aero.train.__all__) & {name.rsplit(".", 1)[1] for name in MODULES}
