"""Trains a target's networks on a borrowed GPU, several at once, and goes on where it stopped.

    python3 benchmarks/cuda/networks.py [TARGET] [--budget 240] [--jobs 10] [--archive FILE]

The networks are small, so a GPU has time for many: each worker is a process that takes the next
run, as those of `python -m benchmarks.paper` do. The texts of the target need not be there, only
what was prepared of them, in the folder that `--prepared` names. At the end of the budget the
workers write checkpoints; the archive then has the folders of the runs that ended, without weights.
A second call unpacks it first. The package must be importable: PYTHONPATH has to name
what `packaging/build_offline.py` prints. The exit status is 2 where time ran out before all ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import shutil
import sys
import tarfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.paper.cells import Cell, TargetPlan, plan_target, unique_cells  # noqa: E402

OUTPUT = ROOT / "runs" / "networks"
#: Endings of the files of a run that the archive has.
KEPT = (".json", ".jsonl", ".yaml", ".npz")
#: Seconds that workers have to write their checkpoints.
LAST = 20


def work(cells: list[Cell], output: str, prepared: str) -> None:
    """Trains cells in a process of its own, on the prepared text."""
    from aero.train import training
    from aero.train.data.prepared_data import PreparedData, open_prepared_data
    from benchmarks.paper.running import train_in_worker

    def found(data: Any, *, cache_dir: Any, context_length: int) -> PreparedData:
        return open_prepared_data(Path(prepared), context_length=context_length)

    training.prepare_data = found  # type: ignore[attr-defined]
    train_in_worker(cells, output, "")


def train(cells: Sequence[Cell], prepared: Path, jobs: int, end: float) -> bool:
    """Trains until all cells ended, which is True, or the time has."""
    left = [cell for cell in cells if not cell.is_done(OUTPUT)]
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=work, args=(left, str(OUTPUT), str(prepared)))
        for _ in range(min(jobs, len(left)))
    ]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers) and time.time() < end:
        time.sleep(0.2)
    for worker in workers:
        if worker.is_alive():
            worker.terminate()
    for worker in workers:
        worker.join(LAST)
        worker.kill()
    return all(cell.is_done(OUTPUT) for cell in left)


def by_row(plan: TargetPlan) -> str:
    """Rows with the perplexities of their runs, and of the trials of their rates."""
    lines = []
    for row, cells in plan.cells_by_row.items():
        judged = " ".join(f"{cell.perplexity(OUTPUT):.2f}" for cell in cells)
        tried = "; ".join(
            f"{rate:g}: " + " ".join(f"{cell.perplexity(OUTPUT):.2f}" for cell in cells)
            for rate, cells in plan.trials.get(row, {}).items()
        )
        lines.append(f"{row:34} {judged or '-':24} rates {tried}")
    return "\n".join(lines)


def pack(cells: Sequence[Cell], archive: Path) -> None:
    """Writes the folders of runs that ended, without checkpoints and weights."""
    with tarfile.open(archive, "w:gz") as file:
        for cell in cells:
            folder = cell.folder(OUTPUT).path
            for path in sorted(folder.rglob("*")) if cell.is_done(OUTPUT) else ():
                if path.is_file() and path.suffix in KEPT:
                    file.add(path, path.relative_to(OUTPUT).as_posix())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target", nargs="?", default="hundred_million")
    parser.add_argument("--budget", type=float, default=240, help="seconds")
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--prepared", type=Path, required=True)
    parser.add_argument("--archive", type=Path, help="runs of before and after")
    parser.add_argument("--set", action="append", default=[], help="as of benchmarks.paper")
    chosen = parser.parse_args()
    end = time.time() + chosen.budget - LAST
    if chosen.archive and chosen.archive.exists():
        with tarfile.open(chosen.archive) as file:
            file.extractall(OUTPUT, filter="data")
    while True:
        plan = plan_target(chosen.target, "mini", settings=chosen.set, output=OUTPUT)
        cells = unique_cells([plan])
        if not train(cells, chosen.prepared, chosen.jobs, end) or not plan.to_come:
            break
        if all(cell.is_done(OUTPUT) for cell in unique_cells([plan])) and time.time() > end:
            break
    print(by_row(plan))
    counts = Counter(cell.status(OUTPUT) for cell in cells)
    print(", ".join(f"{count} {status}" for status, count in counts.items()))
    if chosen.archive:
        written = chosen.archive.with_suffix(".writing")
        pack(cells, written)
        shutil.move(written, chosen.archive)
    return 0 if set(counts) <= {"finished", "diverged"} and not plan.to_come else 2


if __name__ == "__main__":
    sys.exit(main())
