"""Attention entropies during the training of any model, for TensorBoard."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import TrainerControl, TrainerState, TrainingArguments

from aero.models import entropies
from aero.train.loss_log import LossLogCallback
from aero.train.tensorboard import TensorBoardFile, entropy_scalars

__all__ = ["EntropyCallback"]


class EntropyCallback(LossLogCallback):
    """Writes the attention entropies of the model that a `transformers.Trainer` trains.

    Before the first step, every so many steps and after the last one the model is measured by
    `aero.entropies`, which changes neither the model nor any random state, and `entropy_scalars` go
    to TensorBoard. Models with the entropy penalty also have the parts of their loss in Trainer's
    logs: `lm_loss` and `entropy_loss` next to `loss`, `eval_lm_loss` and `eval_entropy_loss` next
    to `eval_loss`. The `report_to` of `Trainer` decides its own reports, to W&B too.

    Args:
        batch: the tokens to look at, as for `aero.entropies`; the same each time.
        every_steps: distance of measurements, optimizer steps.
        folder: of the TensorBoard file; default ``$TENSORBOARD_LOGGING_DIR``, which `Trainer` uses
            too, or ``OUTPUT_DIR/runs/entropy``.

    Attributes:
        scalars: of the last measurement, by name.

    Example:
        >>> from transformers.training_args import TrainingArguments
        >>> from aero import EntropyCallback
        >>> import tempfile, torch
        >>> from transformers import GPT2Config, GPT2LMHeadModel, Trainer
        >>> model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=8, vocab_size=9))
        >>> rows = torch.arange(8).repeat(4, 1)
        >>> callback = EntropyCallback(rows, every_steps=1)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     arguments = TrainingArguments(folder, max_steps=1, report_to=[], disable_tqdm=True)
        ...     data = [{"input_ids": row, "labels": row} for row in rows]
        ...     trainer = Trainer(model, arguments, train_dataset=data, callbacks=[callback])
        ...     _ = trainer.train()  # doctest: +ELLIPSIS
        {'train_runtime': ...}
        >>> sorted(callback.scalars)[-1]
        'entropy/layer_1/mean'
    """

    def __init__(
        self,
        batch: Tensor | Mapping[str, Any],
        *,
        every_steps: int = 100,
        folder: str | Path | None = None,
    ) -> None:
        super().__init__()
        if every_steps < 1:
            raise ValueError(f"EntropyCallback: every_steps must be >= 1, got {every_steps}")
        self._batch = batch
        self._every_steps = every_steps
        self._folder = folder
        self._board: TensorBoardFile | None = None
        self.scalars: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the file and measures the untrained model."""
        super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero:
            chosen = self._folder or os.environ.get("TENSORBOARD_LOGGING_DIR")
            folder = Path(chosen) if chosen else Path(str(args.output_dir), "runs", "entropy")
            self._board = TensorBoardFile(folder.expanduser(), first_step=state.global_step)
        if state.global_step == 0:
            self._measure(0, kwargs["model"])

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Measures when it is due."""
        step = state.global_step
        if step % self._every_steps == 0 or step >= state.max_steps:
            self._measure(step, kwargs["model"])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Closes the file."""
        if self._board is not None:
            self._board.close()
            self._board = None

    def _measure(self, step: int, model: Any) -> None:
        # By all processes, since the weights can be sharded over them; one writes.
        found = entropies(model, self._batch)
        self.scalars = entropy_scalars(
            found.summary().head_entropy,
            temperatures=found.temperatures,
            thresholds=found.thresholds,
        )
        if self._board is not None:
            self._board.add_scalars(step, self.scalars)
