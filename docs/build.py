"""Builds the API reference from docstrings: `make docs` writes it to build/docs.

A page per public package, with everything that its `__all__` names, and with the classes of the
package that those return or hold, which nobody imports. Every warning is an error.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
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
    for module in modules[1:]:
        for name, found in returned_classes(module).items():
            vars(module)[name] = found
            module.__all__.append(name)
    return modules


def returned_classes(module: ModuleType) -> dict[str, type]:
    """Classes of a package that what it exports returns or holds, but that it does not export."""
    found: dict[str, type] = {}
    left = [getattr(module, name) for name in module.__all__]
    while left:
        here = left.pop()
        members = [here, *vars(here).values()] if inspect.isclass(here) else [here]
        hints = [hint for member in members for hint in hints_of(member)]
        while hints:
            hint = hints.pop()
            hints += typing.get_args(hint)
            home = getattr(hint, "__module__", "") if inspect.isclass(hint) else ""
            name = getattr(hint, "__name__", "")
            if (
                home.startswith(f"{module.__name__}.")
                and not name.startswith("_")
                and name not in {*module.__all__, *found}
            ):
                found[name] = hint
                left.append(hint)
    return found


def hints_of(member: object) -> list[object]:
    """What a function or property returns, or a class holds."""
    if isinstance(member, property | functools.cached_property):
        member = member.fget if isinstance(member, property) else member.func
    try:
        hints = typing.get_type_hints(member)
    except Exception:  # what is no class or function, or names what its module does not have
        return []
    return list(hints.values()) if inspect.isclass(member) else [hints.get("return")]


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
