"""The examples in docstrings of what needs no environment of its own."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "name",
    ["settings", "preparation", "prediction", "handshake", "control_channel", "delay_line"],
)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"aero.private.{name}"))
    assert found.attempted and not found.failed
