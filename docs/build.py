"""Builds the API reference from docstrings: `make docs` writes it to build/docs.

A page per public package, with everything that its `__all__` names. Every warning is an error.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

import numpy.typing
import pdoc
import pdoc.render

Scalar = TypeVar("Scalar")


class ArrayLike:
    """What signatures show for numpy's type, which is written out over several lines."""


class NDArray(Generic[Scalar]):
    """Likewise."""


for readable in (ArrayLike, NDArray):  # before any module of aero takes numpy's
    readable.__module__ = "numpy.typing"
    setattr(numpy.typing, readable.__name__, readable)

import aero  # noqa: E402

OUTPUT = Path(__file__).parents[1] / "build" / "docs"


def public_modules() -> list[ModuleType]:
    """`aero` and its public packages, with the names that load on first use loaded.

    pdoc looks at what a module holds, not at what its `__getattr__` would give.
    """
    modules = [aero, *filter(inspect.ismodule, (getattr(aero, name) for name in aero.__all__))]
    for module in modules:
        for name in module.__all__:
            vars(module)[name] = getattr(module, name)
    return modules


def build(output: Path) -> None:
    """Writes the reference; raises at the first warning."""
    public_modules()
    pdoc.render.configure(docformat="google", math=True, footer_text=f"aero {aero.__version__}")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of a configuration's signature, transformers' own, which names what it does not import.
        foreign = r"Error parsing type annotation .* for aero\.(models\.)?AeroConfig\.__init__"
        warnings.filterwarnings("ignore", foreign)
        pdoc.pdoc("aero", output_directory=output)


if __name__ == "__main__":
    build(Path(sys.argv[1]) if len(sys.argv) > 1 else OUTPUT)
