"""Training the cells of a plan: resumable, each by one process at a time.

A killed run is taken up by the next process that looks. Several commands, or the workers of one,
may share an output. `what_it_takes` and `rehearse_cells` look ahead.
"""

from __future__ import annotations

import math
import multiprocessing
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from aero.internals.errors import StopRequestedError, TrainingError
from aero.internals.machine import hardware, settle_in
from aero.reading import UnreadableFileError
from aero.report.text import duration
from aero.train.forecast import RehearsedData, rehearse_data, rehearse_run, seconds_per_token
from aero.train.progress import LOG, StopRequest
from aero.train.recipes.recipe_sections import DataSection
from aero.train.runs.planning import PlannedRun, require_current_split
from aero.train.runs.run_folder import RunLockedError, checkpoint_step
from benchmarks.paper.cells import Cell, TargetPlan, unique_cells
from benchmarks.paper.training_flops import training_flops

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
        >>> from benchmarks.paper.running import run_cells
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


def run_plans(
    plan: Callable[[], Sequence[TargetPlan]], train: Callable[[Sequence[Cell]], None]
) -> Sequence[TargetPlan]:
    """Trains the networks of targets, first to find rates, then at these; returns the last plans.

    Args:
        plan: `plan_target` of every target, with the output.
        train: `run_cells` or another launcher.
    """
    plans = plan()
    while True:
        trained = unique_cells(plans)
        train(trained)
        if not sum(each.to_come for each in plans):
            return plans
        plans = plan()
        if {cell.key for cell in unique_cells(plans)} == {cell.key for cell in trained}:
            raise TrainingError("reproduce: the runs ended, but not all rates were tried")


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
    from aero.train.training import train_runs

    remaining, waiting = list(cells), False
    # A request in a run's last evaluation ends that run as it should, and no other begins.
    with StopRequest() as stop:
        while remaining:
            for cell in list(remaining):
                if stop.requested:
                    raise StopRequestedError("stopped; run the same command again to go on")
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
    info, perplexity = cell.folder(output).info(), cell.perplexity(output)
    name, seconds = f"{cell.label} seed {cell.seed}", info.seconds or 0.0
    if math.isnan(perplexity) or info.status == "diverged":
        return f"{name}: {cell.status(output)} after {seconds:.0f} s"
    shown = f"{perplexity:.2f}" if math.isfinite(perplexity) else "not finite"
    return f"{name}: perplexity {shown}, {seconds:.0f} s"


def what_it_takes(cells: Sequence[Cell], output: str | Path, *, jobs: int = 1) -> str:
    """Returns the cells left, their tokens and operations, and how long they take on this machine.

    Steps in checkpoints of interrupted runs are not counted again.
    Operations are those of the matrix products as executed, three passes per token. One network is
    timed, the first that is missing; the others are taken to run at its rate.

    Args:
        cells: of one plan or several.
        output: folder of all cells.
        jobs: processes that train at once.
    """
    missing = [cell for cell in cells if not cell.is_done(output)]
    done = len(cells) - len(missing)
    if not missing:
        return f"all {done} cells are done"
    tokens = sum(_tokens_left(_planned(cell, output)) for cell in missing)
    operations = sum(operations_left(cell, output) for cell in missing)
    rate = operations_per_second(missing[0], output)
    return (
        f"{len(missing)} cells to train, {done} done: {tokens:,} tokens, "
        f"{operations:.3g} floating-point operations; about {_hours(operations / rate / jobs)} on "
        f"{hardware()} with {jobs} {'job' if jobs == 1 else 'jobs'} "
        f"({rate:.3g} operations per second, timed with {missing[0].label}; validation not "
        "counted)"
    )


def operations_left(cell: Cell, output: str | Path) -> float:
    """Returns the operations of the steps that a cell's checkpoint does not hold."""
    run = _planned(cell, output)
    return _tokens_left(run) * _operations_per_token(run)


def operations_per_second(cell: Cell, output: str | Path) -> float:
    """Returns the rate at which this machine trains a cell's network, timed."""
    run = _planned(cell, output)
    settle_in(run.recipe.training.threads)
    return _operations_per_token(run) / seconds_per_token(run)


def rehearse_cells(cells: Sequence[Cell], output: str | Path, *, cache_dir: str | Path) -> str:
    """Does all but the steps of each network that is missing, once per label and recipe.

    Args:
        cells: of one plan or several.
        output: folder of all cells; nothing is written there.
        cache_dir: corpora and tokenizers.

    Returns:
        The corpora that were found, a line each.

    Raises:
        TrainingError: as a training would raise before its first step.
    """
    missing = {
        (cell.group, cell.label): cell for cell in reversed(cells) if not cell.is_done(output)
    }
    corpora: dict[tuple[DataSection, int], RehearsedData] = {}
    for cell in missing.values():
        run = _planned(cell, output)
        key = run.recipe.data, run.recipe.model.context_length
        if key not in corpora:
            corpora[key] = rehearse_data(key[0], cache_dir=cache_dir, context_length=key[1])
        rehearse_run(run, corpora[key].tokenizer)
    return "\n".join(dict.fromkeys(f"data: {corpus.found}" for corpus in corpora.values()))


def _planned(cell: Cell, output: str | Path) -> PlannedRun:
    return cell.without_origins().planned(output)


def _tokens_left(run: PlannedRun) -> int:
    done = 0 if run.checkpoint is None else checkpoint_step(run.checkpoint)
    return run.recipe.training.tokens - done * run.recipe.training.tokens_per_step


def _operations_per_token(run: PlannedRun) -> float:
    return training_flops(run.spec, 1)


def _hours(seconds: float) -> str:
    days = seconds / 86_400
    return duration(seconds) if days < 2 else f"{days:,.0f} days"
