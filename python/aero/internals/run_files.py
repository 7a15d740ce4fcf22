# ruff: noqa: RUF012 - msgspec gives every record an empty list of its own
"""The files of a run folder, each as one record: what training writes, a report reads.

Entries that a record does not know are left out. Numbers that are not finite are written as null.
What has a default is missing in runs of earlier versions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from aero.internals.records import Meta, Struct, as_record
from aero.reading import read_json_lines

Whole = Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
Number = float | None  # null: it was not finite, or is not known
Heads = list[list[Number]]  # [L][H]
Spectra = Sequence[Mapping[str, Number] | None] | None  # by layer, see aero.analysis.spectra
Places = list[tuple[Count, Count]]  # layer and head


class TextRecord(Struct, frozen=True, kw_only=True):
    """The text of a run, as a reader elsewhere can use it."""

    name: str = ""
    version: str = ""
    sha256: str | None = None
    train_tokens: Count | None = None
    validation_tokens: Count | None = None
    validation_bytes: Count | None = None
    copied_share: float | None = None  # of long validation lines; old splits do not know it
    remarks: list[str] = []  # what a training leaves out or never uses


class CorpusRecord(TextRecord, frozen=True, kw_only=True):
    """The text of a run, and where it lies."""

    folder: str | None = None  # of the token files, on the machine that trained


class Divergence(Struct, frozen=True, kw_only=True):
    """The first step with NaN or infinity, and its place as far as it is known."""

    step: Whole
    layer: Whole | None = None
    head: Whole | None = None
    what: str | None = None
    last_finite_checkpoint: str | None = None


class OriginRecord(Struct, frozen=True, kw_only=True):
    """A trained network that a run started from or learned from."""

    path: str
    label: str | None = None
    steps: Whole | None = None
    tokens: Whole | None = None
    flops_per_token: float | None = None
    sha256: str | None = None


class Annealing(Struct, frozen=True):
    """The section `annealing` of the run's recipe."""

    schedule: str
    start_fraction: float | None = None
    end_fraction: float | None = None


class StartRecord(OriginRecord, frozen=True, kw_only=True):
    """The network that a run started from."""

    annealing: Annealing


class TeacherRecord(OriginRecord, frozen=True, kw_only=True):
    """The network that a run learned from, and the section `distillation` of its recipe."""

    temperature: float | None = None
    weight: float | None = None


class SelectionRecord(Struct, frozen=True, kw_only=True):
    """The network of a run before parts of it were chosen by their private bytes."""

    label: str
    num_heads: Count  # of the lines of metrics.jsonl


class RunInfo(Struct, frozen=True, kw_only=True, rename={"start": "from"}):
    """run.json."""

    format: int = 1
    status: str  # running, interrupted, finished or diverged
    label: str
    slug: str  # the label as it appears in names of files
    seed: Whole
    spec: dict[str, str | int | float | bool]
    steps_done: Whole
    steps_total: Whole
    tokens_per_step: Whole | None = None
    seconds: float | None = None
    versions: dict[str, str] | None = None
    hardware: str | None = None
    git_commit: str | None = None
    corpus: CorpusRecord | None = None
    diverged: Divergence | None = None
    skipped_steps: Whole | None = 0
    command: str | None = None
    start: StartRecord | None = None
    distilled_from: TeacherRecord | None = None
    selected_from: SelectionRecord | None = None
    first_score_deviations: list[Number] | None = None  # by layer


class TrainLine(Struct, frozen=True, kw_only=True, tag_field="kind", tag="train"):
    """A line of metrics.jsonl: means over the steps since the last, nats per predicted token."""

    step: Whole
    tokens: Whole | None = None
    loss: Number = None
    lm_loss: Number = None
    entropy_loss: Number = None  # the penalty before its weight
    penalty_nats: Number = None  # the penalty as the loss has it
    lr: Number = None
    grad_norm: Number = None
    seconds: Number = None


class ValidationLine(Struct, frozen=True, kw_only=True, tag_field="kind", tag="validation"):
    """A line of metrics.jsonl: a measurement on validation windows."""

    step: Whole
    loss: Number = None
    perplexity: Number = None
    bits_per_byte: Number = None
    tokens: Whole | None = None
    norm_discrepancy: Number = None


class EntropyLine(Struct, frozen=True, kw_only=True, tag_field="kind", tag="entropy"):
    """A line of metrics.jsonl: every head's entropy, nats."""

    step: Whole
    head_entropy: Heads
    nan_counts: list[Whole] = []  # by layer
    learned: Mapping[str, Sequence[Number]] = {}  # scalars of feed-forward networks, by layer
    ffn_spectra: Spectra = None
    frac_collapse: Number = None
    frac_overload: Number = None


MetricLine = TrainLine | ValidationLine | EntropyLine


class Metrics(NamedTuple):
    """metrics.jsonl by kind of line."""

    train: list[TrainLine]
    validation: list[ValidationLine]
    entropy: list[EntropyLine]

    @property
    def lines(self) -> list[MetricLine]:
        """All of them."""
        return [*self.train, *self.validation, *self.entropy]


class PositionLoss(Struct, frozen=True):
    """The loss of tokens with `first` to `last` tokens of context."""

    first: Whole
    last: Whole
    loss: Number


