"""Training: recipes, corpora, the Hugging Face Trainer, run folders.

Everything loads on first use, so that reading a recipe does not import torch.

`aero train`, `aero evaluate` and `aero analyze` are `train_runs`, `evaluate_run` and `analyze_run`.

Example:
    >>> import tempfile
    >>> from pathlib import Path
    >>> from aero.train import evaluate_run, load_recipe, plan_runs, train_runs
    >>> folder = tempfile.TemporaryDirectory()
    >>> corpus = Path(folder.name, "corpus")
    >>> corpus.mkdir()
    >>> for number in range(20):
    ...     _ = (corpus / f"{number}.txt").write_text(f"{number} or not {number}? " * 40)
    >>> recipe = load_recipe("demo", settings=[
    ...     f"data.source={corpus}", "data.vocabulary=257", "model.preset=tiny",
    ...     "model.context_length=16", "training.tokens=512", "training.tokens_per_step=128",
    ... ])
    >>> (run,) = plan_runs(recipe, ["SM+ScFuFFN"], [0], output=folder.name)
    >>> train_runs([run], cache_dir=folder.name)
    >>> 1 < evaluate_run(run.folder.path).perplexity < 300
    True
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
    "validation_measure": "aero.train.run_results",
}

__all__ = sorted(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(importlib.import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'aero.train' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
