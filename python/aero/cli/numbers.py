"""Bounds of the numbers on a command line, as callbacks of their options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer

from aero.cli.errors import one_line_errors
from aero.train.bounds import Bounds

__all__ = ["SEED", "decimal", "whole"]


def whole(least: int, most: int) -> Callable[..., Any]:
    """Returns a callback for whole numbers from one to another; others end in one line."""
    return _checks(Bounds(least, most))


def decimal(least: float, most: float, *, above: bool = False) -> Callable[..., Any]:
    """Returns a callback for numbers from one, or above it, to another; others end in one line."""
    return _checks(Bounds(least, most, above=above))


def _checks(bounds: Bounds) -> Callable[..., Any]:
    def check(param: typer.CallbackParam, value: Any) -> Any:
        with one_line_errors():
            for number in value if isinstance(value, list | tuple) else [value]:
                if number is not None:
                    bounds.check(param.opts[0], number)
        return value

    check.__dict__["bounds"] = bounds
    return check


# The seeds of NumPy's generators.
SEED = whole(0, 2**32 - 1)
