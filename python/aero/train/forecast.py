"""The steps of a plan and their time here, estimated by timing a few of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from aero.models import AeroForCausalLM
from aero.train.checkpoints import from_whole_checkpoint
from aero.train.machine import settle_in
from aero.train.one_run import build_model
from aero.train.planning import PlannedRun
from aero.train.rehearsal import rehearse_data, rehearse_run
from aero.train.run_folder import checkpoint_step
from aero.train.run_lock import require_unlocked
from aero.train.trainer_settings import batch_split

__all__ = ["forecast"]

# One timing must last this long to say something about a step.
_ENOUGH_SECONDS = 0.3


def forecast(plan: Sequence[PlannedRun], *, cache_dir: str | Path) -> str:
    """Returns the work of each planned run, after doing all of it but the steps.

    Args:
        plan: from `plan_runs`; nothing is trained or written.
        cache_dir: corpora and tokenizers.

    Returns:
        Text for people.

    Raises:
        TrainingError: as a training would raise before its first step.
    """
    recipe = plan[0].recipe
    settle_in(recipe.training.threads)
    parts, whole, tokenizer = [], 0.0, None
    if any(run.action != "reuse" for run in plan):
        found, tokenizer = rehearse_data(
            recipe.data, cache_dir=cache_dir, context_length=recipe.model.context_length
        )
        parts.append(f"data: {found}\n")
    for planned in plan:
        require_unlocked(planned.folder.path)
        run = from_whole_checkpoint(planned, lambda line: parts.append(f"{line}\n"))
        parts.append(yaml.safe_dump(run.config(), sort_keys=False, allow_unicode=True))
        steps_left = run.recipe.steps
        if run.action == "reuse":
            steps_left = 0
        elif run.checkpoint is not None:
            steps_left -= checkpoint_step(run.checkpoint)
        tokens = steps_left * run.recipe.training.tokens_per_step
        seconds = 0.0
        if run.action != "reuse":
            model = rehearse_run(run, tokenizer)
            seconds = tokens * _timed(run, model)
        whole += seconds
        left_out = "validation" if run.teacher is None else "validation and the teacher"
        parts.append(
            f"{run.name} -> {run.folder.path}: {run.action}\n"
            f"  parameters  {run.spec.parameter_count(training=True):,}\n"
            f"  steps       {steps_left:,} of {run.recipe.steps:,}\n"
            f"  tokens      {tokens:,}\n"
            f"  time        {_duration(seconds)} (estimated without {left_out})\n"
        )
    if len(plan) > 1:
        parts.append(f"all together {_duration(whole)}")
    return "\n".join(parts)


def seconds_per_token(run: PlannedRun) -> float:
    """Times forward and backward passes on random tokens, more windows until it takes a while."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: Any = build_model(run)
    return _timed(run, model.to(device=device))


def _timed(run: PlannedRun, model: AeroForCausalLM) -> float:
    model.train()
    context, vocabulary = run.spec.context_length, run.spec.vocab_size
    most, _ = batch_split(run.recipe, processes=1)
    windows, seconds = 1, 0.0
    while True:
        ids = torch.randint(vocabulary, (windows, context), device=model.device)
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            model(input_ids=ids, labels=ids).loss.backward()
            if model.device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        if seconds > _ENOUGH_SECONDS or windows >= most:
            return seconds / (windows * context)
        windows = min(2 * windows, most)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
