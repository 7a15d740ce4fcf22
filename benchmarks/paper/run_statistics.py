"""The statistics of a trained cell, by name: columns of tables and subjects of claims.

Letters: L layers, H heads, T context length. "Early" and "deep" layers are the first and the last
third, rounded up. Entropies are shares of log T unless said.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero import mpc
from aero.analysis.statistics import quarter_shares
from aero.paper import PUBLIC
from aero.report.runs import RunRecord
from benchmarks.paper.cost_rows import PrivateCost, private_costs
from benchmarks.paper.training_flops import Teacher, training_flops

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class Statistic:
    """One number of a run.

    Attributes:
        heading: of its column.
        meaning: in a sentence, for the notes.
        read: takes the run's record; None where the run has no such number.
        form: `number`, `exact` (the same for every seed), `count`, `power` (of ten), `percent` or
            `yes`.
        is_ratio: spreads are relative, as of perplexities.
        margin: the smallest difference of interest; of ratios in their logarithm.
    """

    heading: str
    meaning: str
    read: Callable[[RunRecord], float | None]
    form: str = "number"
    is_ratio: bool = False
    margin: float = 0.05


def measure(name: str, record: RunRecord) -> float | None:
    """Returns a statistic of a run that ended; None where it has none."""
    return STATISTICS[name].read(record)


def head_entropies(record: RunRecord) -> _Array | None:
    """Returns [L, H] head entropies in nats: of the trained network, or the last finite record."""
    if record.analysis is not None:
        return np.asarray(record.analysis.values.head_entropy, dtype=np.float64)
    for line in reversed(record.metrics.entropy):
        heads = np.asarray(line.head_entropy, dtype=np.float64)
        if np.isfinite(heads).all():
            return heads
    return None


def learned_over_training(record: RunRecord, name: str) -> tuple[list[int], _Array] | None:
    """Returns steps and [N, L] (or [N, 1]) values of a learned scalar; None if there is none.

    Args:
        record: of the run.
        name: `alpha`, `beta` or `negative_slope`.
    """
    lines = [line for line in record.metrics.entropy if name in line.learned]
    if not lines:
        return None
    values = np.asarray([line.learned[name] for line in lines], dtype=np.float64)
    return [line.step for line in lines], values


# --- readers --------------------------------------------------------------------------------------


def _evaluated(name: str) -> Callable[[RunRecord], float | None]:
    def read(record: RunRecord) -> float | None:
        if record.info.status == "diverged":
            return math.inf
        value = getattr(record.evaluation, name, None)
        return None if value is None else float(value)

    return read


def _quarters(wanted: slice, *, of_log_context: bool = False) -> Callable[[RunRecord], Any]:
    def read(record: RunRecord) -> float | None:
        heads = head_entropies(record)
        if heads is None:
            return None
        largest = math.log(record.spec.context_length) if of_log_context else float(heads.max())
        return float(np.sum(quarter_shares(heads, largest)[wanted]))

    return read


def _thirds(values: _Array) -> tuple[_Array, _Array]:
    """The first and the last third of the layers, of [..., L]."""
    count = math.ceil(values.shape[-1] / 3)
    return values[..., :count], values[..., -count:]


def _early_minus_deep(values: _Array) -> float:
    early, deep = _thirds(values)
    return float(np.nanmean(early) - np.nanmean(deep))


def _layers(record: RunRecord) -> _Array | None:
    """[L] layerwise entropies as shares of log T."""
    heads = head_entropies(record)
    return None if heads is None else heads.mean(axis=1) / math.log(record.spec.context_length)


def _of_layers(reduce: Callable[[_Array], float]) -> Callable[[RunRecord], float | None]:
    def read(record: RunRecord) -> float | None:
        layers = _layers(record)
        return None if layers is None else float(reduce(layers))

    return read


def _fall(record: RunRecord) -> float | None:
    lines, after = record.metrics.entropy, _layers(record)
    if not lines or after is None:
        return None
    before = np.asarray(lines[0].head_entropy, dtype=np.float64).mean()
    return float(before / math.log(record.spec.context_length) - after.mean())


def _of_learned(
    name: str, reduce: Callable[[_Array], float]
) -> Callable[[RunRecord], float | None]:
    """Reduces the [N, L] values of a scalar over training."""

    def read(record: RunRecord) -> float | None:
        found = learned_over_training(record, name)
        return None if found is None else float(reduce(found[1]))

    return read


def _of_thresholds(reduce: Callable[[_Array], float]) -> Callable[[RunRecord], float | None]:
    def read(record: RunRecord) -> float | None:
        values = None if record.analysis is None else record.analysis.values.thresholds
        return None if values is None else float(reduce(np.asarray(values, dtype=np.float64)))

    return read


def _cost(way: str, read: Callable[[PrivateCost], float]) -> Callable[[RunRecord], float]:
    return lambda record: read(private_costs(record.spec)[way])


def _tokens(record: RunRecord) -> float | None:
    """None where it starts or learns from a network that does not say what it took."""
    origins = [one for one in (record.info.start, record.info.distilled_from) if one is not None]
    # One network may be both.
    spent = {origin.path: origin.tokens for origin in origins}
    known = [tokens for tokens in spent.values() if tokens is not None]
    return float(record.tokens + sum(known)) if len(known) == len(spent) else None


def _training_flops(record: RunRecord) -> float | None:
    """None where operations change by step: annealed parts, and parts that were left out."""
    if record.info.start or record.info.selected_from:
        return None
    if record.info.distilled_from is None:
        return training_flops(record.spec, record.tokens)
    teacher = _teacher(record)
    return None if teacher is None else training_flops(record.spec, record.tokens, teacher)


def _teacher(record: RunRecord) -> Teacher | None:
    """None where the run does not say what its teacher took."""
    told = record.info.distilled_from
    if told is None or told.tokens is None or told.flops_per_token is None:
        return None
    return Teacher(told.tokens, told.flops_per_token)


def _diverged(record: RunRecord) -> float | None:
    return float(record.info.status == "diverged")


def _diverged_depth(record: RunRecord) -> float | None:
    layer = None if record.info.diverged is None else record.info.diverged.layer
    return None if layer is None else layer / max(1, record.spec.num_layers - 1)


STATISTICS: dict[str, Statistic] = {
    "perplexity": Statistic(
        "perplexity", "on validation text, disjoint windows of T", _evaluated("perplexity"),
        is_ratio=True, margin=math.log(1.02),
    ),
    "bits_per_byte": Statistic(
        "bits per byte", "the same loss per byte of text", _evaluated("bits_per_byte"),
        is_ratio=True, margin=math.log(1.005),
    ),
    "diverged": Statistic("NaN", "training met a loss or gradient that is not finite", _diverged,
                          form="yes"),
    "diverged_depth": Statistic(
        "first NaN at depth", "layer of the first NaN, 0 the first and 1 the last layer",
        _diverged_depth,
    ),
    "share_lowest": Statistic(
        "0 to max/4", "share of heads in the lowest quarter of the largest observed entropy",
        _quarters(slice(0, 1)), form="percent",
    ),
    "share_middle": Statistic(
        "max/4 to 3max/4", "share of heads in the middle half of the largest observed entropy",
        _quarters(slice(1, 3)), form="percent",
    ),
    "share_highest": Statistic(
        "3max/4 to max", "share of heads in the highest quarter of the largest observed entropy",
        _quarters(slice(3, 4)), form="percent",
    ),
    "share_collapsed": Statistic(
        "collapsed", "share of heads in the lowest quarter of log T",
        _quarters(slice(0, 1), of_log_context=True), form="percent",
    ),
    "share_overloaded": Statistic(
        "overloaded", "share of heads in the highest quarter of log T",
        _quarters(slice(3, 4), of_log_context=True), form="percent",
    ),
    "mean_entropy": Statistic(
        "mean entropy / log T", "mean over all heads", _of_layers(np.mean)
    ),
    "early_entropy": Statistic(
        "early layers", "mean entropy of the first third of the layers / log T",
        _of_layers(lambda layers: float(_thirds(layers)[0].mean())),
    ),
    "deep_entropy": Statistic(
        "deep layers", "mean entropy of the last third of the layers / log T",
        _of_layers(lambda layers: float(_thirds(layers)[1].mean())),
    ),
    "second_layer_fall": Statistic(
        "first - second layer", "mean entropy / log T of the first layer minus the second's",
        _of_layers(lambda layers: float(layers[0] - layers[1])),
    ),
    "entropy_fall": Statistic(
        "fall of entropy", "mean entropy / log T before training minus after", _fall
    ),
    "largest_slope": Statistic(
        "largest slope", "largest magnitude of a learned negative slope after training",
        _of_learned("negative_slope", lambda slopes: float(np.nanmax(np.abs(slopes[-1])))),
    ),
    "early_slope_peak": Statistic(
        "early slopes, highest", "highest mean slope of the first third during training",
        _of_learned("negative_slope", lambda s: float(_thirds(s)[0].mean(axis=1).max())),
    ),
    "deep_slope_low": Statistic(
        "deep slopes, lowest", "lowest mean slope of the last third during training",
        _of_learned("negative_slope", lambda s: float(_thirds(s)[1].mean(axis=1).min())),
    ),
    "alpha_rise": Statistic(
        "alpha, deep - early", "mean alpha of the last third minus that of the first",
        _of_learned("alpha", lambda alpha: -_early_minus_deep(alpha[-1])),
    ),
    "alpha_peak": Statistic(
        "largest alpha at depth", "layer of the largest alpha, 0 the first and 1 the last layer",
        _of_learned("alpha", lambda alpha: float(alpha[-1].argmax() / max(1, alpha.shape[1] - 1))),
    ),
    "beta_fall": Statistic(
        "beta, early - deep", "mean beta of the first third minus that of the last",
        _of_learned("beta", lambda beta: _early_minus_deep(beta[-1])),
    ),
    "threshold_head_spread": Statistic(
        "thresholds in a layer", "standard deviation over the heads of a layer, mean over layers",
        _of_thresholds(lambda values: float(values.std(axis=1).mean())),
    ),
    "threshold_layer_spread": Statistic(
        "thresholds over layers", "standard deviation of the layers' means",
        _of_thresholds(lambda values: float(values.mean(axis=1).std())),
    ),
    "parameters": Statistic(
        "parameters", "of the network in training",
        lambda record: float(record.spec.parameter_count(training=True)), form="count",
    ),
    "gigabytes": Statistic(
        "GB, spu-2024", "sent by both parties in one private pass, set-up included",
        _cost("spu-2024", lambda cost: cost.gigabytes), form="exact",
    ),
    "gigabytes_blocks": Statistic(
        "GB, spu-2024, attention by blocks of 64", "the same with attention_block=64",
        lambda record: mpc.simulate(
            record.spec, stack="spu-2024", attention_block=64, **PUBLIC
        ).comm_bytes / 1e9,
        form="exact",
    ),
    "gigabytes_approximate": Statistic(
        "GB, aero-approximate",
        "the same with optimizations, for the next token only; exp is shorter, products have "
        "one-bit errors",
        _cost("aero-approximate", lambda cost: cost.gigabytes), form="exact",
    ),
    "minutes": Statistic(
        "minutes, spu-2024, fitted",
        "on the paper's machines and network, whose rates are fitted to its minutes; set-up "
        "included",
        _cost("spu-2024", lambda cost: cost.minutes), form="exact",
    ),
    "minutes_link": Statistic(
        "minutes on 100 Mbit/s and 80 ms",
        "of sending and waiting alone on the link that the paper states, nothing fitted",
        _cost("spu-2024", lambda cost: cost.link_minutes), form="exact",
    ),
    "tokens": Statistic(
        "tokens", "seen in training, with those of the networks that it starts or learns from",
        _tokens, form="count",
    ),
    "training_flops": Statistic(
        "training FLOPs", "of the matrix products as executed, a teacher's training and passes "
        "included", _training_flops, form="power",
    ),
}  # fmt: skip
