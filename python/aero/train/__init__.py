"""Training: recipes, corpora, the Hugging Face Trainer, run folders.

Everything loads on first use, so that reading a recipe does not import torch.
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_EXPORTS = {
    "Recipe": "aero.train.recipe",
    "TrainingError": "aero.train.errors",
    "load_recipe": "aero.train.recipe_files",
    "recipe_names": "aero.train.recipe_files",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
