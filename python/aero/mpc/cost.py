"""The cost of operations on secret values."""

from __future__ import annotations

from aero._core import Cost, Operation, Stack

__all__ = ["Cost", "FieldValue", "Operation", "Stack"]

FieldValue = bool | int | float | str
