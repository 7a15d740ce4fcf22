"""Runs that are kept from machine to machine: of the plan, ended, whole, and small."""

from __future__ import annotations

import dataclasses
import io
import json
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from aero.internals.atomic_files import run_damage
from benchmarks.paper.cells import plan_target
from benchmarks.paper.targets import load_target

KEPT = Path(__file__).parents[1] / "kept"
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)


@pytest.mark.parametrize("target", sorted(file.name.partition(".")[0] for file in KEPT.iterdir()))
def test_kept_runs_are_cells_of_their_target_that_ended(target: str, tmp_path: Path) -> None:
    archive = KEPT / f"{target}.tar.xz"
    with tarfile.open(fileobj=io.BytesIO(archive.read_bytes())) as kept:
        members = kept.getmembers()
        cells = PurePosixPath("runs", target, "cells")
        folders = {PurePosixPath(m.name).parent.relative_to(cells) for m in members}
        assert all(member.isfile() and member.size < 1 << 20 for member in members)
        kept.extractall(tmp_path, filter="data")
    output = tmp_path / "runs" / target
    # Rates beyond the declared ones are planned once an end was the best; runs of them are kept.
    wide = dataclasses.replace(load_target(target), rates=RATES, widen_rates=False)
    cells_of_target = [*plan_target(target, "mini", output=output).cells]
    cells_of_target += plan_target(wide, "mini", output=output).cells
    found = {folder.as_posix() for folder in folders}
    assert found == {cell.key for cell in cells_of_target if cell.is_done(output)} != set()
    for folder in folders:
        info = json.loads((tmp_path / cells / folder / "run.json").read_text())
        assert info["status"] in ("finished", "diverged"), folder
        # Weights and samples are left out, in SHA256SUMS too: a report would stop there.
        assert run_damage(tmp_path / cells / folder, info["status"]) == []
