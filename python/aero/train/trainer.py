"""The Hugging Face Trainer for AERO networks.

Works with any `TrainingArguments`: weight decay spares scalars and gains, the penalty is never
counted in an evaluation, evaluation gathers losses only, and a checkpoint is whole or not there.
`training_arguments` says a recipe in the Trainer's words; what a run of ours records and when is in
`run_callback`.

Letters: B windows, T tokens per window.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset, Sampler, SequentialSampler

from aero.internals.errors import TrainingError, disk_errors, extra
from aero.models.initialization import decay_parameter_names
from aero.train.distillation import Distillation
from aero.train.entropy_callback import LossLogCallback
from aero.train.recipes.recipe import Recipe
from aero.train.runs.checkpoints import finish_checkpoint, require_whole
from aero.train.runs.planning import PlannedRun

with extra("train"):
    import accelerate as accelerate  # which Trainer asks for
    from transformers import Trainer, TrainingArguments


def training_arguments(run: PlannedRun) -> TrainingArguments:
    """Returns the Trainer's part of a planned run; `RunCallback` writes the records.

    Raises:
        TrainingError: the windows of a step cannot be shared evenly among the processes, or
            float16 is asked for without a GPU.
    """
    recipe = run.recipe
    _require_gpu_for_float16(recipe)
    micro_batch, accumulation = batch_split(recipe, int(os.environ.get("WORLD_SIZE", "1")))
    on_gpu = torch.cuda.is_available()
    cosine = recipe.schedule.shape == "cosine"
    return TrainingArguments(
        output_dir=str(run.folder.checkpoints),
        max_steps=recipe.steps,
        per_device_train_batch_size=micro_batch,
        gradient_accumulation_steps=accumulation,
        optim="adamw_torch_fused",
        learning_rate=recipe.optimizer.learning_rate,
        adam_beta1=recipe.optimizer.beta1,
        adam_beta2=recipe.optimizer.beta2,
        adam_epsilon=recipe.optimizer.epsilon,
        weight_decay=recipe.optimizer.weight_decay,
        # 0 is the Trainer's word for no clipping.
        max_grad_norm=recipe.optimizer.clip_norm or 0.0,
        lr_scheduler_type="cosine_with_min_lr" if cosine else "linear",
        lr_scheduler_kwargs={"min_lr": recipe.schedule.final_learning_rate} if cosine else {},
        warmup_steps=recipe.warmup_steps,
        seed=run.seed,
        use_cpu=not on_gpu,
        bf16=recipe.training.precision == "bfloat16",
        fp16=recipe.training.precision == "float16",
        # RunCallback decides when to write, evaluate and save.
        logging_strategy="no",
        eval_strategy="no",
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        remove_unused_columns=False,
        dataloader_pin_memory=on_gpu,
        ddp_find_unused_parameters=False,
        log_level="error",
    )


def _require_gpu_for_float16(recipe: Recipe) -> None:
    """The Trainer scales losses on GPUs alone; elsewhere it would train in float32 unsaid."""
    if recipe.training.precision == "float16" and not torch.cuda.is_available():
        raise TrainingError(
            "train: training.precision must be float32 or bfloat16 on a machine without a GPU, "
            "got float16"
        )


def batch_split(recipe: Recipe, processes: int) -> tuple[int, int]:
    """Returns windows per micro-batch and process, and micro-batches per optimizer step.

    Raises:
        TrainingError: the windows of a step cannot be shared evenly.
    """
    windows = recipe.windows_per_step
    if windows % processes:
        raise TrainingError(
            f"train: training.tokens_per_step must be a multiple of {processes} processes x "
            f"{recipe.model.context_length} tokens, got {recipe.training.tokens_per_step}"
        )
    share = windows // processes
    limit = recipe.training.micro_batch_tokens
    most = share if limit is None else max(1, limit // recipe.model.context_length)
    micro_batch = max(size for size in range(1, min(share, most) + 1) if share % size == 0)
    return micro_batch, share // micro_batch


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
        checkpoint_state: Callable[[], dict[str, Any]] | None = None,
        distillation: Distillation | None = None,
        learning_rate_factors: Mapping[str, float] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self._learning_rate_factors = dict(learning_rate_factors or {})
        self._distillation = distillation
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
        """Returns the model's loss; in training its parts are handed to `on_losses`."""
        counted = {} if num_items_in_batch is None else {"num_items_in_batch": num_items_in_batch}
        outputs = model(**inputs, **counted)
        if model.training and self._distillation is not None:
            outputs.loss = self._distillation.loss(outputs, inputs, num_items_in_batch)
        elif self.label_smoother is not None and "labels" in inputs:
            smoothed = self.label_smoother(
                outputs, inputs["labels"], shift_labels=True, num_items_in_batch=num_items_in_batch
            )
            # What the model adds, its penalty in training, stays.
            outputs.loss = outputs.loss + (smoothed - outputs.lm_loss)
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
        state = self._checkpoint_state() if self._checkpoint_state is not None else {}
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
