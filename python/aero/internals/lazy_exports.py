"""Public names that load on first use, each listed once: in the stub next to the package.

Importing a package is cheap, and editors and type checkers know every name with its type. Nothing
but the standard library: `import aero` has to work where only torch is installed, as on a GPU
machine that is lent for minutes and reaches no index. So `lazy_loader`, which does the same, stays
out.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package, from the `.pyi` next to its `.py`."""
    defined_in = _read_stub(Path(file).with_suffix(".pyi"))
    names = sorted(defined_in)

    def load(name: str) -> Any:
        if name not in defined_in:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = defined_in[name]
        if module == package:
            return importlib.import_module(f"{package}.{name}")
        return getattr(importlib.import_module(module), name)

    return load, lambda: names, names


def _read_stub(path: Path) -> Mapping[str, str]:
    """The stub's `from MODULE import NAME as NAME` as name -> module."""
    return {
        alias.name: str(statement.module)
        for statement in ast.parse(path.read_text()).body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
        if alias.asname == alias.name
    }
