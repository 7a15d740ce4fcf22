"""The work between the steps of a run: records, validation, checkpoints, NaN watch, stopping.

Letters: L layers, B windows, H heads, T tokens per window.
"""

from __future__ import annotations

import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aero.internals.run_files import CheckpointState, Divergence
from aero.models import AeroForCausalLM
from aero.nn import FoldableNorm
from aero.nn.linear import in_mode
from aero.train.data.prepared_data import PreparedData
from aero.train.data.windows import validation_windows
from aero.train.divergence import NO_PLACE, NonFinite, find_first_non_finite
from aero.train.progress import StopRequest
from aero.train.recipes.recipe import Recipe
from aero.train.runs.perplexity import HeldOutLoss, measure_loss
from aero.train.runs.recorder import RECORDED_TOKENS, RunRecorder, watched_spectra
from aero.train.runs.run_folder import RunFolder, checkpoint_step
from aero.train.trainer import AeroTrainer


class RunCallback(TrainerCallback):
    """Watches one run.

    Args:
        recipe: the settings of the run.
        data: the corpus.
        folder: the run folder.
        recorder: where records go.
        stop: the user's request to stop.
        advance: called at the end of each step, before anything is written, with the mean loss
            that was written last; an exception of it ends the training.

    Attributes:
        divergence: the first non-finite step as in `run.json`; None while all is finite.
        skipped_steps: steps that the policy `skip` or the scaling of float16's loss left out.
        trainer: set by the caller before training.
    """

    trainer: AeroTrainer

    def __init__(
        self,
        recipe: Recipe,
        data: PreparedData,
        folder: RunFolder,
        recorder: RunRecorder,
        stop: StopRequest,
        advance: Any,
    ) -> None:
        self._recipe = recipe
        self._data = data
        self._folder = folder
        self._recorder = recorder
        self._stop = stop
        self._advance = advance
        self._learning_rate = 0.0
        self._mean_loss = float("nan")
        self._buffers: list[torch.Tensor] = []
        self.divergence: Divergence | None = None
        self.skipped_steps = 0

    # --- the Trainer's events ------------------------------------------------------------------

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Records the entropies of the untrained network."""
        if state.global_step == 0 and self._recipe.logging.entropy_every_steps:
            self._record_entropies(0)

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the collection of a step's micro-batches."""
        self.trainer.micro_batches.clear()
        if self._recipe.training.nan_policy == "skip":
            # A step with NaN must not leave it in running statistics.
            self._buffers = [buffer.clone() for buffer in self._model().buffers()]

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at the gradient norm, in which every NaN and infinity of the step shows."""
        scheduler = self.trainer.lr_scheduler
        assert scheduler is not None
        self._learning_rate = float(scheduler.get_last_lr()[0])
        if bool(torch.isfinite(torch.as_tensor(self.trainer.gradient_norm))):
            return
        if self.trainer.accelerator.scaler is not None and self._recorder.losses_are_finite():
            # Only the scaled gradients overflowed: the optimizer leaves the step out by itself.
            self.skipped_steps += 1
            return
        policy = self._recipe.training.nan_policy
        if self.divergence is None:
            self.divergence = self._describe_divergence(state.global_step + 1)
            self._update_info(diverged=self.divergence)
        if policy == "continue":
            return
        # Without gradients the optimizer changes nothing: the weights stay finite.
        self._model().zero_grad(set_to_none=True)
        if policy == "skip":
            self.skipped_steps += 1
            with torch.no_grad():
                for buffer, value in zip(self._model().buffers(), self._buffers, strict=True):
                    buffer.copy_(value)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes the records that are due and tells the Trainer its next action."""
        self._advance(self._mean_loss)
        step, last = state.global_step, state.global_step >= state.max_steps
        self._recorder.finish_step()
        stopped = self.divergence is not None and self._recipe.training.nan_policy == "stop"
        if _due(step, self._recipe.logging.every_steps) or last or stopped:
            self._mean_loss = self._recorder.write_training(
                step,
                learning_rate=self._learning_rate,
                gradient_norm=float(self.trainer.gradient_norm),
            )
        if _due(step, self._recipe.logging.entropy_every_steps) or last or stopped:
            self._record_entropies(step)
        if stopped:
            control.should_training_stop = True
        else:
            if _due(step, self._recipe.evaluation.every_steps) and not last:
                self.record_validation(step, self._recipe.evaluation.tokens)
            control.should_save = _due(step, self._recipe.training.checkpoint_every_steps)
            if self._stop.agreed(args.device) and not last:
                control.should_save = control.should_training_stop = True

    def on_save(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Notes the progress and deletes checkpoints that are no longer needed."""
        control.should_save = False
        if not args.should_save:
            return
        self._folder.update(
            steps_done=state.global_step,
            seconds=self._recorder.seconds,
            skipped_steps=self.skipped_steps,
        )
        # One before the last is there to go on from where the last is damaged.
        self.delete_old_checkpoints(kept=max(2, self._recipe.training.keep_checkpoints))

    def delete_old_checkpoints(self, kept: int) -> None:
        """Deletes all checkpoints but the last ones and the last finite one."""
        finite = self.divergence and self.divergence.last_finite_checkpoint
        for checkpoint in self._folder.complete_checkpoints()[:-kept]:
            if checkpoint.relative_to(self._folder.path).as_posix() != finite:
                shutil.rmtree(checkpoint, ignore_errors=True)

    # --- records -------------------------------------------------------------------------------

    def record_validation(self, step: int, max_tokens: int | None) -> HeldOutLoss:
        """Measures the validation loss and writes it down."""
        recipe = self._recipe
        context = recipe.model.context_length
        _share_buffers(self._model())
        measured = measure_loss(
            self._model(),
            self._data.validation,
            validation_windows(self._data.validation, context, max_tokens=max_tokens),
            token_bytes=self._data.token_bytes,
            context_length=context,
            batch_tokens=recipe.evaluation.batch_tokens,
            end_mark=self._data.tokenizer.eos_token_id,
        )
        self._recorder.write_validation(step, measured, self._model().norm_discrepancy())
        return measured

    def checkpoint_state(self) -> CheckpointState:
        """Returns the state that a checkpoint needs for an exact resume."""
        return CheckpointState(
            self._recorder.state(),
            self.divergence,
            self.skipped_steps,
            [norm.discrepancy.item() for norm in self._norms()],
        )

    def restore(self, state: CheckpointState) -> None:
        """Continues from a checkpoint's state."""
        self._recorder.restore(state.recorder)
        self.divergence = state.divergence
        self.skipped_steps = state.skipped_steps
        # They are not among the weights, and the last validation may come without another step.
        for norm, value in zip(self._norms(), state.norm_discrepancies, strict=True):
            norm.discrepancy.fill_(float("nan") if value is None else value)

    def _record_entropies(self, step: int) -> None:
        tokens, context = self._data.validation, self._recipe.model.context_length
        wanted = self._recipe.logging.entropy_windows * context
        starts = validation_windows(tokens, context, max_tokens=wanted)
        ids = torch.from_numpy(tokens[starts[:, None] + np.arange(context)].astype(np.int64))
        model = self._model()
        with watched_spectra(model, most_tokens=RECORDED_TOKENS) as spectra:
            heads = head_entropies(model, ids.to(model.device))
        self._recorder.write_entropies(
            step,
            heads,
            spectra=spectra,
            temperatures=model.head_temperatures(),
            thresholds=model.head_thresholds(),
            learned=model.learned_scalars(),
        )

    def _describe_divergence(self, step: int) -> Divergence:
        spec = self._model().config.spec
        found = find_first_non_finite(
            self._model(),
            self.trainer.micro_batches,
            num_heads=spec.num_heads,
            head_dim=spec.head_dim,
        )
        found = _first_of_all_processes(found)
        checkpoints = [c for c in self._folder.complete_checkpoints() if checkpoint_step(c) < step]
        last: Path | None = checkpoints[-1] if checkpoints else None
        return Divergence(
            step=step,
            **asdict(found),
            last_finite_checkpoint=(
                None if last is None else last.relative_to(self._folder.path).as_posix()
            ),
        )

    def _update_info(self, **changes: Any) -> None:
        if self.trainer.args.should_save:
            self._folder.update(**changes)

    def _norms(self) -> list[FoldableNorm]:
        return [module for module in self._model().modules() if isinstance(module, FoldableNorm)]

    def _model(self) -> AeroForCausalLM:
        model = self.trainer.model
        inner = getattr(model, "module", model)
        assert isinstance(inner, AeroForCausalLM)
        return inner


def head_entropies(model: AeroForCausalLM, ids: torch.Tensor) -> NDArray[np.float64]:
    """Returns each head's entropy on some windows, in evaluation mode.

    Args:
        model: the network; its mode is restored.
        ids: [B, T] tokens.

    Returns:
        [L, H], nats, mean over windows and rows; not finite where a head is not.
    """
    with in_mode(model), torch.no_grad():
        entropies = model.transformer(input_ids=ids, use_cache=False).entropies
    heads = torch.stack([layer.double().mean(dim=(0, 2)) for layer in entropies])
    values: NDArray[np.float64] = heads.cpu().numpy()
    return values


def _share_buffers(model: nn.Module) -> None:
    """Gives all processes the running statistics of the first, which checkpoints hold."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def _first_of_all_processes(found: NonFinite) -> NonFinite:
    """The finding nearest the input among all processes."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return found
    gathered = [found] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, found)
    return min(gathered, key=lambda place: place.what in NO_PLACE)
