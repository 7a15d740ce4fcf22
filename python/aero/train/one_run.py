"""One run: how its folder begins, its network, what trains it, and what is left of it."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from transformers import PrinterCallback, set_seed
from transformers.utils import logging as transformers_logging

from aero.internals.atomic_files import checksums_of, write_bytes_atomically, write_checksums
from aero.internals.errors import StopRequestedError, TrainingError
from aero.internals.machine import git_commit, hardware, package_versions
from aero.internals.records import as_dict, record_bytes
from aero.internals.run_files import Annealing, CorpusRecord, RunInfo, StartRecord, TeacherRecord
from aero.models import AeroConfig, AeroForCausalLM
from aero.train.data.prepared_data import PreparedData
from aero.train.data.windows import TrainingWindows, collate_windows
from aero.train.progress import StopRequest, is_main_process
from aero.train.run_callback import RunCallback
from aero.train.runs.checkpoints import read_checkpoint_state
from aero.train.runs.perplexity import norm_gap
from aero.train.runs.planning import PlannedRun
from aero.train.runs.recorder import RunRecorder
from aero.train.runs.run_folder import RunFolder, checkpoint_step, run_slug
from aero.train.runs.run_results import analyze_model, write_evaluation
from aero.train.schedules import AnnealingCallback, PenaltyScheduleCallback
from aero.train.starting import (
    first_scores_warning,
    require_tokenizer,
    score_deviations,
    starting_network,
    teacher_of,
    training_arguments,
    training_fields,
)
from aero.train.trainer import AeroTrainer


class OneRun:
    """Trains one network from a plan to a sealed folder.

    Args:
        run: the network to train, and its folder.
        data: the corpus.
        stop: the user's request to stop.
        advance: called once per step with the last mean loss.
        say: called with a warning about the network's first scores.
    """

    def __init__(
        self,
        run: PlannedRun,
        data: PreparedData,
        stop: StopRequest,
        advance: Callable[[float], None],
        say: Callable[[str], None],
    ) -> None:
        self._run, self._data, self._say = run, data, say
        transformers_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        for origin, option in ((run.source, "--from"), (run.teacher, "--distill-from")):
            if origin is not None:
                require_tokenizer(origin, data.tokenizer, option)
        mark = data.tokenizer.eos_token_id
        self._model = build_model(run, bos_token_id=mark, eos_token_id=mark)
        self._arguments = training_arguments(run)
        deviations = self._first_scores() if run.checkpoint is None else None
        self._distillation = teacher_of(run, self._arguments.device)
        if self._arguments.should_save:
            open_folder(run, data, deviations)
        self._recorder = RunRecorder(
            run.folder,
            device=self._arguments.device,
            tokens_per_step=run.recipe.training.tokens_per_step,
            writes=self._arguments.should_save,
            tensorboard=run.recipe.logging.tensorboard,
            first_step=run.steps_done,
        )
        self._callback = RunCallback(run.recipe, data, run.folder, self._recorder, stop, advance)

    def train(self) -> str:
        """Trains until the last step, a stop or NaN; returns how it ended."""
        run, callback = self._run, self._callback
        trainer = build_trainer(
            run,
            self._model,
            self._arguments,
            TrainingWindows(
                self._data.train,
                run.recipe.model.context_length,
                count=run.recipe.steps * run.recipe.windows_per_step,
                seed=run.seed,
            ),
            callbacks=[callback],
            on_losses=lambda *losses: self._recorder.add_losses(
                *losses, weight=self._model.config.entropy_weight
            ),
            checkpoint_state=callback.checkpoint_state,
            distillation=self._distillation,
        )
        callback.trainer = trainer
        if run.checkpoint is not None:
            callback.restore(read_checkpoint_state(run.checkpoint))
        try:
            trainer.train(resume_from_checkpoint=str(run.checkpoint) if run.steps_done else None)
            return self._ending(trainer)
        finally:
            self._recorder.close()

    def _first_scores(self) -> list[float | None]:
        """Measures them on one window and warns where random weights give none to learn from."""
        run = self._run
        ids = torch.from_numpy(self._data.train[: run.recipe.model.context_length].astype("int64"))
        deviations = score_deviations(self._model, ids[None])
        warning = None if run.source is not None else first_scores_warning(self._model, deviations)
        if warning is not None and is_main_process():
            self._say(f"{run.name}: {warning}")
        return [*deviations]

    def _ending(self, trainer: AeroTrainer) -> str:
        run, steps, broken = self._run, trainer.state.global_step, self._callback.divergence
        if broken is not None and run.recipe.training.nan_policy != "skip":
            self._seal("diverged", steps)
            return f"diverged at step {broken.step} ({broken.what})"
        if steps < run.recipe.steps:
            self._seal("interrupted", steps)
            raise StopRequestedError(
                f"{run.name} was stopped at step {steps} of {run.recipe.steps}, its checkpoint is "
                f"in {run.folder.checkpoints}; run the same command again to resume"
            )
        return self._finish(trainer, steps)

    def _finish(self, trainer: AeroTrainer, steps: int) -> str:
        """Evaluates, analyses and saves the network of the label."""
        recipe, folder = self._run.recipe, self._run.folder
        network = trainer.accelerator.unwrap_model(trainer.model)
        # Out of autocast: what is measured is what is saved, and `aero evaluate` finds the same.
        # Accelerate's own way out takes the decorators of the class's forward off too.
        for name in ("forward", "_original_forward"):
            vars(network).pop(name, None)
        if network.config.annealed_from is not None:
            from aero.conversion.annealing import finish_annealing

            trainer.model = finish_annealing(network)
        elif network.config.gated_parts is not None:
            from aero.train.selection import what_is_left

            trainer.model = what_is_left(self._run, network, writes=self._arguments.should_save)
        measured = self._callback.record_validation(steps, recipe.evaluation.final_tokens)
        model = trainer.accelerator.unwrap_model(trainer.model)
        gap = norm_gap(
            model,
            self._data,
            context_length=recipe.model.context_length,
            max_tokens=recipe.evaluation.tokens,
            batch_tokens=recipe.training.tokens_per_step,
        )
        if self._arguments.should_save:
            save_model(model, self._data, folder)
            write_evaluation(folder, measured, gap=gap)
            analyze_model(model, self._data, folder, batch_tokens=recipe.evaluation.batch_tokens)
        self._seal("finished", steps)
        trainer.accelerator.wait_for_everyone()
        skipped = self._callback.skipped_steps
        remark = f", skipped {skipped} non-finite steps" if skipped else ""
        return (
            f"perplexity {measured.perplexity:.2f} after {self._recorder.seconds:.0f} s{remark}, "
            f"in {folder.path}"
        )

    def _seal(self, status: str, steps: int) -> None:
        """Writes how the run ended; one process does."""
        if not self._arguments.should_save:
            return
        folder, callback = self._run.folder, self._callback
        if status != "interrupted":
            callback.delete_old_checkpoints(self._run.recipe.training.keep_checkpoints)
        folder.seal({"metrics.jsonl": self._recorder.metrics_sha256})
        folder.update(
            steps_done=steps,
            seconds=round(self._recorder.seconds, 3),
            skipped_steps=callback.skipped_steps,
            diverged=callback.divergence,
            status=status,
        )


def model_config(run: PlannedRun, **token_ids: int | None) -> AeroConfig:
    """Returns the configuration of a planned run's network that starts with random weights."""
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
        position_start=model.position_start,
        initializer_range=model.initializer_range,
        **token_ids,
    )


