"""Attention entropies and the parts of the loss during the training of any model; TensorBoard.

Letters: L layers, H heads, T positions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from aero.analysis.statistics import quarter_shares
from aero.internals.errors import extra
from aero.models import entropies

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

_PARTS = ("lm_loss", "penalty_nats")


class LossLogCallback(TrainerCallback):
    """Puts `lm_loss` and `penalty_nats` next to `loss`, and `eval_lm_loss` and so on next to it.

    Both are in nats per predicted token: `penalty_nats` is the weighted penalty, as the loss has
    it. They stand in `state.log_history`, in the metrics that `evaluate` returns and in the logs
    that the callbacks behind this one get. Only models that return them have them: AERO's, and
    those of `aero.with_entropy_penalty`.
    """

    def __init__(self) -> None:
        self._watched: nn.Module | None = None
        self._sums = {"train": _Sums(), "eval": _Sums()}
        self._last: _Call | None = None
        self._logged_step = 0

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins to watch the model."""
        self._watch(kwargs["model"])

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins to watch the model, if the callback came later."""
        self._watch(kwargs["model"])
        self._logged_step = state.global_step
        self._sums["train"] = _Sums()

    def on_prediction_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts the call that was this step of an evaluation; other calls are none of ours."""
        if self._last is not None:
            self._sums["eval"].add(self._last)
            self._last = None

    def on_predict(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float],
        **kwargs: Any,
    ) -> None:
        """Forgets a prediction, which is not logged."""
        self._sums["eval"] = _Sums()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Puts the parts next to the loss of a training or evaluation log."""
        logs = {} if logs is None else logs
        evaluated = [
            name.removesuffix("_runtime")
            for name in logs
            if name.endswith("_runtime") and f"{name.removesuffix('_runtime')}_loss" in logs
        ]
        if "loss" in logs and "learning_rate" in logs:
            found = self._take("train", args, state.global_step - self._logged_step)
            self._logged_step = state.global_step
        elif evaluated and evaluated[0] != "train":
            found = self._take("eval", args, None)
            found = {f"{evaluated[0]}_{name}": value for name, value in found.items()}
        else:
            return
        logs.update(found)
        state.log_history[-1].update(found)

    def _watch(self, model: nn.Module) -> None:
        if self._watched is not model:
            self._watched = model
            model.register_forward_hook(self._see, with_kwargs=True)

    def _see(self, model: nn.Module, args: Any, kwargs: dict[str, Any], outputs: Any) -> None:
        if getattr(outputs, "lm_loss", None) is None:
            return
        parts = {name: getattr(outputs, name, None) for name in _PARTS}
        call = _Call(
            {name: part.detach().double() for name, part in parts.items() if part is not None},
            rows=1 if model.training else len(outputs.logits),
            is_counted=kwargs.get("num_items_in_batch") is not None,
        )
        if model.training:
            self._sums["train"].add(call)
        else:
            self._last = call

    def _take(self, kind: str, args: TrainingArguments, steps: int | None) -> dict[str, float]:
        sums, self._sums[kind] = self._sums[kind], _Sums()
        if not sums.parts:
            return {}
        total = torch.stack([*sums.parts.values()])
        total = torch.cat([total, total.new_tensor([sums.rows])])
        processes = 1
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(total)
            processes = torch.distributed.get_world_size()
        *parts, rows = total.tolist()
        # Losses that are divided by the tokens of a whole step add up to the step's.
        divisor = steps * processes if sums.is_counted and steps is not None else rows
        if sums.is_counted and args.average_tokens_across_devices:
            divisor /= processes
        if not divisor:
            return {}
        return {name: part / divisor for name, part in zip(sums.parts, parts, strict=True)}


@dataclass(frozen=True)
class _Call:
    """A call's parts of the loss, the rows they count with, and whether a step's tokens divide."""

    parts: dict[str, Tensor]
    rows: int
    is_counted: bool


class _Sums:
    """Sums over calls: each part times the rows it counts with, and the rows."""

    def __init__(self) -> None:
        self.parts: dict[str, Tensor] = {}
        self.rows = 0
        self.is_counted = False

    def add(self, call: _Call) -> None:
        for name, part in call.parts.items():
            before = self.parts.get(name, torch.zeros_like(part))
            self.parts[name] = before + call.rows * part.to(before)
        self.rows += call.rows
        self.is_counted = call.is_counted


class EntropyCallback(LossLogCallback):
    """Writes the attention entropies of the model that a `transformers.Trainer` trains.

    Before the first step, every so many steps and after the last one the model is measured by
    `aero.entropies`, which changes neither the model nor any random state, and `entropy_scalars` go
    to TensorBoard. Models with the entropy penalty also have the parts of their loss in Trainer's
    logs, in nats per predicted token: ``loss = lm_loss + penalty_nats``, and `eval_lm_loss` and
    `eval_penalty_nats` next to `eval_loss`. The `report_to` of `Trainer` decides its own reports,
    to W&B too.

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
        self._board: SummaryWriter | None = None
        self.scalars: dict[str, float] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Opens the file and measures the untrained model."""
        super().on_train_begin(args, state, control, **kwargs)
        if state.is_world_process_zero:
            chosen = self._folder or os.environ.get("TENSORBOARD_LOGGING_DIR")
            folder = Path(chosen) if chosen else Path(str(args.output_dir), "runs", "entropy")
            self._board = open_board(folder.expanduser(), first_step=state.global_step)
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
            add_scalars(self._board, step, self.scalars)


def open_board(folder: str | Path, *, first_step: int = 0) -> SummaryWriter:
    """Opens an event file.

    Args:
        folder: created if missing.
        first_step: if above 0, TensorBoard drops later steps of earlier files of the folder.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """
    with extra("train"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)


def add_scalars(board: SummaryWriter, step: int, values: Mapping[str, float]) -> None:
    """Writes values of one step, and raises the error of a disk that does not take them."""
    for name, value in values.items():
        board.add_scalar(name, float(value), step)
    board.flush()


def entropy_scalars(
    head_entropy: NDArray[Any],
    *,
    temperatures: Sequence[NDArray[Any]] | None = None,
    thresholds: NDArray[Any] | None = None,
) -> dict[str, float]:
    """Means per layer, and the shares of collapsed and of overloaded heads.

    Args:
        head_entropy: [L, H], nats.
        temperatures: L arrays [H, T]; None for networks without.
        thresholds: [L, H], fractions; None for networks without.

    Returns:
        ``entropy/layer_i/mean`` in nats, ``entropy/frac_collapse`` and ``entropy/frac_overload``
        (the first and last quarter of the largest head entropy), ``aero/temperature/layer_i/mean``,
        ``.../min`` and ``.../max``, ``aero/threshold/layer_i/mean``.
    """
    finite = head_entropy[np.isfinite(head_entropy)]
    # The paper's bins: quarters of the largest head entropy.
    shares = quarter_shares(head_entropy, float(finite.max(initial=0.0)))
    scalars = {f"entropy/layer_{i}/mean": layer.mean() for i, layer in enumerate(head_entropy)}
    scalars["entropy/frac_collapse"] = shares[0]
    scalars["entropy/frac_overload"] = shares[3]
    for i, values in enumerate(temperatures or ()):
        scalars[f"aero/temperature/layer_{i}/mean"] = values.mean()
        scalars[f"aero/temperature/layer_{i}/min"] = values.min()
        scalars[f"aero/temperature/layer_{i}/max"] = values.max()
    if thresholds is not None:
        for i, layer in enumerate(thresholds):
            scalars[f"aero/threshold/layer_{i}/mean"] = layer.mean()
    return {name: float(value) for name, value in scalars.items()}
