"""Checkpoints and run folders: finished by their checksums, and compared with them later."""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from aero.internals.atomic_files import (
    checksums_of,
    damage,
    run_damage,
    write_bytes_atomically,
    write_checksums,
)
from aero.internals.errors import TrainingError
from aero.internals.records import read_record, record_bytes
from aero.internals.run_files import CheckpointState
from aero.reading import UnreadableFileError, printable, read_json
from aero.train.runs.planning import PlannedRun
from aero.train.runs.run_folder import RunFolder, checkpoint_step, lock_holder

_STATE_FILE = "aero_state.json"


def finish_checkpoint(folder: Path, state: object) -> None:
    """Writes the last files of a checkpoint: the run's own state, and checksums of all files.

    Raises:
        OSError: the disk is full, or a file cannot be read.
    """
    write_bytes_atomically(folder / _STATE_FILE, record_bytes(state))
    for path in folder.iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    write_checksums(folder, checksums_of(folder))


def read_checkpoint_state(checkpoint: Path) -> CheckpointState:
    """Returns the run's own state from a checkpoint.

    Raises:
        UnreadableFileError: the file is damaged.
    """
    return read_record(checkpoint / _STATE_FILE, CheckpointState)


def require_whole(checkpoint: str | Path) -> None:
    """Compares a checkpoint with its checksums.

    Raises:
        TrainingError: a file is damaged, missing or without a checksum.
    """
    problems = damage(checkpoint)
    if problems:
        raise TrainingError(
            f"train: the checkpoint {checkpoint} is damaged or unfinished ({problems[0]}); resume "
            "from the one before"
        )


def checkpoint_damage(checkpoint: Path, run: RunFolder) -> list[str]:
    """Returns why a run cannot go on from one of its checkpoints, a line each; nothing if it can.

    Args:
        checkpoint: a folder `step-N`.
        run: whose `metrics.jsonl` must begin as it was when the checkpoint was written.
    """
    problems = damage(checkpoint)
    if problems:
        return problems
    try:
        recorded = read_checkpoint_state(checkpoint).recorder.metrics
        step = read_json(checkpoint / "trainer_state.json", {"global_step": int})["global_step"]
    except UnreadableFileError as error:
        return [str(error)]
    if step != checkpoint_step(checkpoint):
        return [f"{checkpoint} holds step {step}"]
    head = run.metrics_head(recorded.bytes)
    if hashlib.sha256(head).hexdigest() != recorded.sha256:
        return [f"{run.path / 'metrics.jsonl'} does not begin as {checkpoint.name} recorded"]
    return []


def from_whole_checkpoint(run: PlannedRun, say: Callable[[str], None]) -> PlannedRun:
    """Returns a run that resumes from its last whole checkpoint, or from the one that was named.

    Raises:
        TrainingError: no checkpoint is whole, or a run that is to be reused is damaged; nothing was
            changed.
    """
    if run.action == "reuse":
        problems = result_problems(run.folder)
        if problems:
            raise TrainingError(
                f"train: {run.name} cannot be reused: {problems[0]}; restore the damaged file, or "
                "delete the run folder to train again"
            )
    if run.checkpoint is None:
        return run
    is_named = run.resume != "auto"
    problems = []
    for checkpoint in [run.checkpoint] if is_named else run.folder.complete_checkpoints()[::-1]:
        found = checkpoint_damage(checkpoint, run.folder)
        if not found:
            return dataclasses.replace(run, checkpoint=checkpoint)
        problems.append(found[0])
        if not is_named:
            say(f"{run.name}: not resuming from {checkpoint}: {found[0]}")
    if is_named:
        raise TrainingError(f"train: cannot resume from {run.checkpoint}: {problems[0]}")
    raise TrainingError(
        f"train: no checkpoint in {run.folder.checkpoints} is whole ({problems[0]}); nothing was "
        "changed: restore the damaged file, or delete the run folder to train again"
    )


def runs_below(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the run folders among and below some folders, each once, in order of name.

    Raises:
        TrainingError: there is none in one of them.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        here = (path / "run.json").exists()
        runs = [path] if here else sorted(file.parent for file in path.rglob("run.json"))
        if not runs:
            raise TrainingError(
                f"verify: {printable(str(path))} holds no run (a folder with a run.json)"
            )
        for run in runs:
            found.setdefault(run.resolve(), run)
    return list(found.values())


def run_problems(path: str | Path) -> list[str]:
    """Returns the faults of a run folder, a line each; none if all of it is whole.

    Files are compared with their checksums, and `metrics.jsonl` also with each checkpoint's record
    of it. Files that change during training have a checksum only after its end.
    """
    folder = RunFolder(path)
    holder = lock_holder(path)
    if holder is not None:
        return [f"{printable(str(path))} is being trained by {holder}; verify it after its end"]
    problems = result_problems(folder)
    for checkpoint in folder.complete_checkpoints():
        problems += checkpoint_damage(checkpoint, folder)
    return list(dict.fromkeys(problems))


def result_problems(folder: RunFolder) -> list[str]:
    """Returns the faults of a run folder without its checkpoints, a line each."""
    problems: list[str] = []
    status = None
    try:
        status = folder.info().status
    except TrainingError as error:
        if not folder.exists():
            return [str(error)]
        problems.append(str(error))
    problems += run_damage(folder.path, status)
    try:
        folder.metrics()
    except TrainingError as error:
        problems.append(str(error))
    if status == "finished" or folder.model.exists():
        problems += damage(folder.model)
    return problems