class CountedLoss(Struct, frozen=True):
    """A loss over so many tokens."""

    loss: Number
    tokens: Whole


class ContextLosses(Struct, frozen=True):
    """Losses by position, on bigrams seen before in a window, and on new ones."""

    by_position: list[PositionLoss]
    repeated: CountedLoss
    new: CountedLoss


class Evaluation(Struct, frozen=True, kw_only=True):
    """evaluation.json."""

    windows: str = "disjoint"
    loss: Number = None
    perplexity: Number = None
    bits_per_byte: Number = None
    tokens: Whole | None = None
    bytes: Whole | None = None
    documents: Whole | None = None
    perplexity_interval: tuple[Number, Number] | None = None  # 95 %, over documents
    document_nll: list[Number] = []
    document_tokens: list[Whole] = []
    context: ContextLosses | None = None
    norm_gap: Number = None


class Quarters(Struct, frozen=True):
    """Shares of the heads by quarter of a largest entropy, from the lowest quarter up."""

    observed_max: list[float]
    log_context: list[float]


class Temperatures(Struct, frozen=True):
    """The range of learned temperatures."""

    minimum: Number
    maximum: Number
    mean_by_head: list[Any]  # [L][H], or [L] where a layer has one
    shape: list[Whole] = []  # of a layer's


class Analysis(Struct, frozen=True, kw_only=True):
    """analysis.json, see `aero.analysis.summary.EntropySummary`."""

    head_entropy: Heads
    head_entropy_normalized_context: Heads
    head_entropy_normalized_visible: Heads
    layerwise_mean: list[Number] = []
    quarters: Quarters
    collapsed: Places = []
    overloaded: Places = []
    collapsed_log_context: Places = []
    overloaded_log_context: Places = []
    observed_max: Number = None
    max_entropy: Number = None
    context_length: Whole | None = None
    nan_counts: list[Whole] = []
    nan_heads: Places = []
    temperature: Temperatures | None = None
    thresholds: Heads | None = None
    ffn_spectra: Spectra = None


class Sample(Struct, frozen=True, kw_only=True):
    """sample.json, see `aero.train.runs.samples`."""

    format: int = 1
    text: str
    tokens: list[str]
    attention: list[list[list[list[float]]]]
    continuation: str


class MetricsMark(Struct, frozen=True):
    """How `metrics.jsonl` began when a checkpoint was written."""

    bytes: Count
    sha256: str


class RecorderState(Struct, frozen=True):
    """Partial sums of metrics."""

    sums: list[Number]
    steps: Whole
    has_entropy_loss: bool
    seconds: float
    metrics: MetricsMark


class CheckpointState(Struct, frozen=True):
    """aero_state.json of a checkpoint."""

    recorder: RecorderState
    divergence: Divergence | None
    skipped_steps: Whole
    norm_discrepancies: list[Number]


def read_metrics(path: str | Path) -> tuple[Metrics, bool]:
    """Reads `metrics.jsonl`.

    Returns:
        Its lines, and whether the last one was cut off, as a crash leaves it; it is left out.

    Raises:
        UnreadableFileError: as for `read_record`; the text names the line.
    """
    found, cut_off = read_json_lines(path)
    metrics = Metrics([], [], [])
    kinds: Any = MetricLine
    for number, value in enumerate(found, start=1):
        line = as_record(value, kinds, f"{path}, line {number}")
        getattr(metrics, line.__struct_config__.tag).append(line)
    return metrics, cut_off


class Evaluated(NamedTuple):
    """What decides whether two perplexities compare: `evaluation.json` and the text behind it."""

    name: str
    corpus: CorpusRecord | None
    context_length: int
    evaluation: Evaluation


def unequal_evaluations(runs: Iterable[Evaluated]) -> str | None:
    """Returns a sentence on two runs that were evaluated on unequal parts of one text, or None.

    A window of T tokens predicts T - 1 of them, so that another T predicts others of the same text:
    the tokens of the text that windows cover are compared, and the last window may be cut off.
    Runs without their text's checksum are compared with none.
    """
    first: dict[tuple[Any, ...], Evaluated] = {}
    for run in runs:
        corpus = run.corpus
        if run.evaluation.tokens is None or corpus is None or corpus.sha256 is None:
            continue
        text = corpus.sha256, corpus.train_tokens, corpus.validation_tokens
        other = first.setdefault(text, run)
        longest = max(run.context_length, other.context_length)
        unlike = run.evaluation.windows != other.evaluation.windows
        if unlike or abs(_covered(run) - _covered(other)) >= longest:
            return (
                f"{_measured(other)} and {_measured(run)} were evaluated on unequal parts of one "
                "text, so that their perplexities do not compare; `aero evaluate RUN` measures a "
                "run's own windows again"
            )
    return None


def _covered(run: Evaluated) -> int:
    tokens = run.evaluation.tokens or 0
    is_disjoint = run.evaluation.windows == "disjoint"
    return tokens + (tokens // max(1, run.context_length - 1) if is_disjoint else 1)


def _measured(run: Evaluated) -> str:
    return f"{run.name} ({run.evaluation.tokens:,} tokens, {run.evaluation.windows} windows)"
