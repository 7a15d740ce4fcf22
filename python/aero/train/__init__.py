"""Training: recipes, corpora, the Hugging Face Trainer, run folders.

Everything loads on first use, so that reading a recipe does not import torch.

    recipe = load_recipe("demo", settings=["training.tokens=100_000"])
    train_runs(plan_runs(recipe, ["SM+ScFuFFN"], [0], output="runs"), cache_dir="runs/corpora")
    evaluate_run("runs/sm-scfuffn-seed0").perplexity
"""

from __future__ import annotations

import importlib
from typing import Any

# Public name -> module that defines it.
_EXPORTS = {
    "AeroTrainer": "aero.train.trainer",
    "AnnealingCallback": "aero.train.annealing_callback",
    "Distillation": "aero.train.distillation",
    "EntropyCallback": "aero.train.entropy_callback",
    "Recipe": "aero.train.recipe",
    "TrainingError": "aero.train.errors",
    "analyze_run": "aero.train.run_results",
    "distillation_loss": "aero.train.distillation",
    "evaluate_run": "aero.train.run_results",
    "load_recipe": "aero.train.recipe_files",
    "measure_loss": "aero.train.perplexity",
    "plan_runs": "aero.train.planning",
    "prepare_data": "aero.train.prepared_data",
    "recipe_names": "aero.train.recipe_files",
    "search_prunable_ffns": "aero.train.pruning_search",
    "train_runs": "aero.train.runs",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
