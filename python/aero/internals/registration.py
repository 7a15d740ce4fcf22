"""Makes `import aero` enough for `transformers` and for notebooks, at no cost without them.

``AutoModelForCausalLM.from_pretrained(..., attn_implementation="aero")`` needs the names that
importing `aero.models` registers, but `import aero` on its own must stay free of torch. So
`aero.models` is imported as soon as both packages are.

A notebook shows results of `aero.mpc` as `aero.report` draws them, which loads at the first one.
`aero`, which hands on every room, names the modules: nothing here belongs to one.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Where the results of `aero.mpc` are defined that `aero.report.cost_pages` draws.
_DRAWN = {
    "aero.mpc.cost_report": ("CostReport", "CostComparison"),
    "aero.mpc.generation": ("GenerationReport",),
    "aero.mpc.network_sweep": ("SweepResult",),
}


def register_with_notebooks(pages: str) -> None:
    """Tells the running IPython, if there is one, how to show results of `aero.mpc`.

    Args:
        pages: the module whose `to_fragment` draws them.
    """

    def fragment(found: object) -> str:
        drawn: str = importlib.import_module(pages).to_fragment(found)
        return drawn

    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        html = shell.display_formatter.formatters["text/html"]
        for module, names in _DRAWN.items():
            for name in names:
                html.for_type_by_name(module, name, fragment)


def register_with_transformers(models: str) -> None:
    """Imports a module now if `transformers` is imported, else right after it is."""
    if sys.modules.get("transformers") is not None:
        _register(models)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder(models))


def _register(models: str) -> None:
    try:
        importlib.import_module(models)
    except ImportError as error:
        # Neither package may keep the other from being imported.
        warnings.warn(f"aero is not known to transformers: {error}", stacklevel=3)


class _Finder(MetaPathFinder):
    """Finds `transformers` where Python would, with a loader that registers afterwards.

    It leaves once `transformers` is imported.
    """

    def __init__(self, models: str) -> None:
        self.models = models

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "transformers":
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _RegisteringLoader(spec.loader, self)
                return spec
        return None


class _RegisteringLoader(Loader):
    def __init__(self, loader: Loader, finder: _Finder) -> None:
        self._loader, self._finder = loader, finder

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # `transformers` looks at its own spec, which must be as if we were not here.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        with contextlib.suppress(ValueError):  # another thread was first
            sys.meta_path.remove(self._finder)
        _register(self._finder.models)
