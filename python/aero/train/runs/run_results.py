"""The measurements of a trained network: `evaluation.json`, `analysis.json`, `sample.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from aero.analysis.files import write_analysis
from aero.analysis.summary import EntropyAccumulator, EntropySummary
from aero.internals.atomic_files import CHECKSUM_FILE, checksums_of
from aero.internals.errors import TrainingError, disk_errors
from aero.internals.machine import settle_in
from aero.internals.records import Struct, as_record, read_record
from aero.internals.run_files import ContextLosses, Evaluation, RunInfo
from aero.models import AeroForCausalLM
from aero.nn.linear import in_mode
from aero.saved.loading import load_saved_network
from aero.train.data.prepared_data import PreparedData, open_prepared_data, prepare_data
from aero.train.data.windows import validation_windows
from aero.train.progress import LOG
from aero.train.recipes.recipe import DataSection
from aero.train.runs.perplexity import HeldOutLoss, measure_loss, norm_gap
from aero.train.runs.recorder import watched_spectra
from aero.train.runs.run_folder import RunFolder, corpus_folder
from aero.train.runs.samples import sample_of

# Enough rows for three stable digits of a head entropy.
_ANALYSIS_WINDOWS = 64
_ANALYSIS_BATCH = 4096  # tokens


class _Evaluation(Struct):
    tokens: int
    final_tokens: int | None = None


class _Training(Struct):
    tokens_per_step: int


class _Settings(Struct):
    """The settings of a run that its measurements need too."""

    data: DataSection
    evaluation: _Evaluation
    training: _Training


def settings_of(folder: RunFolder) -> _Settings:
    """Returns them from `config.yaml`."""
    return as_record(folder.config(), _Settings, str(folder.path / "config.yaml"))


def evaluate_run(
    path: str | Path,
    *,
    max_tokens: int | None = None,
    stride: int | None = None,
    batch_tokens: int = 8192,
    say: Callable[[str], None] = LOG.info,
) -> HeldOutLoss:
    """Measures a finished run's network on its validation split.

    `evaluation.json` holds the run's own evaluation, over the windows that were measured after the
    last step. A measurement of those windows is written there; one of others is only returned.

    Args:
        path: the run folder.
        max_tokens: at most this many validation tokens; None takes as many as the run's
            `evaluation.final_tokens`.
        stride: None for disjoint windows of T (as the paper), else the distance between
            overlapping ones.
        batch_tokens: tokens in one forward pass.
        say: called with a line where the result is not kept. Default: the logger `aero.train`.

    Returns:
        The loss.

    Raises:
        TrainingError: no finished run, its corpus is gone or damaged, or the result cannot be
            written.
    """
    folder = RunFolder(path)
    model, data = open_run(folder)
    own_settings = settings_of(folder)
    context = model.config.spec.context_length
    own_tokens = own_settings.evaluation.final_tokens
    try:
        starts = validation_windows(
            data.validation,
            context,
            max_tokens=own_tokens if max_tokens is None else max_tokens,
            stride=stride,
        )
    except ValueError as error:
        raise TrainingError(str(error)) from error
    measured = measure_loss(
        model,
        data.validation,
        starts,
        token_bytes=data.token_bytes,
        context_length=context,
        batch_tokens=batch_tokens,
        stride=stride,
        end_mark=data.tokenizer.eos_token_id,
        show_progress=True,
    )
    own = validation_windows(data.validation, context, max_tokens=own_tokens)
    if not np.array_equal(starts, own):
        say(_not_kept(folder, "evaluation.json", len(own)))
        return measured
    gap = norm_gap(
        model,
        data,
        context_length=context,
        max_tokens=own_settings.evaluation.tokens,
        batch_tokens=own_settings.training.tokens_per_step,
    )
    # Long measurements are at least in the error.
    found = f"perplexity {measured.perplexity:.3f}"
    with disk_errors(found, folder.path, "evaluate again", command="evaluate"):
        write_evaluation(folder, measured, gap=gap)
    return measured


def _not_kept(folder: RunFolder, name: str, windows: int) -> str:
    return (
        f"{folder.path.name}: not kept: {name} is for the run's own {windows:,} disjoint windows, "
        "over which a report compares runs"
    )


def analyze_run(
    path: str | Path,
    *,
    windows: int = _ANALYSIS_WINDOWS,
    say: Callable[[str], None] = LOG.info,
) -> EntropySummary:
    """Measures a finished run's entropies.

    Those over as many windows as after the last step, the default, are written to `analysis.json`
    and `.npz`, with `sample.json`. Entropies over other windows are only returned.

    Args:
        path: the run folder.
        windows: validation windows to average over.
        say: called with a line where the result is not kept. Default: the logger `aero.train`.

    Returns:
        The statistics.

    Raises:
        TrainingError: no finished run, or its corpus is gone or damaged.

    Example:
        >>> from aero.train import TrainingError, analyze_run
        >>> try:
        ...     analyze_run("no/such/run")
        ... except TrainingError as error:
        ...     print(str(error).partition(" (")[0])
        train: no/such/run is no run folder
    """
    folder = RunFolder(path)
    model, data = open_run(folder)
    own, asked = (_analysis_starts(model, data, count) for count in (_ANALYSIS_WINDOWS, windows))
    if not np.array_equal(asked, own):
        say(_not_kept(folder, "analysis.json", len(own)))
        return _entropies(model, data, asked, batch_tokens=_ANALYSIS_BATCH)
    with disk_errors("entropies", folder.path, "analyze again", command="analyze"):
        return analyze_model(model, data, folder)


def context_of_run(path: str | Path) -> ContextLosses | None:
    """Returns whether a run's network uses its context, from its evaluation; None if unmeasured."""
    file = RunFolder(path).path / "evaluation.json"
    return read_record(file, Evaluation).context if file.exists() else None


