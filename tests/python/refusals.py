"""What a refusal must name, whatever its sentence: the argument, what it expected and what it got.

A table of a test file holds a row for each refusal: its call and these texts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def assert_refused(
    call: Callable[[], Any], *named: str, error: type[BaseException] = ValueError
) -> None:
    """Checks that a call raises one line of `error` that holds every text of `named`."""
    with pytest.raises(error) as caught:
        call()
    said = str(caught.value)
    missing = [text for text in named if text not in said]
    assert not missing, f"{said!r} names no {missing}"
    assert "\n" not in said, said