def build_model(run: PlannedRun, **token_ids: int | None) -> AeroForCausalLM:
    """Returns the network of a planned run as it is before the first step.

    The seed decides random weights; a run with a source has that network's.
    """
    set_seed(run.seed)
    if run.source is not None:
        model = starting_network(run, **token_ids)
    else:
        model = AeroForCausalLM(model_config(run, **token_ids))
    if run.recipe.selection.byte_weight:
        from aero.train.selection import with_gates_of

        model = with_gates_of(run, model)
    return model


def build_trainer(
    run: PlannedRun, model: AeroForCausalLM, arguments: Any, windows: Any, **hooks: Any
) -> AeroTrainer:
    """Returns the Trainer of a planned run."""
    recipe, rates = run.recipe, {}
    if recipe.selection.byte_weight:
        from aero.train.selection import byte_penalty, gate_rates

        penalty, rates = byte_penalty(run, model), gate_rates(run)
        hooks |= {"callbacks": [penalty, *hooks.get("callbacks", [])], "added_loss": penalty.loss}
    trainer = AeroTrainer(
        model=model,
        args=arguments,
        train_dataset=windows,
        data_collator=collate_windows,
        learning_rate_factors={
            "temperature.value": recipe.optimizer.temperature_rate,
            "entropy_threshold": recipe.optimizer.threshold_rate,
            **rates,
        },
        **hooks,
    )
    if model.config.annealed_from is not None:
        trainer.add_callback(AnnealingCallback(**asdict(recipe.annealing)))
    if run.spec.entropy_regularized:
        section = recipe.regularization
        trainer.add_callback(
            PenaltyScheduleCallback(section.entropy_weight, section.penalty_schedule)
        )
    trainer.remove_callback(PrinterCallback)
    return trainer


