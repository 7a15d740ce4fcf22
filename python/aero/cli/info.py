"""The facts that `aero info` and `aero info RUN` show."""

from __future__ import annotations

import os
from pathlib import Path

from aero._core import build_info, cpu_features
from aero.report import read_run


def machine_facts() -> dict[str, str]:
    """Returns how aero was built, and its machine, by name."""
    import torch

    from aero._library import TORCH_TARGET_VERSION, cpu_isa, library_path
    from aero.train.machine import git_commit, hardware, package_versions

    build, versions = build_info(), package_versions()
    cuda = "no"
    if torch.cuda.is_available():
        cuda = f"{torch.cuda.get_device_name()}, CUDA {torch.version.cuda}"
    facts = {
        "aero": versions["aero"],
        "commit": git_commit() or "not a git checkout",
        "python": versions["python"],
        "torch": torch.__version__,
        "TORCH_TARGET_VERSION": ".".join(map(str, TORCH_TARGET_VERSION)),
        "operator library": str(library_path()),
        "compiler": f"{build['compiler']}, {build['build_type']}",
        "cpu": hardware(),
        "cpu isa": cpu_isa(),
        "cpu features": " ".join(cpu_features()),
        "cuda": cuda,
        "cuda backward": os.environ.get("AERO_CUDA_BACKWARD") or "heads or split, by size",
    }
    return facts | {name: value for name, value in versions.items() if name not in facts}


def run_facts(path: Path) -> dict[str, str]:
    """Returns a run's kind, progress and start, by name.

    Raises:
        ValueError: it is no run folder, or its files cannot be read.
    """
    run = read_run(path)
    corpus = run.info.get("corpus") or {}
    measured = (run.evaluation or {}).get("perplexity")
    # Of runs from before it was measured, or under way for less than a step.
    deviations = run.info.get("first_score_deviations")
    return {
        "network": run.spec.label,
        "seed": str(run.info["seed"]),
        "status": run.ending or "finished",
        "steps": f"{run.info['steps_done']} of {run.info['steps_total']}",
        "perplexity": "not evaluated" if measured is None else f"{measured:.3f}",
        "corpus": f"{corpus.get('name')} ({corpus.get('version')})",
        "commit": run.info.get("git_commit") or "not a git checkout",
        "hardware": run.info.get("hardware") or "unknown",
        "first scores": "not measured" if deviations is None else _by_layer(deviations),
    }


def _by_layer(deviations: list[float | None]) -> str:
    shown = ("NaN" if value is None else f"{value:.3f}" for value in deviations)
    return f"deviation by layer {' '.join(shown)}"
