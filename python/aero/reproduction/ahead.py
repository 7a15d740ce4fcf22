"""The estimate of a plan before it starts: tokens, floating-point operations, hours here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from aero.report.text import duration
from aero.reproduction.cells import Cell
from aero.train.forecast import seconds_per_token
from aero.train.machine import hardware, settle_in
from aero.train.planning import PlannedRun
from aero.train.rehearsal import rehearse_data, rehearse_run
from aero.train.run_folder import checkpoint_step

__all__ = ["operations_left", "operations_per_second", "rehearse_cells", "what_it_takes"]

# A backward pass takes about twice the operations of a forward pass.
_PASSES = 3


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
    found: dict[str, None] = {}
    for cell in missing.values():
        run = _planned(cell, output)
        line, tokenizer = rehearse_data(
            run.recipe.data, cache_dir=cache_dir, context_length=run.recipe.model.context_length
        )
        found[f"data: {line}"] = None
        rehearse_run(run, tokenizer)
    return "\n".join(found)


def _planned(cell: Cell, output: str | Path) -> PlannedRun:
    return cell.without_teacher().planned(output)


def _tokens_left(run: PlannedRun) -> int:
    done = 0 if run.checkpoint is None else checkpoint_step(run.checkpoint)
    return run.recipe.training.tokens - done * run.recipe.training.tokens_per_step


def _operations_per_token(run: PlannedRun) -> float:
    return _PASSES * float(run.spec.flops("executed").total) / run.spec.context_length


def _hours(seconds: float) -> str:
    days = seconds / 86_400
    return duration(seconds) if days < 2 else f"{days:,.0f} days"
