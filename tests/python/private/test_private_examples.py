"""The examples in docstrings of what needs no environment of its own."""

import doctest
import importlib

import pytest

# Those that import jax or spu have none.
NAMES = [
    "comparison", "control_channel", "delay_line", "environment", "handshake", "job",
    "marked_document", "measured_grid", "measured_table", "measurement", "parties", "party",
    "party_errors", "preparation", "prediction", "refills", "run_reports", "settings",
    "supervision", "two_processes",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_examples_run(name):
    found = doctest.testmod(importlib.import_module(f"aero.private.{name}"))
    assert found.attempted and not found.failed
