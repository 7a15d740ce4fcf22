# ruff: noqa: RUF012 - msgspec gives every record an empty list or mapping of its own
"""report.json, format 1, as records.

Entropies are in nats, bytes are sent plus received at one party. None stands for what is unknown,
or was not finite. What has a default is missing in reports of earlier versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from aero.internals.records import Struct, as_record
from aero.internals.run_files import (
    Divergence,
    Number,
    Places,
    PositionLoss,
    Quarters,
    TextRecord,
    Whole,
)
from aero.reading import read_json

FORMAT = 1

Quantity = Literal["perplexity", "overloaded heads"]  # the heads' share


class Spread(Struct, frozen=True, kw_only=True):
    """A number over seeds."""

    mean: float
    standard_deviation: float | None  # of one seed there is none
    minimum: float | None = None
    maximum: float | None = None
    values: list[float]


class MatrixFlops(Struct, frozen=True, kw_only=True):
    """FLOPs of matrix products; of the LM head where they are counted as executed."""

    ffn: Whole
    attention: Whole
    lm_head: Whole | None = None
    total: Whole


class Flops(Struct, frozen=True):
    """FLOPs in the paper's convention, and with every product in full."""

    paper: MatrixFlops
    executed: MatrixFlops


class RunEntry(Struct, frozen=True, kw_only=True):
    """One run of a network."""

    folder: str = ""
    seed: Whole
    status: str
    ending: str | None  # None: finished
    diverged: Divergence | None = None
    divergence: str | None = None  # the same in words
    skipped_steps: Whole | None = None
    steps_done: Whole = 0
    steps_total: Whole = 0
    tokens: Whole = 0
    seconds: float | None = None
    evaluated: bool = False
    windows: str | None = None
    loss: Number = None
    perplexity: Number = None
    bits_per_byte: Number = None
    documents: Whole | None = None
    perplexity_interval: tuple[Number, Number] | None = None  # 95 %, over documents
    evaluated_tokens: Whole | None = None
    analyzed: bool = False


class ContextUse(Struct, frozen=True):
    """Losses by tokens of context and on repeated bigrams, means over seeds."""

    by_position: list[PositionLoss]
    repeated: Number
    new: Number


class EntropyEntry(Struct, frozen=True, kw_only=True):
    """Entropies: means over seeds; the named heads are those of one seed."""

    mean: Number = None
    mean_normalized_context: Number = None  # by log T
    mean_normalized_visible: Number = None  # by log(i + 1)
    quarters: Quarters
    overloaded_share: dict[str, float] = {}  # of log T, by seed
    seeds: Whole = 1
    seed_of_named_heads: Whole | None = None
    max_entropy: Number = None
    observed_max: Number = None
    collapsed: Places = []
    overloaded: Places = []
    collapsed_log_context: Places = []
    overloaded_log_context: Places = []
    nan_heads: Places = []


class Range(Struct, frozen=True, kw_only=True):
    """Learned numbers of a network."""

    mean: Number
    standard_deviation: Number
    minimum: Number
    maximum: Number


class TemperatureEntry(Struct, frozen=True, kw_only=True):
    """Learned temperatures, and how many are zero or negative."""

    not_positive: Whole | None
    minimum: Number
    maximum: Number = None
    mean: Number = None


class SampleEntry(Struct, frozen=True):
    """A line of the corpus, and the network's text after it."""

    text: str
    continuation: str


class PassCost(Struct, frozen=True):
    """One private pass on one stack; the seconds are of the paper's test bed."""

    comm_bytes: float
    rounds: Whole
    seconds: float
    by_kind: dict[str, float]


class PaperRow(Struct, frozen=True, kw_only=True):
    """The paper's row of a label, GPT-2 at T = 128."""

    table: Whole
    perplexity: float | None
    diverged: bool
    comm_gigabytes: float | None
    latency_minutes: float | None


class PrivateInference(Struct, frozen=True, kw_only=True):
    """Costs by stack as trained, and of the label at GPT-2's size, which may not have it."""

    trained: dict[str, PassCost]
    gpt2: dict[str, PassCost] | None
    gpt2_one_more_layernorm: float | None  # bytes on the stack that the paper's bytes show
    paper: PaperRow | None


class NetworkEntry(Struct, frozen=True, kw_only=True):
    """All runs of one network. Spreads are over finished, evaluated runs with finite numbers."""

    name: str
    label: str = ""
    way: str = ""  # what it was annealed or continued from and taught by; empty: from nothing
    spec: dict[str, str | int | float | bool]
    parameters: Whole = 0
    parameters_in_training: Whole = 0  # with thresholds
    flops: Flops
    nonlinear_operations: str = ""  # as the paper's tables print them
    runs: list[RunEntry]
    loss: Spread | None = None
    perplexity: Spread | None
    bits_per_byte: Spread | None = None
    context: ContextUse | None = None
    entropy: EntropyEntry | None = None
    ffn_spectra: list[Mapping[str, Number] | None] | None = None  # by layer, SPECTRA
    thresholds: Range | None = None
    temperature: TemperatureEntry | None = None
    sample: SampleEntry | None = None
    private_inference: PrivateInference


class ComparisonEntry(Struct, frozen=True, kw_only=True):
    """A network against one that differs in one thing: a fraction of perplexity, or of heads."""

    network: str
    against: str
    quantity: Quantity
    difference: Number
    low: Number  # of the simultaneous 95 % interval
    high: Number
    seeds: Whole
    verdict: str  # of `aero.report.seeds` on the first: lower, higher, level, undecided, not tested


class Made(Struct, frozen=True):
    """When (UTC), by what and with which command."""

    at: str
    by: str = ""
    command: str | None = None


class Training(Struct, frozen=True, kw_only=True):
    """The sum of the runs' seconds, and their distinct settings."""

    seconds: float = 0.0
    corpora: list[TextRecord] = []
    versions: list[dict[str, str]] = []
    hardware: list[str]
    commands: list[str] = []
    git_commits: list[str] = []


class QuotedNetwork(Struct, frozen=True):
    """What is quoted of a network of another report."""

    name: str
    perplexity: Spread | None
    bits_per_byte: Spread | None
    endings: list[str]


class SeedSpread(Struct, frozen=True, kw_only=True):
    """A report over several seeds, quoted."""

    source: str
    seeds: list[Whole]
    made_at: str
    hardware: list[str]
    same_networks_and_tokens: bool
    networks: list[QuotedNetwork]


class Report(Struct, frozen=True, kw_only=True):
    """report.json."""

    format: int = FORMAT
    title: str = ""
    made: Made
    training: Training
    seeds: list[Whole]
    stacks: list[str] = []  # the first is the one that the paper's bytes show
    networks: list[NetworkEntry]
    comparisons: list[ComparisonEntry] = []
    notes: list[str] = []
    seed_spread: SeedSpread | None = None


def read_report(path: str | Path) -> Report:
    """Reads a report.json, of an earlier version too.

    Raises:
        ValueError: another format, or the file is damaged.
    """
    content = read_json(path)
    if content.get("format") != FORMAT:
        raise ValueError(f"report: {path} must be a report.json of format {FORMAT}")
    return as_record(content, Report, f"report: {path}")
