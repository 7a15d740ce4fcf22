"""What a plan would do and how long it would take here, found by timing a little of it."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
import yaml

from aero.train.machine import settle_in
from aero.train.planning import PlannedRun
from aero.train.run_folder import checkpoint_step
from aero.train.runs import build_model
from aero.train.trainer_settings import batch_split

__all__ = ["forecast"]

# One timing must last this long to say something about a step.
_ENOUGH_SECONDS = 0.3


def forecast(plan: Sequence[PlannedRun]) -> str:
    """Returns the resolved configuration, size and expected duration of each planned run.

    Args:
        plan: what `plan_runs` returned; nothing is trained or written.

    Returns:
        Text for people.
    """
    settle_in(plan[0].recipe.training.threads)
    parts, whole = [], 0.0
    for run in plan:
        steps_left = run.recipe.steps
        if run.action == "reuse":
            steps_left = 0
        elif run.checkpoint is not None:
            steps_left -= checkpoint_step(run.checkpoint)
        tokens = steps_left * run.recipe.training.tokens_per_step
        seconds = tokens * seconds_per_token(run) if tokens else 0.0
        whole += seconds
        parts.append(yaml.safe_dump(run.config(), sort_keys=False, allow_unicode=True))
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
    model = build_model(run)
    model.train().to(device=device)
    context, vocabulary = run.spec.context_length, run.spec.vocab_size
    most, _ = batch_split(run.recipe, processes=1)
    windows, seconds = 1, 0.0
    while True:
        ids = torch.randint(vocabulary, (windows, context), device=device)
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            model(input_ids=ids, labels=ids).loss.backward()
            if device.type == "cuda":
                torch.cuda.synchronize()
            seconds = time.perf_counter() - started
        if seconds > _ENOUGH_SECONDS or windows >= most:
            return seconds / (windows * context)
        windows = min(2 * windows, most)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
