"""Packs the finished runs of a target, without weights and samples, to go on from elsewhere.

    python -m benchmarks.paper.experiments.keep convolution_long --output runs/convolution_long

writes `benchmarks/paper/kept/TARGET.tar.xz`. Unpacked at the top of a checkout, its runs are not
trained again. Where the folder lacks runs that the archive has, nothing is written.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import tarfile
from pathlib import Path, PurePosixPath

from aero.internals.atomic_files import write_bytes_atomically
from benchmarks.paper.cells import Cell, plan_target
from benchmarks.paper.targets import load_target

KEPT = Path(__file__).parents[1] / "kept"
FILES = ("config.yaml", "evaluation.json", "manifest.json", "metrics.jsonl", "run.json")
CHECKSUMS = "SHA256SUMS"
#: Rates beyond the declared ones are planned once an end was the best; runs of them are kept.
RATES = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2, 6.4e-2)


def finished(target: str, output: Path) -> dict[str, Cell]:
    """The cells of a target that ended, by their folder in `output`."""
    wide = dataclasses.replace(load_target(target), rates=RATES, widen_rates=False)
    cells = [
        cell for plan in (target, wide) for cell in plan_target(plan, "mini", output=output).cells
    ]
    return {cell.key: cell for cell in cells if cell.is_done(output)}


def packed(target: str, output: Path) -> bytes:
    """The archive: the same bytes for the same runs."""
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w:xz", preset=9) as archive:
        for key in sorted(finished(target, output)):
            folder = output / "cells" / key
            # A run that diverged has no evaluation.
            own = {
                line.split()[1]: line
                for line in (folder / CHECKSUMS).read_text().splitlines(keepends=True)
                if line.split()[1] in FILES
            }
            contents = {name: (folder / name).read_bytes() for name in own}
            contents[CHECKSUMS] = "".join(own.values()).encode()
            for name, content in sorted(contents.items()):
                member = tarfile.TarInfo(str(PurePosixPath("runs", target, "cells", key, name)))
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return memory.getvalue()


def kept_runs(archive: Path, target: str) -> set[str]:
    """The folders of the runs in an archive; none where it is not there."""
    if not archive.exists():
        return set()
    cells = PurePosixPath("runs", target, "cells")
    with tarfile.open(archive) as kept:
        folders = {PurePosixPath(name).parent for name in kept.getnames()}
    return {folder.relative_to(cells).as_posix() for folder in folders}


def keep(target: str, output: Path, archive: Path) -> int:
    """Writes the archive of the runs that ended, and returns how many they are.

    Raises:
        ValueError: None ended, or the archive has runs that the folder lacks.
    """
    found = {*finished(target, output)}
    if not found:
        raise ValueError(f"keep: no run of {target} has ended in {output}")
    lost = kept_runs(archive, target) - found
    if lost:
        raise ValueError(
            f"keep: {output} must have the runs of {archive}; unpack it, {min(lost)} is missing"
        )
    write_bytes_atomically(archive, packed(target, output))
    return len(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target")
    parser.add_argument("--output", type=Path, help="the folder of its runs: runs/TARGET")
    given = parser.parse_args()
    archive = KEPT / f"{given.target}.tar.xz"
    try:
        count = keep(given.target, given.output or Path("runs", given.target), archive)
    except ValueError as error:
        parser.exit(2, f"{error}\n")
    print(f"{archive}: {count} runs")


if __name__ == "__main__":
    main()
