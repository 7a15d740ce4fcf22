"""Training, from a plan to finished run folders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch.distributed import broadcast_object_list

from aero.internals.errors import StopRequestedError, disk_errors
from aero.internals.machine import settle_in
from aero.train.data.prepared_data import prepare_data
from aero.train.one_run import OneRun
from aero.train.progress import LOG, StopRequest, is_main_process, progress_bar
from aero.train.runs.checkpoints import from_whole_checkpoint
from aero.train.runs.planning import PlannedRun, with_action
from aero.train.runs.run_folder import locked, require_unlocked
from aero.train.starting import training_arguments


def train_runs(
    plan: Sequence[PlannedRun], *, cache_dir: str | Path, say: Callable[[str], None] = LOG.info
) -> None:
    """Trains, resumes or reuses each planned run in turn, with one progress bar over all.

    Args:
        plan: from `plan_runs`.
        cache_dir: corpora and tokenizers.
        say: called with lines of text: what the corpus leaves out, and each run's next step and
            its end.
            Default: the logger `aero.train`.

    Raises:
        TrainingError: bad data, a full disk, or a run that is to be reused is damaged.
        StopRequestedError: Ctrl-C, SIGTERM or SIGHUP; a checkpoint was written.

    Example:
        >>> from aero.train import train_runs
        >>> train_runs([], cache_dir="corpora")  # an empty plan; `aero.train` shows a whole one
    """
    todo = [run for run in plan if run.action != "reuse"]
    for run in plan:
        if run.action == "reuse":
            say(_reused(from_whole_checkpoint(run, say)))
    if not todo:
        return
    for run in todo:
        # They refuse now what they would refuse once the corpus is prepared.
        training_arguments(run)
        if run.recipe.selection.byte_weight:
            from aero.train.selection import price_of_parts

            price_of_parts(run)
        if is_main_process():
            require_unlocked(run.folder.path)
    settle_in(todo[0].recipe.training.threads)
    data = prepare_data(
        todo[0].recipe.data,
        cache_dir=cache_dir,
        context_length=todo[0].recipe.model.context_length,
    )
    if is_main_process():
        for remark in data.remarks:
            say(f"data: {remark}")
    done = sum(run.steps_done for run in todo)
    total = sum(run.recipe.steps for run in todo)
    with StopRequest() as stop, progress_bar("training", total, "step", initial=done) as bar:

        def advance(loss: float) -> None:
            if not math.isnan(loss):
                bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
            bar.update(1)

        for number, planned in enumerate(todo, start=1):
            if stop.requested:
                raise StopRequestedError(f"stopped before {planned.name}; run the command again")
            bar.set_description(f"[{number}/{len(todo)}] {planned.name}", refresh=False)
            expected = bar.n + planned.recipe.steps - planned.steps_done
            with locked(planned.folder.path) if is_main_process() else nullcontext():
                run = _as_it_is_now(planned, say)
                if run.checkpoint is not None and is_main_process():
                    say(f"{run.name}: resuming from {run.checkpoint}")
                with disk_errors("the run", run.folder.path, "run the same command again"):
                    ending = (
                        _reused(run)
                        if run.action == "reuse"
                        else f"{run.name}: {OneRun(run, data, stop, advance, say).train()}"
                    )
            # A run that diverged leaves less to do.
            bar.total = total = round(total - (expected - bar.n))
            if is_main_process():
                bar.clear()
                say(ending)


def _reused(run: PlannedRun) -> str:
    unread = "; its checkpoints were not looked at" if run.folder.complete_checkpoints() else ""
    status = run.folder.info().status
    return f"{run.name}: reusing the {status} run in {run.folder.path}{unread}"


def _as_it_is_now(run: PlannedRun, say: Any) -> PlannedRun:
    """The run by the contents of its folder, to which nobody else writes now.

    Under `torchrun` the first process decides: it alone has the lock.
    """
    if is_main_process():
        run = with_action(run)
        if run.action != "train":
            run = from_whole_checkpoint(run, say)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        choice: list[Any] = [run.action, run.checkpoint]
        # Asking for the device joins the processes.
        broadcast_object_list(choice, src=0, device=training_arguments(run).device)
        run = replace(run, action=choice[0], checkpoint=choice[1])
    return run
