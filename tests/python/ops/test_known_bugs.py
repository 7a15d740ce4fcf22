"""What attention got wrong elsewhere, ours gets right, and would be caught getting wrong."""

from __future__ import annotations

import pytest

from aero.ops import attention_entropy

from . import known_bugs
from .bug_checks import Bug

EACH = pytest.mark.parametrize("bug", known_bugs.BUGS, ids=lambda bug: bug.thread)


@EACH
def test_the_operator_has_no_known_fault(bug: Bug) -> None:
    bug.check(attention_entropy)


@EACH
def test_the_check_catches_the_fault_where_it_is_injected(bug: Bug) -> None:
    with pytest.raises(AssertionError):
        bug.check(bug.faulty)


def test_the_page_has_the_table_of_known_faults() -> None:
    written = known_bugs.PAGE.read_text("utf-8")
    assert known_bugs.page() == written, "python -m tests.python.ops.known_bugs"
