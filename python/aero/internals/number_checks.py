"""What counts as a number where settings are checked."""

from __future__ import annotations

import operator
from numbers import Real
from typing import Any


def is_real(value: Any) -> bool:
    """True of a real number, NumPy's too, but of no truth value."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """Returns the integer that a value is, NumPy's too; None of a truth value and all else."""
    if isinstance(value, bool):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def plain(value: Any) -> Any:
    """A number of another library as int or float; all else as it is."""
    if isinstance(value, bool | str):
        return value
    if (integer := whole(value)) is not None:
        return integer
    return float(value) if isinstance(value, Real) else value