def validation_measure(
    data: PreparedData, *, max_tokens: int
) -> Callable[[AeroForCausalLM], float]:
    """Returns a function that gives a network's loss on validation windows, nats per token.

    It measures at most `max_tokens` tokens, the same ones each time.
    """

    def measure(model: AeroForCausalLM) -> float:
        context = model.config.spec.context_length
        return measure_loss(
            model,
            data.validation,
            validation_windows(data.validation, context, max_tokens=max_tokens),
            token_bytes=data.token_bytes,
            context_length=context,
            batch_tokens=4096,
        ).loss

    return measure


def evaluation_of(
    measured: HeldOutLoss, *, stride: int | None = None, gap: float | None = None
) -> Evaluation:
    """Returns the record of a measurement; a gap is `norm_gap`'s."""
    return Evaluation(
        windows="disjoint" if stride is None else f"stride {stride}",
        loss=measured.loss,
        perplexity=measured.perplexity,
        bits_per_byte=measured.bits_per_byte,
        tokens=measured.tokens,
        bytes=measured.bytes,
        documents=len(measured.document_nll),
        perplexity_interval=measured.perplexity_interval,
        document_nll=[*measured.document_nll],
        document_tokens=[*measured.document_tokens],
        context=measured.context.losses(),
        norm_gap=gap,
    )


def write_evaluation(folder: RunFolder, measured: HeldOutLoss, *, gap: float | None = None) -> None:
    """Writes `evaluation.json`, which is over disjoint windows."""
    folder.write_result("evaluation.json", evaluation_of(measured, gap=gap))


def analyze_model(
    model: AeroForCausalLM,
    data: PreparedData,
    folder: RunFolder,
    *,
    windows: int = _ANALYSIS_WINDOWS,
    batch_tokens: int = _ANALYSIS_BATCH,
) -> EntropySummary:
    """Writes attention entropies on validation windows, in evaluation mode, and a sample.

    Args:
        model: the trained network; its mode is restored.
        data: its corpus.
        folder: where `analysis.json` and `sample.json` go.
        windows: how many windows of T tokens.
        batch_tokens: tokens in one forward pass.
    """
    starts = _analysis_starts(model, data, windows)
    summary = _entropies(model, data, starts, batch_tokens=batch_tokens)
    with in_mode(model):
        sample = sample_of(model, data.tokenizer, data.validation)
    write_analysis(folder.path, summary)
    folder.write_result("sample.json", sample)
    folder.seal(checksums_of(folder.path, ["analysis.json", "analysis.npz"]))
    return summary


def _analysis_starts(model: AeroForCausalLM, data: PreparedData, windows: int) -> NDArray[np.int64]:
    context = model.config.spec.context_length
    return validation_windows(data.validation, context, max_tokens=windows * context)


def _entropies(
    model: AeroForCausalLM,
    data: PreparedData,
    starts: NDArray[np.int64],
    *,
    batch_tokens: int,
) -> EntropySummary:
    context = model.config.spec.context_length
    accumulator = EntropyAccumulator(context_length=context)
    batch = max(1, batch_tokens // context)
    watched = watched_spectra(model, most_tokens=batch_tokens)
    with in_mode(model), torch.no_grad(), watched as spectra:
        for first in range(0, len(starts), batch):
            positions = starts[first : first + batch, None] + np.arange(context)
            ids = torch.from_numpy(data.validation[positions].astype(np.int64)).to(model.device)
            entropies = model.transformer(input_ids=ids, use_cache=False).entropies
            accumulator.update(torch.stack(entropies).float().cpu().numpy())
    summary = accumulator.summary(
        temperatures=model.head_temperatures(), thresholds=model.head_thresholds()
    )
    return dataclasses.replace(summary, ffn_spectra=tuple(spectra))


def open_run(folder: RunFolder) -> tuple[AeroForCausalLM, PreparedData]:
    """Loads a finished run's network and corpus.

    Raises:
        TrainingError: no finished run, or its corpus is gone or damaged.
    """
    info = folder.info()
    if info.status != "finished" or not (folder.model / "config.json").is_file():
        reason = f"its status is {info.status!r}"
        if info.diverged is not None:
            reason = f"NaN at step {info.diverged.step}"
        if info.status == "finished":
            reason = "model/config.json is gone"
        raise TrainingError(
            f"{folder.path} holds no trained network ({reason}); train it to the end first"
        )
    settle_in(None)
    for path in (folder.path, folder.model):
        if not (path / CHECKSUM_FILE).is_file():
            LOG.warning("%s has no %s: its files were not compared", path, CHECKSUM_FILE)
    model: Any = load_saved_network(folder.model)
    if torch.cuda.is_available():
        model = model.cuda()
    return model, _corpus_of(folder, info, model.config.spec.context_length)


def _corpus_of(folder: RunFolder, info: RunInfo, context_length: int) -> PreparedData:
    """Opens the corpus of a run, or tokenizes it again if its files are gone."""
    tokens = corpus_folder(info, folder.path)
    if (tokens / "manifest.json").exists():
        return open_prepared_data(tokens, context_length=context_length)
    section = settings_of(folder).data
    data = prepare_data(section, cache_dir=tokens.parent, context_length=context_length)
    if info.corpus is None or data.manifest.sha256 != info.corpus.sha256:
        raise TrainingError(
            f"{folder.path}: its token files {tokens} are gone and {section.source} has changed "
            "since, so they cannot be made again; train again into another --output"
        )
    return data
