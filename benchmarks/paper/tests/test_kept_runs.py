"""Runs that are kept from machine to machine: of the plan, ended, whole, and small."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path

import pytest

from aero.internals.atomic_files import run_damage
from benchmarks.paper.experiments.keep import KEPT, finished, keep, kept_runs


def unpacked(target: str, to: Path) -> Path:
    """The folder of the kept runs of a target."""
    with tarfile.open(KEPT / f"{target}.tar.xz") as kept:
        kept.extractall(to, filter="data")
    return to / "runs" / target


TARGETS = sorted(file.name.partition(".")[0] for file in KEPT.iterdir())


@pytest.mark.parametrize("target", TARGETS)
def test_kept_runs_are_cells_of_their_target_that_ended(target: str, tmp_path: Path) -> None:
    archive = KEPT / f"{target}.tar.xz"
    with tarfile.open(archive) as kept:
        assert all(member.isfile() and member.size < 1 << 20 for member in kept.getmembers())
    output = unpacked(target, tmp_path)
    found = kept_runs(archive, target)
    assert found == finished(target, output).keys() != set()
    for folder in found:
        info = json.loads((output / "cells" / folder / "run.json").read_text())
        assert info["status"] in ("finished", "diverged"), folder
        # Weights and samples are left out, in SHA256SUMS too: a report would stop there.
        assert run_damage(output / "cells" / folder, info["status"]) == []


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_packed_is_what_was_unpacked_and_nothing_is_lost(
    target: str, tmp_path: Path
) -> None:
    archive = tmp_path / "again.tar.xz"
    output = unpacked(target, tmp_path)
    first, *_ = cells = sorted(kept_runs(KEPT / f"{target}.tar.xz", target))
    for name in ("sample.json", "analysis.npz"):
        (output / "cells" / first / name).write_bytes(b"large")
    assert keep(target, output, archive) == len(cells)
    again = unpacked(target, tmp_path / "kept")
    with tarfile.open(archive) as kept:
        kept.extractall(tmp_path / "second", filter="data")
    files = [path.relative_to(again) for path in again.rglob("*") if path.is_file()]
    second = tmp_path / "second" / "runs" / target
    assert {path.relative_to(second) for path in second.rglob("*") if path.is_file()} == {*files}
    for file in files:
        assert (again / file).read_bytes() == (second / file).read_bytes(), file
    before = archive.read_bytes()
    shutil.rmtree(output / "cells" / first)
    with pytest.raises(ValueError, match="must have the runs"):
        keep(target, output, archive)
    with pytest.raises(ValueError, match="has ended"):
        keep(target, tmp_path / "nowhere", archive)
    assert archive.read_bytes() == before
