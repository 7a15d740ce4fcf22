"""The figures of a target, by kind, from the records of its runs.

The report draws the figures that it shares, `drawings.py` the others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes

from aero.analysis import FIGURE_STYLE, plot_pareto
from aero.reading import read_yaml
from aero.report.networks import Network
from aero.report.panels import (
    draw_heat_maps,
    draw_layerwise,
    draw_losses,
    draw_quarters,
    draw_thresholds,
)
from aero.report.picture import Picture, figure_grid, shared_legend
from aero.report.runs import RunRecord
from benchmarks.paper.drawings import (
    plot_learned_scales,
    plot_learned_slopes,
    plot_nan_counts,
    plot_sweep,
    plot_thresholds_by_layer,
)
from benchmarks.paper.fronts import FrontPoint, front_of, front_points
from benchmarks.paper.run_statistics import learned_over_training, measure
from benchmarks.paper.targets import Target

# The stack whose bytes are drawn; the tables have the others, and minutes.
_WAY = "spu-2024"

Records = Mapping[str, Sequence[RunRecord]]


def draw_figures(target: Target, records: Records) -> list[Picture]:
    """Returns the figures of a target that its finished runs have data for."""
    present = {name: runs for name, runs in records.items() if runs}
    with rc_context(FIGURE_STYLE):
        drawn = [FIGURE_KINDS[kind](target, present) for kind in target.figures if present]
    return [picture for picture in drawn if picture is not None]


def _networks(records: Records) -> list[Network]:
    return [Network(name, runs[0].spec, "", tuple(runs)) for name, runs in records.items()]


def _quarters(target: Target, records: Records) -> Picture | None:
    shares: dict[str, dict[str, list[float]]] = {}
    for network in _networks(records):
        found = [run.analysis.values.quarters for run in network.runs if run.analysis]
        if found:
            shares[network.name] = {
                reference: np.mean([getattr(entry, reference) for entry in found], axis=0).tolist()
                for reference in ("observed_max", "log_context")
            }
    return draw_quarters(shares)


def _slopes(target: Target, records: Records) -> Picture | None:
    return _learned(
        records,
        "negative_slope",
        "learned_slopes",
        "Learned negative slope of leaky ReLU over training steps, first seed.",
        lambda steps, values, name, axes: plot_learned_slopes(steps, values, title=name, axes=axes),
    )


def _scales(target: Target, records: Records) -> Picture | None:
    shown = {
        name: (found, other)
        for name, runs in records.items()
        if (found := learned_over_training(runs[0], "alpha"))
        and (other := learned_over_training(runs[0], "beta"))
    }
    if not shown:
        return None
    figure, axes = figure_grid(len(shown), 3.0, 2)
    for (name, (alpha, beta)), panel in zip(shown.items(), axes, strict=True):
        plot_learned_scales(alpha[1][-1], beta[1][-1], title=name, axes=panel)
    caption = "Learned scales alpha and beta of the FFN outputs per layer after training."
    return Picture.of("learned_scales", figure, caption)


def _nan_counts(target: Target, records: Records) -> Picture | None:
    figure, axes = figure_grid(len(records), 3.0, 3, sharey=True)
    for (name, runs), panel in zip(records.items(), axes, strict=True):
        lines = runs[0].metrics.entropy
        counts = [line.nan_counts for line in lines]
        plot_nan_counts([line.step for line in lines], counts, title=name, axes=panel)
    shared_legend(figure, axes[0], 6)
    caption = "Heads with NaN in each layer over training steps, first seed."
    return Picture.of("nan_counts", figure, caption)


def _thresholds_by_layer(target: Target, records: Records) -> Picture | None:
    shown = {
        name: runs[0].analysis.values.thresholds
        for name, runs in records.items()
        if runs[0].analysis and runs[0].analysis.values.thresholds is not None
    }
    if not shown:
        return None
    figure, axes = figure_grid(len(shown), 3.0, 2)
    for (name, values), panel in zip(shown.items(), axes, strict=True):
        plot_thresholds_by_layer(np.asarray(values, dtype=np.float64), title=name, axes=panel)
    caption = "Mean and standard deviation of the learned thresholds of each layer's heads."
    return Picture.of("thresholds_by_layer", figure, caption)


def _sweep(target: Target, records: Records) -> Picture | None:
    if target.sweep is None:
        return None
    values = [_swept(target, runs[0]) for runs in records.values()]
    figure, axes = figure_grid(2, 3.2, 2)
    for panel, statistic, heading in (
        (axes[0], "perplexity", "perplexity"),
        (axes[1], "share_highest", "heads in 3max/4 to max"),
    ):
        results = [[_or_nan(measure(statistic, run)) for run in runs] for runs in records.values()]
        most = max(map(len, results))
        padded = [row + [float("nan")] * (most - len(row)) for row in results]
        plot_sweep(values, padded, xlabel=target.sweep["name"], ylabel=heading, axes=panel)
    caption = f"Perplexity and share of high heads over {target.sweep['name']}, every seed."
    return Picture.of("sweep", figure, caption)


def _front(target: Target, records: Records) -> Picture | None:
    points = front_points(records)
    budgets = [
        tokens
        for tokens in sorted({point.tokens for point in points})
        if sum(point.tokens == tokens for point in points) > 1
    ]
    if not budgets:
        return None
    fronts = {tokens: front_of(points, tokens, _WAY).names for tokens in budgets}
    best = [p for p in points if p.name in fronts.get(p.tokens, ())]
    rest = [p for p in points if p.tokens in fronts and p not in best]
    shown = [*best, *rest]  # the first have the nearest places for their names
    numbers = [str(number) for number in range(1, len(rest) + 1)]
    figure, (panel, key) = figure_grid(2, 8.2, 2, width_ratios=[2.2, 1])
    plot_pareto(
        [point.cost(_WAY, "gigabytes") for point in shown],
        [list(point.perplexities.values()) for point in shown],
        [*(point.name for point in best), *numbers],
        series=[f"{point.tokens / 1e6:.2g} million tokens" for point in shown],
        named=range(len(shown)),
        front_per_series=True,
        xlabel=f"GB of one private pass, {_WAY}",
        axes=panel,
    )
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.xaxis.set_major_formatter("{x:g}")
    panel.xaxis.set_minor_formatter("{x:g}")
    panel.yaxis.set_major_formatter("{x:.0f}")
    panel.yaxis.set_minor_formatter("{x:.0f}")
    _write_key(key, rest)
    shared_legend(figure, panel, 3)
    caption = (
        "Perplexity against the bytes of a private pass, a colour per training budget: mean over "
        "seeds with the least and the greatest. Dashed lines are the fronts of the means, whose "
        "networks have their names. The list numbers the others. Each network has its best "
        "learning rate."
    )
    return Picture.of("front", figure, caption)


def _write_key(axes: Axes, points: Sequence[FrontPoint]) -> None:
    """Lists the numbered points under their budgets."""
    axes.set_axis_off()
    lines: list[str] = []
    tokens = None
    for number, point in enumerate(points, start=1):
        if point.tokens != tokens:
            tokens = point.tokens
            lines += [*([""] if lines else []), f"{tokens / 1e6:.2g} million tokens"]
        lines.append(f"{number}  {point.name}")
    text = "\n".join(lines)
    axes.text(0, 1, text, transform=axes.transAxes, va="top", fontsize="small", linespacing=1.5)


def _swept(target: Target, record: RunRecord) -> float:
    """The number of the swept setting in the run's configuration."""
    from aero.train.recipes.recipe import TOLERANCE_MARGINS

    assert target.sweep is not None
    section, _, key = target.sweep["setting"].partition(".")
    config = read_yaml(record.folder / "config.yaml", {section: {key: float | str}})
    value = config[section][key]
    return float(TOLERANCE_MARGINS.get(value, value) if isinstance(value, str) else value)


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None or not np.isfinite(value) else value


def _learned(
    records: Records, scalar: str, picture: str, caption: str, draw: Callable[..., Any]
) -> Picture | None:
    shown = {
        name: found
        for name, runs in records.items()
        if (found := learned_over_training(runs[0], scalar))
    }
    if not shown:
        return None
    figure, axes = figure_grid(len(shown), 3.0, 2, sharey=True)
    for (name, (steps, values)), panel in zip(shown.items(), axes, strict=True):
        draw(steps, values, name, panel)
    return Picture.of(picture, figure, caption)


FIGURE_KINDS: dict[str, Callable[[Target, Records], Picture | None]] = {
    "quarters": _quarters,
    "loss": lambda target, records: draw_losses(_networks(records)),
    "heat_maps": lambda target, records: draw_heat_maps(_networks(records)),
    "layerwise": lambda target, records: draw_layerwise(_networks(records)),
    "thresholds": lambda target, records: draw_thresholds(_networks(records)),
    "thresholds_by_layer": _thresholds_by_layer,
    "slopes": _slopes,
    "scales": _scales,
    "nan_counts": _nan_counts,
    "sweep": _sweep,
    "front": _front,
}
