"""A dry run: all parts of a run but its steps, and how long those would take here.

Nothing is written; a little is timed. Data, tokenizer, first loss and steps are what a run itself
would make: a check of settings alone would let a run of days end on what its first step shows.
"""

from __future__ import annotations

import errno
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import yaml

from aero.internals.errors import TrainingError, disk_errors
from aero.internals.machine import settle_in
from aero.internals.run_files import CorpusRecord
from aero.models import AeroForCausalLM
from aero.saved.tokenizer import bytes_per_token, load_tokenizer
from aero.train.data.corpora import scan_corpus
from aero.train.data.corpus_files import CorpusSource, find_corpus
from aero.train.data.hub import downloaded_file, require_dataset
from aero.train.data.prepared_data import (
    batches_of,
    name_on_hub,
    open_prepared_data,
    prepared_folder,
    require_fitting,
    require_window,
    tokenized,
    tokenizer_for,
)
from aero.train.data.token_files import SPLITS, corpus_facts, remarks_on
from aero.train.one_run import build_model, build_trainer, require_same_corpus
from aero.train.recipes.recipe import DataSection
from aero.train.runs.checkpoints import from_whole_checkpoint
from aero.train.runs.planning import PlannedRun
from aero.train.runs.run_folder import require_unlocked
from aero.train.starting import (
    batch_split,
    first_scores_warning,
    require_tokenizer,
    score_deviations,
    teacher_of,
    training_arguments,
)

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
    parts: list[str] = []
    whole, data = 0.0, RehearsedData("", None)
    if any(run.action != "reuse" for run in plan):
        data = rehearse_data(
            recipe.data, cache_dir=cache_dir, context_length=recipe.model.context_length
        )
        parts.append(f"data: {data.found}\n")

    def say(line: str) -> None:
        parts.append(f"{line}\n")

    for planned in plan:
        require_unlocked(planned.folder.path)
        run = from_whole_checkpoint(planned, say)
        parts.append(yaml.safe_dump(run.config(), sort_keys=False, allow_unicode=True))
        steps_left = 0 if run.action == "reuse" else run.recipe.steps - run.steps_done
        tokens = steps_left * run.recipe.training.tokens_per_step
        seconds = 0.0
        if run.action != "reuse":
            seconds = tokens * _seconds_of_a_token(run, data, say)
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


def _seconds_of_a_token(run: PlannedRun, data: RehearsedData, say: Callable[[str], None]) -> float:
    """Makes the checks of a run's start, says what it would warn of, and times its steps."""
    _require_writable(run.folder.path)
    if run.checkpoint is not None and data.corpus is not None:
        require_same_corpus(run.folder, data.corpus)
    model = rehearse_run(run, data.tokenizer)
    warning = _first_scores(run, model)
    if warning is not None:
        say(f"{run.name}: {warning}")
    return _timed(run, model)


def _first_scores(run: PlannedRun, model: AeroForCausalLM) -> str | None:
    """The warning of a run that begins with random weights, if there is one."""
    if run.source is not None or run.checkpoint is not None:
        return None
    ids = torch.randint(run.spec.vocab_size, (1, run.spec.context_length), device=model.device)
    return first_scores_warning(model, score_deviations(model, ids))


def _require_writable(folder: Path) -> None:
    """Raises `TrainingError` where a run could not make a folder, or write into it."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    number = 0 if os.access(there, os.W_OK | os.X_OK) else errno.EACCES
    number = number if there.is_dir() else errno.ENOTDIR
    if number:
        with disk_errors("the run", folder, "run the same command again"):
            raise OSError(number, os.strerror(number))


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


class RehearsedData(NamedTuple):
    """A corpus as a dry run knows it.

    Attributes:
        found: in words, with a line for each thing that a training leaves out.
        tokenizer: None where the corpus is still to be downloaded and its tokenizer to be trained.
        corpus: the part of a run's record of its corpus that is known.
    """

    found: str
    tokenizer: PreTrainedTokenizerFast | None
    corpus: CorpusRecord | None = None


def rehearse_data(
    data: DataSection, *, cache_dir: str | Path, context_length: int
) -> RehearsedData:
    """Reads a corpus and its tokenizer as a run does, and keeps nothing.

    A corpus that an earlier run prepared is opened, its files compared with its manifest. Another
    one is read and split, and its tokenizer trained; of its text as much is tokenized as shows that
    both splits suffice. A hub dataset that was never downloaded is asked for, not read.

    Args:
        data: the recipe's section.
        cache_dir: where prepared corpora are.
        context_length: T.

    Raises:
        TrainingError: as `prepare_data` would raise.
    """
    cache, hub_name = Path(cache_dir), name_on_hub(data.source)
    path = downloaded_file(hub_name, cache / "hub") if hub_name else data.source
    if hub_name and not Path(path).is_file():
        return _not_downloaded(hub_name, data)
    source = find_corpus(path)
    folder = prepared_folder(source, data, cache)
    if not (folder / "manifest.json").is_file():
        _require_writable(folder)
        return _read(source, data, context_length)
    prepared = open_prepared_data(folder, context_length=context_length)
    found = f"{len(prepared.train):,} tokens for training in {folder}"
    return RehearsedData(_lines(found, prepared.remarks), prepared.tokenizer, prepared.record())


def _not_downloaded(name: str, data: DataSection) -> RehearsedData:
    require_dataset(name)
    tokenizer = None
    if data.tokenizer != "train":
        tokenizer = load_tokenizer(data.tokenizer)
        require_fitting(tokenizer, data)
        bytes_per_token(tokenizer)
    return RehearsedData(f"{name} on the hub, to be downloaded; its text was not read", tokenizer)


def _read(source: CorpusSource, data: DataSection, context_length: int) -> RehearsedData:
    scan = scan_corpus(source, data.validation_fraction, data.split_by)
    with tempfile.TemporaryDirectory(prefix="aero-dry-run-") as folder:
        tokenizer = tokenizer_for(scan, data, Path(folder) / "tokenizer", context_length)
    counts = dict.fromkeys(SPLITS, 0)
    wanted = (p for p in scan.pieces() if counts[SPLITS[p.validation]] <= context_length)
    for batch in batches_of(wanted):
        for piece, tokens in tokenized(tokenizer, batch):
            counts[SPLITS[piece.validation]] += len(tokens)
        if min(counts.values()) > context_length:
            break
    for split, count in counts.items():
        require_window(split, source.place, count, context_length)
    facts = corpus_facts(scan, data)
    known = CorpusRecord(
        name=facts.name,
        version=facts.version,
        sha256=facts.sha256,
        copied_share=facts.copied_share,
    )
    found = f"{len(source.files):,} files of {source.bytes:,} bytes in {source.place}"
    remarks = remarks_on(facts, len(tokenizer))
    return RehearsedData(_lines(f"{found}, to be tokenized", remarks), tokenizer, known)


def _lines(found: str, remarks: Sequence[str]) -> str:
    return "\ndata: ".join([found, *remarks])


def rehearse_run(run: PlannedRun, tokenizer: PreTrainedTokenizerFast | None) -> AeroForCausalLM:
    """Builds network, teacher and optimizer of a run, and looks at the loss of random tokens.

    Args:
        run: as planned.
        tokenizer: of its corpus; None if it is not known yet.

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
