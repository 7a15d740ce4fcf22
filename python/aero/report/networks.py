"""Runs of one network over seeds: the numbers of the report's `networks` entries."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from aero.analysis.spectra import SPECTRA
from aero.architecture import ArchitectureSpec, part_names
from aero.internals.run_files import Evaluation, PositionLoss, Quarters
from aero.report.report_file import (
    ContextUse,
    EntropyEntry,
    Flops,
    MatrixFlops,
    NetworkEntry,
    Range,
    RunEntry,
    SampleEntry,
    Spread,
    TemperatureEntry,
)
from aero.report.run_costs import describe_costs
from aero.report.runs import RunRecord, divergence_text


@dataclass(frozen=True, eq=False)
class Network:
    """All runs of one architecture that came about in one way.

    Attributes:
        name: the label, with the sizes in which it differs from another network of that label, and
            with the way.
        spec: the architecture as trained.
        way: how it came about, in words; empty for random weights and text alone.
        runs: one per seed, in order of seed.
    """

    name: str
    spec: ArchitectureSpec
    way: str
    runs: tuple[RunRecord, ...]

    @property
    def shown_run(self) -> RunRecord:
        """The run whose heads are drawn: the first finished and analysed one, else the first."""
        analysed = [run for run in self.runs if run.analysis is not None]
        finished = [run for run in analysed if run.finished]
        return (finished or analysed or list(self.runs))[0]


def group_runs(runs: Sequence[RunRecord]) -> list[Network]:
    """Returns the networks of the runs, baselines first.

    Returns:
        One network per architecture and way; equal labels of different sizes are different
        networks.

    Raises:
        ValueError: two runs have the same architecture, way and seed.
    """
    groups: dict[tuple[ArchitectureSpec, str], list[RunRecord]] = {}
    for run in runs:
        same = groups.setdefault((run.spec, run.way), [])
        for other in same:
            if other.info.seed == run.info.seed:
                raise ValueError(
                    f"report: {other.folder} and {run.folder} hold the same network and seed "
                    f"({run.info.label}, seed {run.info.seed}); name one of them"
                )
        same.append(run)
    keys = sorted(groups, key=lambda key: (_reading_order(key[0]), key[1]))
    names = _distinct_names([spec for spec, _ in keys])
    return [
        Network(
            f"{name}, {way}" if way else name,
            spec,
            way,
            tuple(sorted(groups[spec, way], key=lambda run: run.info.seed)),
        )
        for name, (spec, way) in zip(names, keys, strict=True)
    ]


def _reading_order(spec: ArchitectureSpec) -> tuple[bool, int, bool, bool]:
    """LayerNorm networks first, then without norm, then the others; what adds to one after it."""
    norms = (
        "layer", "none", "foldable_channel", "foldable_scalar", "dynamic_tanh", "dynamic_erf"
    )  # fmt: skip
    has_parts = any(getattr(spec, name) != "none" for name in part_names())
    added = has_parts, spec.entropy_regularized
    return spec.shaped_attention, norms.index(spec.norm), *added


def _distinct_names(specs: Sequence[ArchitectureSpec]) -> list[str]:
    names = []
    for spec in specs:
        twins = [other.to_dict() for other in specs if other.label == spec.label]
        fields = spec.to_dict()
        differing = [name for name in fields if any(twin[name] != fields[name] for twin in twins)]
        sizes = ", ".join(f"{name} {fields[name]}" for name in differing)
        names.append(f"{spec.label} ({sizes})" if sizes else spec.label)
    return names


def spread_of(values: Iterable[float]) -> Spread | None:
    """Returns mean and spread of one number per seed; None without a number."""
    numbers = [float(value) for value in values]
    if not numbers:
        return None
    return Spread(
        mean=statistics.fmean(numbers),
        # One number has no spread, which is not the same as a spread of zero.
        standard_deviation=statistics.stdev(numbers) if len(numbers) > 1 else None,
        minimum=min(numbers),
        maximum=max(numbers),
        values=numbers,
    )


def describe_network(network: Network) -> NetworkEntry:
    """Returns one `networks` entry of report.json."""
    spec = network.spec
    judged = [run.evaluation for run in network.runs if run.finished and run.evaluation]
    paper, executed = spec.flops("paper"), spec.flops("executed")
    return NetworkEntry(
        name=network.name,
        label=spec.label,
        way=network.way,
        spec=spec.to_dict(),
        parameters=spec.parameter_count(),
        parameters_in_training=spec.parameter_count(training=True),
        flops=Flops(
            MatrixFlops(ffn=paper.ffn, attention=paper.attention, total=paper.total),
            MatrixFlops(
                ffn=executed.ffn,
                attention=executed.attention,
                lm_head=executed.lm_head,
                total=executed.total,
            ),
        ),
        nonlinear_operations=str(spec.nonlinear_operations()),
        runs=[_describe_run(run) for run in network.runs],
        **{
            name: spread_of(value for one in judged if (value := getattr(one, name)) is not None)
            for name in ("loss", "perplexity", "bits_per_byte")
        },
        context=_describe_context(judged),
        entropy=_describe_entropy(network),
        ffn_spectra=_describe_spectra(network),
        thresholds=_describe_thresholds(network),
        temperature=_describe_temperature(network),
        sample=_describe_sample(network),
        private_inference=describe_costs(spec),
    )


def _describe_run(run: RunRecord) -> RunEntry:
    info = run.info
    evaluation = run.evaluation or Evaluation()
    return RunEntry(
        folder=run.folder.name,
        seed=info.seed,
        status=info.status,
        ending=run.ending,
        diverged=info.diverged,
        divergence=divergence_text(info.diverged) if info.diverged else None,
        skipped_steps=info.skipped_steps,
        steps_done=info.steps_done,
        steps_total=info.steps_total,
        tokens=run.tokens,
        seconds=info.seconds,
        evaluated=run.evaluation is not None,
        windows=evaluation.windows if run.evaluation else None,
        loss=evaluation.loss,
        perplexity=evaluation.perplexity,
        bits_per_byte=evaluation.bits_per_byte,
        documents=evaluation.documents,
        perplexity_interval=evaluation.perplexity_interval,
        evaluated_tokens=evaluation.tokens,
        analyzed=run.analysis is not None,
    )


def _describe_context(evaluations: Sequence[Evaluation]) -> ContextUse | None:
    """Losses by tokens of context and on repeated bigrams, means over seeds."""
    found = [one.context for one in evaluations if one.context is not None]
    if not found:
        return None
    ranges = [(part.first, part.last) for part in found[0].by_position]
    losses = [[part.loss for part in one.by_position] for one in found]
    return ContextUse(
        [
            PositionLoss(first, last, _mean_of_known(values))
            for (first, last), values in zip(ranges, zip(*losses, strict=True), strict=True)
        ],
        repeated=_mean_of_known(one.repeated.loss for one in found),
        new=_mean_of_known(one.new.loss for one in found),
    )


def _mean_of_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


_OF_ONE_SEED = (
    "max_entropy",
    "observed_max",
    "collapsed",
    "overloaded",
    "collapsed_log_context",
    "overloaded_log_context",
    "nan_heads",
)


def _describe_entropy(network: Network) -> EntropyEntry | None:
    """Quarter shares are means over seeds; named heads are those of the shown run."""
    analysed = [run for run in network.runs if run.finished and run.analysis]
    analyses = [run.analysis.values for run in analysed if run.analysis]
    shown = network.shown_run.analysis
    if shown is None:
        return None
    analyses = analyses or [shown.values]
    quarters = Quarters(
        **{
            name: np.mean([getattr(one.quarters, name) for one in analyses], axis=0).tolist()
            for name in Quarters.__struct_fields__
        }
    )
    return EntropyEntry(
        mean=_finite_mean([one.head_entropy for one in analyses]),
        mean_normalized_context=_finite_mean(
            [one.head_entropy_normalized_context for one in analyses]
        ),
        mean_normalized_visible=_finite_mean(
            [one.head_entropy_normalized_visible for one in analyses]
        ),
        quarters=quarters,
        # By seed; JSON's keys are texts.
        overloaded_share={
            str(run.info.seed): values.quarters.log_context[3]
            for run, values in zip(analysed, analyses, strict=False)
        },
        seeds=len(analyses),
        seed_of_named_heads=network.shown_run.info.seed,
        **{name: getattr(shown.values, name) for name in _OF_ONE_SEED},
    )


def _describe_spectra(network: Network) -> list[Mapping[str, float | None] | None] | None:
    """Means over seeds by layer; None for a layer without activation, or without an analysis."""
    found = [run.analysis.values.ffn_spectra for run in network.runs if run.analysis]
    layers = list(zip(*filter(None, found), strict=True))
    return [
        {name: _mean_of_known(values.get(name) for values in seeds if values) for name in SPECTRA}
        if all(seeds)
        else None
        for seeds in layers
    ] or None


def _describe_sample(network: Network) -> SampleEntry | None:
    sample = network.shown_run.sample
    return None if sample is None else SampleEntry(sample.text, sample.continuation)


def _describe_thresholds(network: Network) -> Range | None:
    analysis = network.shown_run.analysis
    values = analysis.values.thresholds if analysis else None
    if values is None:
        return None
    thresholds = np.asarray(values, dtype=np.float64)
    finite = thresholds[np.isfinite(thresholds)]
    if not finite.size:
        return Range(mean=None, standard_deviation=None, minimum=None, maximum=None)
    return Range(
        mean=float(finite.mean()),
        standard_deviation=float(finite.std()),
        minimum=float(finite.min()),
        maximum=float(finite.max()),
    )


def _describe_temperature(network: Network) -> TemperatureEntry | None:
    analysis = network.shown_run.analysis
    if analysis is None or analysis.values.temperature is None:
        return None
    values, learned = analysis.values.temperature, analysis.arrays.get("temperature")
    return TemperatureEntry(
        not_positive=None if learned is None else int((learned <= 0).sum()),
        minimum=values.minimum,
        maximum=values.maximum,
        mean=_finite_mean([values.mean_by_head]),
    )


def _finite_mean(nested: list[Any]) -> float | None:
    array = np.asarray(nested, dtype=np.float64)
    finite = array[np.isfinite(array)]
    return float(finite.mean()) if finite.size else None
