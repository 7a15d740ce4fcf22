"""Runs that are kept from machine to machine: of the plan, ended, and small."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from benchmarks.paper.cells import plan_target

KEPT = Path(__file__).parents[1] / "kept"


@pytest.mark.parametrize("target", sorted(file.name.partition(".")[0] for file in KEPT.iterdir()))
def test_kept_runs_are_cells_of_their_target_that_ended(target: str, tmp_path: Path) -> None:
    archive = KEPT / f"{target}.tar.xz"
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as kept:
        members = kept.getmembers()
        cells = PurePosixPath("runs", target, "cells")
        folders = {PurePosixPath(m.name).parent.relative_to(cells) for m in members}
        assert all(member.isfile() and member.size < 1 << 20 for member in members)
        kept.extractall(tmp_path, filter="data")
    planned = {cell.key for cell in plan_target(target, "mini", output=tmp_path / "none").cells}
    found = {folder.as_posix() for folder in folders}
    tried = plan_target(target, "mini", output=tmp_path / "runs" / target)
    assert found and found <= planned | {cell.key for cell in tried.cells}
    for folder in folders:
        info = json.loads((tmp_path / cells / folder / "run.json").read_text())
        assert info["status"] in ("finished", "diverged"), folder
    assert {cell.key for cell in tried.cells if cell.is_done(tmp_path / "runs" / target)} == found