def open_folder(
    run: PlannedRun, data: PreparedData, deviations: list[float | None] | None = None
) -> None:
    """Writes the facts known before the first step and removes a killed process's remains.

    Args:
        run: as it is planned.
        data: its corpus.
        deviations: of its first scores, by layer; a run that resumes has them.

    Raises:
        TrainingError: the run resumes, and its corpus is another one by now.
    """
    folder = run.folder
    step, metrics_bytes = 0, 0
    if run.checkpoint is None:
        # Without run.json nothing else counts, so that a kill in between leaves no half of a run.
        (folder.path / "run.json").unlink(missing_ok=True)
        folder.checkpoints.mkdir(parents=True, exist_ok=True)
        folder.write_config(run.config())
        write_bytes_atomically(folder.path / "manifest.json", record_bytes(data.manifest))
        write_checksums(folder.path, checksums_of(folder.path, ["config.yaml", "manifest.json"]))
        shutil.rmtree(folder.tensorboard, ignore_errors=True)
    else:
        step = checkpoint_step(run.checkpoint)
        metrics_bytes = read_checkpoint_state(run.checkpoint).recorder.metrics.bytes
        require_same_corpus(folder, data.record())
        deviations = folder.info().first_score_deviations
    folder.write_info(
        RunInfo(
            status="running",
            label=run.label,
            slug=run_slug(run.label),
            seed=run.seed,
            spec=run.spec.to_dict(),
            steps_done=step,
            steps_total=run.recipe.steps,
            tokens_per_step=run.recipe.training.tokens_per_step,
            seconds=0.0,
            versions=package_versions(),
            hardware=hardware(),
            git_commit=git_commit(),
            corpus=data.record(),
            command=shlex.join(["aero", *sys.argv[1:]]),
            start=None
            if run.source is None
            else run.source.record(
                StartRecord, annealing=Annealing(**asdict(run.recipe.annealing))
            ),
            distilled_from=None
            if run.teacher is None
            else run.teacher.record(TeacherRecord, **asdict(run.recipe.distillation)),
            first_score_deviations=deviations,
        )
    )
    folder.remove_results()
    folder.remove_checkpoints_after(step)
    folder.truncate_metrics(metrics_bytes)


def require_same_corpus(folder: RunFolder, corpus: CorpusRecord) -> None:
    """Raises `TrainingError` if a run's corpus has other values than those that are known here."""
    there = folder.info().corpus or CorpusRecord()
    known = {name: value for name, value in as_dict(corpus).items() if value is not None}
    names = ", ".join(
        name
        for name, value in known.items()
        if name not in ("folder", "remarks") and getattr(there, name) != value
    )
    if names:
        raise TrainingError(
            f"train: {folder.path} was trained on another corpus ({names} differ); put the old one "
            "back, or choose another --output"
        )


def save_model(model: Any, data: PreparedData, folder: RunFolder) -> None:
    """Puts the trained network, its tokenizer and their checksums into `model`, all or nothing."""
    partial = folder.path / "model.partial"
    model.save_pretrained(partial)
    data.tokenizer.save_pretrained(partial)
    write_checksums(partial, checksums_of(partial))
    partial.replace(folder.model)
