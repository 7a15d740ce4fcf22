"""The examples in the docstrings run and show what is written there."""

from __future__ import annotations

import doctest

import pytest

from aero import ops


@pytest.mark.parametrize("operator", ops.__all__)
def test_the_docstrings_example_is_true(operator: str) -> None:
    function = getattr(ops, operator)
    (example,) = doctest.DocTestFinder().find(function, operator, globs={operator: function})
    assert example.examples
    report: list[str] = []
    results = doctest.DocTestRunner().run(example, out=report.append)
    assert results.failed == 0, "".join(report)
