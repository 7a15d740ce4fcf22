"""The examples in docstrings of what needs no environment of its own."""

import doctest
import importlib

import pytest

# Those that import jax or spu have none.
NAMES = [
    "comparison", "environment", "handshake", "job", "links.channel", "links.delay_line",
    "links.keys", "serving",
    "marked_document", "measured_grid", "measured_table", "measurement", "parties", "party",
    "party_errors", "preparation", "prediction", "refills", "run_reports", "settings",
    "supervision", "temporary", "two_processes",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"aero.private.{name}"))
    assert found.attempted and not found.failed
