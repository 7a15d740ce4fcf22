"""Every name of `aero.train` is there, although it loads on first use."""

import pkgutil

import pytest

import aero.train


def test_the_public_names_are_there():
    for name in aero.train.__all__:
        assert getattr(aero.train, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'evaluat'"):
        aero.train.evaluat  # noqa: B018


def test_no_module_bears_the_name_of_an_exported_function():
    modules = {module.name for module in pkgutil.iter_modules(aero.train.__path__)}
    assert not set(aero.train.__all__) & modules
