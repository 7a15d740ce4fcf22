"""The Hugging Face Trainer for AERO networks.

Works with any `TrainingArguments`: weight decay spares scalars and gains, the penalty is never
counted in an evaluation, evaluation gathers losses only, and a checkpoint is whole or not there.
`arguments` says a recipe in the Trainer's words; what a run of ours records and when is in
`run_callback`.

Letters: B windows, T tokens per window.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Sampler, SequentialSampler

from aero.internals.errors import TrainingError, disk_errors, extra
from aero.internals.run_files import CheckpointState
from aero.models.causal_lm import AeroForCausalLM
from aero.models.initialization import decay_parameter_names
from aero.models.loss import IGNORED, per_counted
from aero.train.distillation import Distillation
from aero.train.entropy_callback import LossLogCallback
from aero.train.runs.checkpoints import finish_checkpoint, require_whole

with extra("train"):
    import accelerate as accelerate  # which Trainer asks for
    from transformers import Trainer


class AeroTrainer(Trainer):
    """`transformers.Trainer` for `AeroForCausalLM`.

    Checkpoints go to `output_dir/step-N`. The training set is read in order: shuffle in the
    dataset, as `TrainingWindows` does, and the order survives a resume and does not depend on the
    number of processes. Logs have `lm_loss` and `penalty_nats` next to `loss`, in evaluation
    `eval_lm_loss` and `eval_penalty_nats`: nats per predicted token, the penalty weighted. With
    `label_smoothing_factor` the loss smooths its cross entropy and keeps the penalty; `lm_loss` is
    not smoothed.

    Args:
        *args: as `transformers.Trainer`.
        on_losses: called after each micro-batch of training with this process's share of the
            step's loss, language-model loss and penalty before its weight (None without), 0-D each.
        checkpoint_state: returns the state to store with a checkpoint; collective under `torchrun`.
        distillation: a teacher to learn from; evaluation does without it.
        learning_rate_factors: end of a parameter's name -> its learning rate over that of the
            others, such as `{"entropy_threshold": 10.0}`.
        added_loss: returns a further term of every training step's loss, 0-D, such as a price. Each
            micro-batch has the share of its predicted tokens in it.
        **kwargs: as `transformers.Trainer`.

    Raises:
        ValueError: a setting of `transformers.Trainer` that would have no effect here.

    Attributes:
        gradient_norm: of the last optimizer step, before clipping; 0-D tensor or float.
        micro_batches: inputs of the optimizer step under way.

    Example:
        >>> from aero.train import AeroTrainer
        >>> import tempfile
        >>> import numpy as np
        >>> from transformers import PrinterCallback, TrainingArguments
        >>> from aero.models import AeroConfig, AeroForCausalLM
        >>> from aero.train.data.windows import TrainingWindows, collate_windows
        >>> folder = tempfile.TemporaryDirectory()
        >>> trainer = AeroTrainer(
        ...     model=AeroForCausalLM(AeroConfig.from_label("EReg(SM(t)+ScFuFFN)", model="tiny")),
        ...     args=TrainingArguments(
        ...         folder.name, max_steps=2, use_cpu=True, report_to=[], disable_tqdm=True,
        ...         save_strategy="no", logging_strategy="no",
        ...     ),
        ...     train_dataset=TrainingWindows(np.arange(200) % 7, 16, count=16, seed=0),
        ...     data_collator=collate_windows,
        ... )
        >>> _ = trainer.remove_callback(PrinterCallback)
        >>> trainer.train().global_step
        2
    """

    def __init__(
        self,
        *args: Any,
        on_losses: Callable[[Tensor, Tensor, Tensor | None], None] | None = None,
        checkpoint_state: Callable[[], CheckpointState] | None = None,
        distillation: Distillation | None = None,
        learning_rate_factors: Mapping[str, float] | None = None,
        added_loss: Callable[[], Tensor] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._learning_rate_factors = dict(learning_rate_factors or {})
        self._distillation, self._added_loss = distillation, added_loss
        self._refuse_ignored_settings()
        self._on_losses = on_losses
        self._checkpoint_state = checkpoint_state
        self.gradient_norm: Tensor | float = 0.0
        self.micro_batches: list[dict[str, Any]] = []
        # First, so that everything that reports gets them.
        losses = LossLogCallback()
        self.callback_handler.callbacks.insert(0, losses)
        losses.on_init_end(self.args, self.state, self.control, model=self.model)

    def _refuse_ignored_settings(self) -> None:
        """What the base class would heed and this one does not."""
        args, in_order = self.args, "the training set is read in order; sort or shuffle it itself"
        by_length = args.train_sampling_strategy not in ("random", "sequential")
        ignored = {
            "compute_loss_func": (self.compute_loss_func is not None, "override compute_loss"),
            "train_sampling_strategy": (by_length, in_order),
            "data_seed": (args.data_seed is not None, in_order),
            "load_best_model_at_end": (args.load_best_model_at_end, "load output_dir/step-N"),
            "save_total_limit": (args.save_total_limit is not None, "delete output_dir/step-N"),
            "use_liger_kernel": (args.use_liger_kernel, "liger has no kernels for these networks"),
            "label_smoothing_factor": (
                self.label_smoother is not None and self._distillation is not None,
                "a teacher's logits are soft labels already",
            ),
            "learning_rate_factors": (
                bool(self._learning_rate_factors) and self.optimizer is not None,
                "give the optimizer's groups their learning rates",
            ),
        }
        for name, (is_given, way_out) in ignored.items():
            if is_given:
                raise ValueError(f"AeroTrainer: {name} must be left out: {way_out}")

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Returns the names of the parameters that decay: matrices and embeddings."""
        return decay_parameter_names(model)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Creates the base class's optimizer, with groups for parameters at other rates."""
        is_new = self.optimizer is None
        optimizer = super().create_optimizer(model)
        trained = self.model if model is None else model
        if is_new and trained is not None:
            self._split_groups(optimizer, trained)
        return optimizer

    def _split_groups(self, optimizer: Optimizer, model: nn.Module) -> None:
        for ending, factor in self._learning_rate_factors.items():
            chosen = {
                parameter for name, parameter in model.named_parameters() if name.endswith(ending)
            }
            for group in list(optimizer.param_groups) if factor != 1.0 else []:
                apart = [parameter for parameter in group["params"] if parameter in chosen]
                if apart:
                    group["params"] = [one for one in group["params"] if one not in chosen]
                    split = {**group, "params": apart, "lr": group["lr"] * factor}
                    optimizer.add_param_group(split)

    def floating_point_ops(self, inputs: dict[str, Tensor | Any]) -> int:
        """Counts nothing: the base class walks all parameters. See `ArchitectureSpec.flops`."""
        return 0

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Returns the model's loss; in training its parts are handed to `on_losses`.

        A training step has no logits, unless label smoothing, a teacher or `return_outputs` asks
        for them.
        """
        counted = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
        kept = {} if return_outputs or self._reads_logits(model) else {"logits_to_keep": None}
        outputs = model(**{**kept, **inputs}, **counted)
        if model.training and self._distillation is not None:
            outputs.loss = self._distillation.loss(outputs, inputs, num_items_in_batch)
        elif self.label_smoother is not None and "labels" in inputs:
            smoothed = self.label_smoother(
                outputs, inputs["labels"], shift_labels=True, num_items_in_batch=num_items_in_batch
            )
            # What the model adds, its penalty in training, stays.
            outputs.loss = outputs.loss + (smoothed - outputs.lm_loss)
        if model.training and self._added_loss is not None:
            share = _share_of_step(inputs["labels"], num_items_in_batch)
            outputs.loss = outputs.loss + share * self._added_loss()
        loss = outputs.loss
        if counted and self.args.average_tokens_across_devices:
            # The processes' losses add up, and data parallelism averages gradients. The base class
            # multiplies in place and so changes `lm_loss`, which can be the same tensor.
            scale = self.accelerator.num_processes // self.get_tp_size()
            loss = loss * (scale if self.args.n_gpu <= 1 else self.args.n_gpu)
        if model.training:
            self.micro_batches.append(inputs)
            if self._on_losses is not None:
                self._on_losses(outputs.loss, outputs.lm_loss, outputs.entropy_loss)
        return (loss, outputs) if return_outputs else loss

    def _reads_logits(self, model: nn.Module) -> bool:
        """True unless the loss of a training step is the network's own."""
        is_own = getattr(type(self.model), "forward", None) is AeroForCausalLM.forward
        others = self._distillation is not None or self.label_smoother is not None
        return others or not (is_own and model.training)

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Any:
        self.gradient_norm = super()._get_grad_norm(  # type: ignore[no-untyped-call]
            model, grad_norm=grad_norm
        )
        return self.gradient_norm

    def _get_train_sampler(self, train_dataset: Dataset[Any] | None = None) -> Sampler[int]:
        return SequentialSampler(self.train_dataset)  # type: ignore[arg-type]

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor | Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Keeps losses alone unless a metric needs logits, as entropies would fill memory."""
        loss_only = prediction_loss_only or self.compute_metrics is None
        return super().prediction_step(model, inputs, loss_only, ignore_keys)

    def train(
        self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Trains as the base class does, from a checkpoint whose files match their checksums.

        Raises:
            TrainingError: the checkpoint is damaged or was not finished.
        """
        if resume_from_checkpoint and not isinstance(resume_from_checkpoint, bool):
            require_whole(resume_from_checkpoint)
        return super().train(resume_from_checkpoint, *args, **kwargs)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        with _damage_named(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _damage_named(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_scaler(self, checkpoint: str | None) -> None:
        with _damage_named(checkpoint):
            super()._load_scaler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _damage_named(checkpoint):
            super()._load_rng_state(checkpoint)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        """Writes the checkpoint under the Trainer's own name and then renames it to `step-N`."""
        folder = Path(str(self.args.output_dir))
        written = folder / f"checkpoint-{self.state.global_step}"
        final = folder / f"step-{self.state.global_step}"
        way_out = "run the same command again: it resumes from the last checkpoint"
        state: object = self._checkpoint_state() if self._checkpoint_state is not None else {}
        try:
            with disk_errors(f"the checkpoint of step {self.state.global_step}", folder, way_out):
                super()._save_checkpoint(model, trial)
                # Other processes write their random states into the folder too.
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    finish_checkpoint(written, state)
                    shutil.rmtree(final, ignore_errors=True)
                    written.rename(final)
        except BaseException:
            if self.args.should_save:
                shutil.rmtree(written, ignore_errors=True)
            raise


def _share_of_step(labels: Tensor, num_items_in_batch: Tensor | int | None) -> Tensor:
    """The predicted tokens of a call over those of the step; 1 where the step is the call."""
    predicted = labels[:, 1:].ne(IGNORED).sum().float()
    return per_counted(predicted, predicted if num_items_in_batch is None else num_items_in_batch)


@contextmanager
def _damage_named(checkpoint: str | None) -> Iterator[None]:
    """Turns whatever a damaged file makes its reader say into one line with a way out."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, EOFError, UnpicklingError, SafetensorError) as error:
        raise TrainingError(
            f"train: the checkpoint {checkpoint} cannot be read ({error}); delete that folder and "
            "run the same command again: it goes on from the checkpoint before"
        ) from error
