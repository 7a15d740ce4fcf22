"""What a refusal must name, whatever its sentence: the argument, what it expected and what it got.

A table of a test file holds a row for each refusal: its call and these texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def assert_refused(
    call: Callable[[], Any], *named: object, error: type[BaseException] = ValueError
) -> None:
    """Checks that a call raises one line of `error` that holds every text of `named`."""
    with pytest.raises(error) as caught:
        call()
    assert_told(caught, *named)


def assert_told(error: pytest.ExceptionInfo[BaseException], *named: object) -> None:
    """Checks that what was raised is one line that holds every text of `named`."""
    said = str(error.value)
    missing = [str(text) for text in named if str(text) not in said]
    assert not missing, f"{said!r} names no {missing}"
    assert "\n" not in said, said
