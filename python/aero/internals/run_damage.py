"""Run folders compared with their checksums."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from aero.internals.atomic_files import damage, read_checksums
from aero.reading import UnreadableFileError

# The files that a checksum vouches for: from the start, of a run that ended, of one that finished.
_BEGUN = ("config.yaml", "manifest.json")
_ENDED = ("run.json", "metrics.jsonl")
_FINISHED = ("evaluation.json",)
# Those of a run that was analysed, and others that not every run has.
_OPTIONAL = ("analysis.json", "analysis.npz", "sample.json", "fixed_point.json")


def run_damage(folder: Path, status: str | None) -> list[str]:
    """Returns the defects of a run's own files, a line each; none if all are whole.

    They are compared with `SHA256SUMS`, which must name every file that a run of this status has:
    one that has lost a line vouches for nothing. Those that change during training are in it only
    after its end. The folders of the network and of the checkpoints have sums of their own.
    """
    names = [*_BEGUN]
    names += _ENDED if status not in (None, "running") else ()
    names += _FINISHED if status == "finished" else ()
    listed: dict[str, str] = {}
    with suppress(UnreadableFileError):  # `damage` says it below
        listed = read_checksums(folder) if status == "finished" else {}
    names += [name for name in _OPTIONAL if (folder / name).exists() or name in listed]
    return damage(folder, names)
