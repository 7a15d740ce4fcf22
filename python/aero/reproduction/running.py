"""Training the cells of a plan: resumable, each by one process at a time.

A killed run is taken up by the next process that looks. Several commands, or the workers of one,
may share an output.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aero.reading import UnreadableFileError, read_json
from aero.reproduction.cells import Cell
from aero.train.errors import StopRequestedError, TrainingError
from aero.train.planning import require_current_split
from aero.train.progress import LOG
from aero.train.run_lock import RunLockedError
from aero.train.stopping import StopRequest

__all__ = ["cell_table", "ended", "run_cells", "train_in_worker"]

# How often a process looks again at cells that others hold.
_POLL_SECONDS = 1.0


def run_cells(
    cells: Sequence[Cell],
    *,
    output: str | Path,
    cache_dir: str | Path,
    jobs: int = 1,
    say: Callable[[str], None] = LOG.info,
) -> None:
    """Trains missing cells, and waits for cells that another process trains.

    Args:
        cells: in the order in which they are to be trained.
        output: run folders go to `output/cells`.
        cache_dir: corpora and tokenizers.
        jobs: processes that train at once, each with the threads that the recipe says.
        say: called with one line per cell that ended. Default: the logger `aero.train`.

    Raises:
        TrainingError: bad data, a full disk, or a worker that failed.
        StopRequestedError: Ctrl-C or SIGTERM; checkpoints were written.

    Example:
        >>> from aero.reproduction import run_cells
        >>> run_cells([], output="runs/reproduction", cache_dir="runs/corpora")  # nothing to do
    """
    if jobs < 1:
        raise TrainingError(f"reproduce: --jobs must be >= 1, got {jobs}")
    missing = []
    for cell in cells:
        if not cell.is_done(output):
            missing.append(cell)
        else:
            require_current_split(cell.folder(output))
    if not missing:
        return
    if jobs == 1:
        _work(missing, output, cache_dir, say)
    else:
        _work_together(missing, output, cache_dir, min(jobs, len(missing)), say)


def cell_table(
    cells: Sequence[Cell], output: str | Path, remarks: Mapping[str, str] | None = None
) -> str:
    """Returns cells done and missing as text, one line per cell.

    Args:
        cells: of one plan or several.
        output: folder of all cells.
        remarks: additions to the line of a cell, by key.
    """
    lines, done = [], 0
    for cell in cells:
        done += cell.is_done(output)
        line = f"  {cell.status(output):<11}  {cell.label} seed {cell.seed}  cells/{cell.key}"
        lines.append("  ".join([line, *filter(None, [(remarks or {}).get(cell.key)])]))
    return "\n".join([f"{done} of {len(cells)} cells done", *lines])


def _work(
    cells: Sequence[Cell], output: str | Path, cache_dir: str | Path, say: Callable[[str], None]
) -> None:
    from aero.train.runs import train_runs

    remaining, waiting = list(cells), False
    while remaining:
        for cell in list(remaining):
            if cell.is_done(output):  # by another process, since this one looked
                say(ended(cell, output))
            elif cell.is_locked(output) or not cell.is_ready(output):
                continue
            else:
                try:
                    train_runs([cell.planned(output)], cache_dir=cache_dir, say=say)
                except RunLockedError:  # another process was faster
                    continue
            remaining.remove(cell)
            break
        else:
            if not waiting:
                say(f"waiting for {len(remaining)} cells that other processes train")
            waiting = True
            time.sleep(_POLL_SECONDS)


def _work_together(
    cells: Sequence[Cell],
    output: str | Path,
    cache_dir: str | Path,
    jobs: int,
    say: Callable[[str], None],
) -> None:
    # Not fork: the parent may have started torch's threads.
    context = multiprocessing.get_context("spawn")
    workers = [
        context.Process(target=train_in_worker, args=(list(cells), str(output), str(cache_dir)))
        for _ in range(jobs)
    ]
    told: set[str] = set()
    with StopRequest() as stop:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            if stop.requested:
                for worker in workers:
                    worker.terminate()  # SIGTERM, which training answers with a checkpoint
                for worker in workers:
                    worker.join()
                raise StopRequestedError("stopped; run the same command again to go on")
            time.sleep(_POLL_SECONDS / 4)
            _tell(cells, output, told, say)
    _tell(cells, output, told, say)
    failed = [worker for worker in workers if worker.exitcode]
    if failed:
        raise TrainingError(
            f"reproduce: {len(failed)} of {jobs} workers failed (see above); run the same command "
            "again to go on"
        )


def train_in_worker(cells: list[Cell], output: str, cache_dir: str) -> None:
    """Trains cells in a process of its own, whose errors are one line."""
    try:
        _work(cells, output, cache_dir, lambda text: None)
    except StopRequestedError:
        pass
    except (TrainingError, UnreadableFileError) as error:
        raise SystemExit(f"aero: {error}") from error


def _tell(
    cells: Sequence[Cell], output: str | Path, told: set[str], say: Callable[[str], None]
) -> None:
    for cell in cells:
        if cell.key not in told and cell.is_done(output):
            told.add(cell.key)
            say(f"[{len(told)}/{len(cells)}] {ended(cell, output)}")


def ended(cell: Cell, output: str | Path) -> str:
    """Returns how a cell's run ended, in one line."""
    folder = cell.folder(output)
    file = folder.path / "evaluation.json"
    seconds = folder.info().get("seconds", math.nan)
    name = f"{cell.label} seed {cell.seed}"
    if not file.exists():
        return f"{name}: {cell.status(output)} after {seconds:.0f} s"
    perplexity = read_json(file, {"perplexity": float | None})["perplexity"]
    shown = "not finite" if perplexity is None else f"{perplexity:.2f}"
    return f"{name}: perplexity {shown}, {seconds:.0f} s"
