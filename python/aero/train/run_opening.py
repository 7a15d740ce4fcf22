"""How a run's folder begins, and how its network is put there at the end."""

from __future__ import annotations

import shlex
import shutil
import sys
from dataclasses import asdict
from typing import Any

from aero.atomic_files import write_json_atomically
from aero.checksums import checksums_of, write_checksums
from aero.train.checkpoints import read_checkpoint_state
from aero.train.errors import TrainingError
from aero.train.machine import git_commit, hardware, package_versions
from aero.train.planning import PlannedRun
from aero.train.prepared_data import PreparedData
from aero.train.run_folder import RunFolder, checkpoint_step, run_slug

__all__ = ["open_folder", "save_model"]


def open_folder(run: PlannedRun, data: PreparedData) -> None:
    """Writes the facts known before the first step and removes a killed process's remains.

    Raises:
        TrainingError: the run resumes, and its corpus is another one by now.
    """
    folder = run.folder
    step, metrics_bytes = 0, 0
    if run.checkpoint is None:
        # Without run.json nothing else counts, so that a kill in between leaves no half of a run.
        (folder.path / "run.json").unlink(missing_ok=True)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_config(run.config())
        write_json_atomically(folder.path / "manifest.json", data.manifest)
        write_checksums(folder.path, checksums_of(folder.path, ["config.yaml", "manifest.json"]))
        shutil.rmtree(folder.tensorboard, ignore_errors=True)
    else:
        step = checkpoint_step(run.checkpoint)
        metrics_bytes = read_checkpoint_state(run.checkpoint)["recorder"]["metrics"]["bytes"]
        _require_same_corpus(folder, data)
    folder.update(
        {
            "status": "running",
            "label": run.label,
            "slug": run_slug(run.label),
            "seed": run.seed,
            "spec": run.spec.to_dict(),
            "steps_done": step,
            "steps_total": run.recipe.steps,
            "tokens_per_step": run.recipe.training.tokens_per_step,
            "seconds": 0.0,
            "versions": package_versions(),
            "hardware": hardware(),
            "git_commit": git_commit(),
            "corpus": {**data.summary(), "folder": str(data.folder.resolve())},
            "diverged": None,
            "skipped_steps": 0,
            "command": shlex.join(["aero", *sys.argv[1:]]),
            **_training_from(run),
        }
    )
    folder.remove_results()
    folder.remove_checkpoints_after(step)
    folder.truncate_metrics(metrics_bytes)


def _require_same_corpus(folder: RunFolder, data: PreparedData) -> None:
    there = {name: folder.info()["corpus"].get(name) for name in data.summary()}
    if there != data.summary():
        names = ", ".join(name for name, value in data.summary().items() if there[name] != value)
        raise TrainingError(
            f"train: {folder.path} was trained on another corpus ({names} differ); put the old one "
            "back, or choose another --output"
        )


def _training_from(run: PlannedRun) -> dict[str, Any]:
    """Source and teacher as `run.json` records them."""
    found: dict[str, Any] = {}
    if run.source is not None:
        found["from"] = {**run.source.record(), "annealing": asdict(run.recipe.annealing)}
    if run.teacher is not None:
        found["distilled_from"] = {**run.teacher.record(), **asdict(run.recipe.distillation)}
    return found


def save_model(model: Any, data: PreparedData, folder: RunFolder) -> None:
    """Puts the trained network, its tokenizer and their checksums into `model`, all or nothing."""
    partial = folder.path / "model.partial"
    model.save_pretrained(partial)
    data.tokenizer.save_pretrained(partial)
    write_checksums(partial, checksums_of(partial))
    partial.replace(folder.model)
