"""The cost of operations on secret values."""

from __future__ import annotations

FieldValue = bool | int | float | str
