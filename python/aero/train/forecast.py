"""A dry run: all parts of a run but its steps, and how long those would take here.

Nothing is written; a little is timed.
"""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from aero.models import AeroForCausalLM
from aero.train.checkpoints import from_whole_checkpoint
from aero.train.corpora import find_corpus
from aero.train.errors import TrainingError
from aero.train.hub import downloaded_file, require_dataset
from aero.train.machine import settle_in
from aero.train.one_run import build_model, build_trainer
from aero.train.planning import PlannedRun
from aero.train.prepared_data import (
    name_on_hub,
    open_prepared_data,
    prepared_folder,
    require_fitting,
)
from aero.train.recipe import DataSection
from aero.train.run_folder import checkpoint_step
from aero.train.run_lock import require_unlocked
from aero.train.starting import require_tokenizer, teacher_of
from aero.train.tokenizer import bytes_per_token, load_tokenizer
from aero.train.trainer import batch_split, training_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# One timing must last this long to say something about a step.
_ENOUGH_SECONDS = 0.3


def forecast(plan: Sequence[PlannedRun], *, cache_dir: str | Path) -> str:
    """Returns the work of each planned run, after doing all of it but the steps.

    Args:
        plan: from `plan_runs`; nothing is trained or written.
        cache_dir: corpora and tokenizers.

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
    precision = getattr(torch, run.recipe.training.precision)
    while True:
        ids = torch.randint(vocabulary, (windows, context), device=model.device)
        for _ in range(2):  # the first one warms up
            started = time.perf_counter()
            with torch.autocast(model.device.type, precision, enabled=precision != torch.float32):
                loss = model(input_ids=ids, labels=ids).loss
            loss.backward()
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


# Weights, gradients and AdamW's two moments in float32.
_BYTES_PER_PARAMETER = 16


def rehearse_data(
    data: DataSection, *, cache_dir: str | Path, context_length: int
) -> tuple[str, PreTrainedTokenizerFast | None]:
    """Finds a corpus and reads its tokenizer.

    A corpus that an earlier run prepared is opened, its files compared with its manifest. Of
    another one the files are listed: whether their text suffices shows when it is tokenized, unless
    there is too little however it is cut. A hub dataset is asked for, not downloaded.

    Args:
        data: the recipe's section.
        cache_dir: where prepared corpora are.
        context_length: T.

    Returns:
        The data in words, and the tokenizer; None if it is still to be trained.

    Raises:
        TrainingError: as `prepare_data` would raise.
    """
    cache, hub_name = Path(cache_dir), name_on_hub(data.source)
    path = downloaded_file(hub_name, cache / "hub") if hub_name else data.source
    found = f"{hub_name} on the hub, to be downloaded"
    if hub_name and not Path(path).is_file():
        require_dataset(hub_name)
    else:
        corpus = find_corpus(path)
        folder = prepared_folder(corpus, data, cache)
        if (folder / "manifest.json").is_file():
            prepared = open_prepared_data(folder, context_length=context_length)
            return f"{len(prepared.train):,} tokens for training in {folder}", prepared.tokenizer
        found = _unread(corpus.root, corpus.files, context_length)
    if data.tokenizer == "train":
        return found, None
    tokenizer = load_tokenizer(data.tokenizer)
    require_fitting(tokenizer, data)
    bytes_per_token(tokenizer)
    return found, tokenizer


def _unread(root: Path, names: tuple[str, ...], context_length: int) -> str:
    size = sum((root / name).stat().st_size for name in names)
    for name in names:
        if not os.access(root / name, os.R_OK):
            raise TrainingError(f"train: cannot read {root / name}: Permission denied")
    # A token is at least a byte, a text has one mark at its end, and each split needs T + 1 tokens.
    if size + len(names) < 2 * (context_length + 1):
        raise TrainingError(
            f"train: {root} must hold more than two windows of {context_length} tokens, got "
            f"{size:,} bytes; use a larger corpus or a smaller model.context_length"
        )
    return f"{len(names):,} files of {size:,} bytes in {root}, to be tokenized"


def rehearse_run(run: PlannedRun, tokenizer: PreTrainedTokenizerFast | None) -> AeroForCausalLM:
    """Builds network, teacher and optimizer of a run, and looks at the loss of random tokens.

    Args:
        run: as planned.
        tokenizer: of its corpus; None if it is still to be trained.

    Raises:
        TrainingError: whatever a training would find wrong before its first step.
    """
    arguments = training_arguments(run)
    _require_memory(run, arguments.device)
    for origin, option in ((run.source, "--from"), (run.teacher, "--distill-from")):
        if origin is not None and tokenizer is not None:
            require_tokenizer(origin, tokenizer, option)
    model = build_model(run)
    teacher = teacher_of(run, arguments.device)
    ids = torch.randint(run.spec.vocab_size, (1, run.spec.context_length))
    with tempfile.TemporaryDirectory(prefix="aero-dry-run-") as folder:
        arguments.output_dir = folder
        trainer = build_trainer(run, model, arguments, [ids], distillation=teacher)
        trainer.create_optimizer_and_scheduler(num_training_steps=run.recipe.steps)
    model.train()
    with torch.no_grad():
        loss = float(model(input_ids=ids.to(model.device), labels=ids.to(model.device)).loss)
    if not math.isfinite(loss):
        raise TrainingError(
            f"train: {run.name} begins with a loss of {loss}; look at initializer_range, "
            "temperature_init and entropy_weight"
        )
    return model


def _require_memory(run: PlannedRun, device: torch.device) -> None:
    needed = _BYTES_PER_PARAMETER * run.spec.parameter_count(training=True)
    if device.type == "cuda":
        there = torch.cuda.get_device_properties(device).total_memory
    else:
        there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        raise TrainingError(
            f"train: {run.name} has {needed // _BYTES_PER_PARAMETER:,} parameters, which take "
            f"{needed / 1e9:,.1f} GB with gradients and moments; there are {there / 1e9:,.1f} GB"
        )
