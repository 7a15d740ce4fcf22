"""A recipe in the words of `transformers.Trainer`."""

from __future__ import annotations

import os

import torch

from aero.internals.errors import TrainingError, extra
from aero.train.recipes.recipe import Recipe
from aero.train.runs.planning import PlannedRun

with extra("train"):
    from transformers import TrainingArguments


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
