"""Training, from a plan to finished run folders."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch.distributed import broadcast_object_list
from transformers import PrinterCallback, set_seed
from transformers.utils import logging as transformers_logging

from aero.conversion.annealing import finish_annealing
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.annealing_callback import AnnealingCallback
from aero.train.checkpoints import from_whole_checkpoint, read_checkpoint_state
from aero.train.errors import StopRequestedError, disk_errors
from aero.train.first_scores import first_scores_warning, score_deviations
from aero.train.machine import settle_in
from aero.train.norm_gap import norm_gap
from aero.train.penalty_schedule import PenaltyScheduleCallback
from aero.train.planning import PlannedRun, with_action
from aero.train.prepared_data import PreparedData, prepare_data
from aero.train.progress import is_main_process, progress_bar
from aero.train.recorder import RunRecorder
from aero.train.run_callback import RunCallback
from aero.train.run_folder import checkpoint_step, finite_or_null
from aero.train.run_lock import locked, require_unlocked
from aero.train.run_opening import open_folder, save_model
from aero.train.run_results import analyze_model, write_evaluation
from aero.train.starting import (
    require_tokenizer,
    starting_network,
    teacher_of,
    training_fields,
)
from aero.train.stopping import StopRequest
from aero.train.trainer import AeroTrainer
from aero.train.trainer_settings import training_arguments
from aero.train.windows import TrainingWindows, collate_windows

__all__ = ["build_model", "build_trainer", "model_config", "train_runs"]


def train_runs(plan: Sequence[PlannedRun], *, cache_dir: str | Path, say: Any = print) -> None:
    """Trains, resumes or reuses each planned run in turn, with one progress bar over all.

    Args:
        plan: what `plan_runs` returned.
        cache_dir: corpora and tokenizers.
        say: called with a line of text about each run: what becomes of it, and how it ended.

    Raises:
        TrainingError: bad data, a full disk.
        StopRequestedError: Ctrl-C or SIGTERM; a checkpoint was written.
    """
    todo = [run for run in plan if run.action != "reuse"]
    for run in plan:
        if run.action == "reuse":
            say(_reused(run))
    if not todo:
        return
    for run in todo if is_main_process() else []:
        require_unlocked(run.folder.path)
    settle_in(todo[0].recipe.training.threads)
    data = prepare_data(
        todo[0].recipe.data,
        cache_dir=cache_dir,
        context_length=todo[0].recipe.model.context_length,
    )
    done = sum(map(_steps_done, todo))
    total = sum(run.recipe.steps for run in todo)
    with StopRequest() as stop, progress_bar("training", total, "step", initial=done) as bar:
        for number, planned in enumerate(todo, start=1):
            if stop.requested:
                raise StopRequestedError(f"stopped before {planned.name}; run the command again")
            bar.set_description(f"[{number}/{len(todo)}] {planned.name}", refresh=False)
            expected = bar.n + planned.recipe.steps - _steps_done(planned)

            with locked(planned.folder.path) if is_main_process() else nullcontext(int) as held:

                def advance(loss: float, require_held: Callable[[], object] = held) -> None:
                    require_held()
                    if not math.isnan(loss):
                        bar.set_postfix_str(f"loss {loss:.3f}", refresh=False)
                    bar.update(1)

                run = _as_it_is_now(planned, say)
                if run.checkpoint is not None and is_main_process():
                    say(f"{run.name}: resuming from {run.checkpoint}")
                with disk_errors("the run", run.folder.path, "run the same command again"):
                    ending = (
                        _reused(run)
                        if run.action == "reuse"
                        else f"{run.name}: {_train_one(run, data, stop, advance, say)}"
                    )
            # A run that diverged leaves less to do.
            bar.total = total = round(total - (expected - bar.n))
            if is_main_process():
                bar.clear()
                say(ending)


def _reused(run: PlannedRun) -> str:
    return f"{run.name}: reusing the {run.folder.info()['status']} run in {run.folder.path}"


def _as_it_is_now(run: PlannedRun, say: Any) -> PlannedRun:
    """The run by what its folder holds now that nobody else writes there.

    Under `torchrun` the first process decides: it alone has the lock.
    """
    if is_main_process():
        run = from_whole_checkpoint(with_action(run), say)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        choice: list[Any] = [run.action, run.checkpoint]
        # Asking for the device joins the processes.
        broadcast_object_list(choice, src=0, device=training_arguments(run).device)
        run = replace(run, action=choice[0], checkpoint=choice[1])
    return run


def model_config(run: PlannedRun, **token_ids: int | None) -> AeroConfig:
    """Returns the configuration of a planned run's network that starts with random weights.

    Args:
        run: label, sizes and regularization.
        **token_ids: `bos_token_id` and the like.

    Example:
        >>> from aero.train.runs import model_config
        >>> from aero.train import load_recipe, plan_runs
        >>> (run,) = plan_runs(load_recipe("demo"), ["SM+R"], [0], output="runs")
        >>> model_config(run).spec.label
        'SM+R'
    """
    model, regularization = run.recipe.model, run.recipe.regularization
    scales = {
        "none": 1.0,
        "sqrt_width": math.sqrt(run.spec.width),
        "unit": 1.0 / model.initializer_range,
    }
    return AeroConfig.from_spec(
        run.spec,
        **training_fields(run.recipe),
        temperature_init=regularization.temperature_init,
        temperature_parametrization=regularization.temperature_parametrization,
        embedding_scale=scales[model.embedding_scale],
        initializer_range=model.initializer_range,
        **token_ids,
    )


def build_model(run: PlannedRun, **token_ids: int | None) -> AeroForCausalLM:
    """Returns the network of a planned run as it is before the first step.

    The seed decides random weights; a run with a source has that network's.
    """
    set_seed(run.seed)
    if run.source is not None:
        return starting_network(run, **token_ids)
    return AeroForCausalLM(model_config(run, **token_ids))


def build_trainer(
    run: PlannedRun, model: AeroForCausalLM, arguments: Any, windows: Any, **hooks: Any
) -> AeroTrainer:
    """Returns what trains a planned run.

    Args:
        run: recipe and label.
        model: what `build_model` returned.
        arguments: what `training_arguments` returned.
        windows: the training set.
        **hooks: of `AeroTrainer`.
    """
    recipe = run.recipe
    trainer = AeroTrainer(
        model=model,
        args=arguments,
        train_dataset=windows,
        data_collator=collate_windows,
        learning_rate_factors={
            "temperature.value": recipe.optimizer.temperature_rate,
            "entropy_threshold": recipe.optimizer.threshold_rate,
        },
        **hooks,
    )
    if model.config.annealed_from is not None:
        trainer.add_callback(AnnealingCallback(**asdict(recipe.annealing)))
    if run.spec.entropy_regularized:
        penalty = recipe.regularization
        trainer.add_callback(
            PenaltyScheduleCallback(penalty.entropy_weight, penalty.penalty_schedule)
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _steps_done(run: PlannedRun) -> int:
    return 0 if run.checkpoint is None else checkpoint_step(run.checkpoint)


def _train_one(
    run: PlannedRun, data: PreparedData, stop: StopRequest, advance: Any, say: Any
) -> str:
    """Trains one network; returns how it ended."""
    transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    recipe, folder = run.recipe, run.folder
    mark = data.tokenizer.eos_token_id
    for origin, option in ((run.source, "--from"), (run.teacher, "--distill-from")):
        if origin is not None:
            require_tokenizer(origin, data.tokenizer, option)
    model = build_model(run, bos_token_id=mark, eos_token_id=mark)
    arguments = training_arguments(run)
    deviations = _first_scores(run, model, data, say) if run.checkpoint is None else None
    distillation = teacher_of(run, arguments.device)
    first_step = _steps_done(run)
    if arguments.should_save:
        open_folder(run, data)
        if deviations is not None:
            folder.update({"first_score_deviations": finite_or_null(deviations)})
    recorder = RunRecorder(
        folder,
        device=arguments.device,
        tokens_per_step=recipe.training.tokens_per_step,
        writes=arguments.should_save,
        tensorboard=recipe.logging.tensorboard,
        first_step=first_step,
    )
    callback = RunCallback(recipe, data, folder, recorder, stop, advance)
    trainer = build_trainer(
        run,
        model,
        arguments,
        TrainingWindows(
            data.train,
            recipe.model.context_length,
            count=recipe.steps * recipe.windows_per_step,
            seed=run.seed,
        ),
        callbacks=[callback],
        on_losses=recorder.add_losses,
        checkpoint_state=callback.checkpoint_state,
        distillation=distillation,
    )
    callback.trainer = trainer
    if run.checkpoint is not None:
        callback.restore(read_checkpoint_state(run.checkpoint))
    try:
        trainer.train(resume_from_checkpoint=None if first_step == 0 else str(run.checkpoint))
        return _finish(run, data, trainer, callback, recorder)
    finally:
        recorder.close()


def _first_scores(
    run: PlannedRun, model: AeroForCausalLM, data: PreparedData, say: Any
) -> list[float]:
    """Measures them on one window and warns where random weights give none to learn from."""
    ids = torch.from_numpy(data.train[: run.recipe.model.context_length].astype("int64"))
    deviations = score_deviations(model, ids[None])
    warning = None if run.source is not None else first_scores_warning(model, deviations)
    if warning is not None and is_main_process():
        say(f"{run.name}: {warning}")
    return deviations


def _finish(
    run: PlannedRun,
    data: PreparedData,
    trainer: AeroTrainer,
    callback: RunCallback,
    recorder: RunRecorder,
) -> str:
    """Writes how the run ended; a finished one also gets its model, evaluation and analysis."""
    folder, steps = run.folder, trainer.state.global_step

    def end(status: str) -> None:
        if status != "interrupted":
            callback.delete_old_checkpoints(run.recipe.training.keep_checkpoints)
        folder.seal({"metrics.jsonl": recorder.metrics_sha256})
        folder.update(
            {
                "steps_done": steps,
                "seconds": round(recorder.seconds, 3),
                "skipped_steps": callback.skipped_steps,
                "diverged": callback.divergence,
                "status": status,
            }
        )

    broken = callback.divergence
    policy = run.recipe.training.nan_policy
    if broken is not None and policy != "skip":
        if trainer.args.should_save:
            end("diverged")
        return f"diverged at step {broken['step']} ({broken['what']})"
    if steps < run.recipe.steps:
        if trainer.args.should_save:
            end("interrupted")
        raise StopRequestedError(
            f"{run.name} was stopped at step {steps} of {run.recipe.steps}, its checkpoint is in "
            f"{folder.checkpoints}; run the same command again to resume"
        )
    network = trainer.accelerator.unwrap_model(trainer.model)
    if network.config.annealed_from is not None:
        # What is evaluated, analysed and saved is the network of the label, nothing else.
        trainer.model = finish_annealing(network)
    measured = callback.record_validation(steps, run.recipe.evaluation.final_tokens)
    gap = norm_gap(
        trainer.accelerator.unwrap_model(trainer.model),
        data,
        context_length=run.recipe.model.context_length,
        max_tokens=run.recipe.evaluation.tokens,
        batch_tokens=run.recipe.training.tokens_per_step,
    )
    if trainer.args.should_save:
        model = trainer.accelerator.unwrap_model(trainer.model)
        save_model(model, data, folder)
        write_evaluation(folder, measured, windows="disjoint", gap=gap)
        analyze_model(model, data, folder, batch_tokens=run.recipe.evaluation.batch_tokens)
        end("finished")
    trainer.accelerator.wait_for_everyone()
    skipped = callback.skipped_steps
    remark = f", skipped {skipped} non-finite steps" if skipped else ""
    return (
        f"perplexity {measured.perplexity:.2f} after {recorder.seconds:.0f} s{remark}, "
        f"in {folder.path}"
    )
