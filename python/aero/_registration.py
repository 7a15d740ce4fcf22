"""Makes `import aero` enough for `transformers`, in either order and at no cost without it.

``AutoModelForCausalLM.from_pretrained(..., attn_implementation="aero")`` needs the names that
importing `aero.models` registers, but `import aero` on its own must stay free of torch. So
`aero.models` is imported as soon as both packages are.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_with_transformers"]


def register_with_transformers() -> None:
    """Imports `aero.models` now if `transformers` is imported, else right after it is."""
    if sys.modules.get("transformers") is not None:
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    try:
        importlib.import_module("aero.models")
    except ImportError as error:
        # Neither package may keep the other from being imported.
        warnings.warn(f"aero is not known to transformers: {error}", stacklevel=3)


class _Finder(MetaPathFinder):
    """Finds `transformers` where Python would, with a loader that registers afterwards."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "transformers":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _RegisteringLoader(spec.loader)
                return spec
        return None


class _RegisteringLoader(Loader):
    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # `transformers` looks at its own spec, which must be as if we were not here.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()
