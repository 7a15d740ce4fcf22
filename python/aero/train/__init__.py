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
    >>> train_runs([run], cache_dir=folder.name, say=print)  # doctest: +ELLIPSIS
    SM+ScFuFFN seed 0: perplexity ... after ... s, in ...
    >>> 1 < evaluate_run(run.folder.path).perplexity < 300
    True
"""

from __future__ import annotations

from aero.internals.lazy_exports import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
