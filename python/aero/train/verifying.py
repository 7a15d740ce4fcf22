"""Whether the files of run folders are unchanged."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from aero.checksums import damage, read_checksums
from aero.reading import UnreadableFileError, printable
from aero.train.checkpoints import checkpoint_damage
from aero.train.errors import TrainingError
from aero.train.run_folder import RunFolder
from aero.train.run_lock import lock_holder

__all__ = ["run_problems", "runs_below"]

_ENDED = ("run.json", "metrics.jsonl")
_FINISHED = ("evaluation.json", "analysis.json", "analysis.npz")
_OPTIONAL = ("sample.json", "fixed_point.json")


def runs_below(paths: Iterable[str | Path]) -> list[Path]:
    """Returns the run folders among and below some folders, each once, in order of name.

    Raises:
        TrainingError: there is none in one of them.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        here = (path / "run.json").exists()
        runs = [path] if here else sorted(file.parent for file in path.rglob("run.json"))
        if not runs:
            raise TrainingError(
                f"verify: {printable(str(path))} holds no run (a folder with a run.json)"
            )
        found.update(dict.fromkeys(runs))
    return list(found)


def run_problems(path: str | Path) -> list[str]:
    """Returns the faults of a run folder, a line each; none if all of it is whole.

    Files are compared with their checksums, and `metrics.jsonl` also with each checkpoint's record
    of it. Files that change during training have a checksum only after its end.

    Args:
        path: of the run; nothing is written there.

    Example:
        >>> from aero.train.verifying import run_problems
        >>> run_problems("no/such/run")
        ['train: no/such/run is no run folder (it has no run.json); `aero train` makes one']
    """
    folder = RunFolder(path)
    holder = lock_holder(path)
    if holder is not None:
        return [f"{printable(str(path))} is being trained by {holder}; verify it after its end"]
    problems, names, status = [], ["config.yaml", "manifest.json"], None
    listed: dict[str, str] = {}
    with suppress(UnreadableFileError):  # `damage` says it below
        listed = read_checksums(path)
    try:
        status = folder.info().get("status")
    except TrainingError as error:
        if not folder.exists():
            return [str(error)]
        problems.append(str(error))
    names += _ENDED if status not in (None, "running") else ()
    names += _FINISHED if status == "finished" else ()
    expected = listed if status == "finished" else {}
    names += [name for name in _OPTIONAL if (folder.path / name).exists() or name in expected]
    problems += damage(path, names)
    try:
        folder.metrics()
    except TrainingError as error:
        problems.append(str(error))
    for checkpoint in folder.complete_checkpoints():
        problems += checkpoint_damage(checkpoint, folder)
    if status == "finished" or folder.model.exists():
        problems += damage(folder.model)
    return list(dict.fromkeys(problems))
