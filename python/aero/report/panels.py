"""The report's figures: panels of `aero.analysis` as SVG, with titles on hovering."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.analysis import (
    FIGURE_STYLE,
    plot_bytes_by_kind,
    plot_entropy_heat_map,
    plot_layerwise_entropy,
    plot_loss_curves,
    plot_pareto,
    plot_quarter_shares,
)
from aero.analysis.figures.drawing import entropy_colors, layer_colors, threshold_colors
from aero.analysis.figures.entropy import plot_attention, row_entropies
from aero.analysis.figures.learned import plot_learned_temperatures, plot_learned_thresholds
from aero.analysis.files import StoredAnalysis
from aero.analysis.statistics import layerwise_mean
from aero.internals.errors import extra
from aero.internals.pareto import pareto_front
from aero.reading import shown
from aero.report.labels import families, family
from aero.report.networks import Network
from aero.report.picture import Picture, figure_grid, shared_legend
from aero.report.report_file import Report
from aero.report.text import with_spread

with extra("report"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure


def draw_all(networks: Sequence[Network], report: Report) -> list[Picture]:
    """Returns every figure the runs have data for."""
    with rc_context(FIGURE_STYLE):
        drawn: list[Picture | None] = [
            _front(report),
            *draw_attention(networks),
            draw_heat_maps(networks),
            draw_quarters(
                {
                    e.name: {"log_context": e.entropy.quarters.log_context}
                    for e in report.networks
                    if e.entropy
                }
            ),
            draw_layerwise(networks),
            draw_thresholds(networks),
            *_temperatures(networks),
            draw_losses(networks),
            _bytes(report),
        ]
    return [picture for picture in drawn if picture is not None]


def draw_losses(networks: Sequence[Network]) -> Picture | None:
    """Draws training and validation loss, a line per seed; None without a record."""
    if not any(run.metrics.train or run.metrics.validation for n in networks for run in n.runs):
        return None
    endings = {
        network.name: ending
        for network in networks
        if (ending := next((run.ending for run in network.runs if run.ending), None))
    }
    specs = [network.spec.to_dict() for network in networks]
    figure, (train, validation) = figure_grid(2, 4.4, 2, sharex=True, sharey=True)
    # lm_loss leaves the entropy penalty out, so that networks with and without it compare.
    for axes, kind, name, title in (
        (train, "train", "lm_loss", "training"),
        (validation, "validation", "loss", "validation"),
    ):
        curves = {
            network.name: [
                (
                    [line.step for line in lines],
                    [_number(getattr(line, name)) for line in lines],
                )
                for run in network.runs
                for lines in [getattr(run.metrics, kind)]
            ]
            for network in networks
        }
        plot_loss_curves(
            curves,
            endings=endings,
            series=[family(spec) for spec in specs],
            series_order=families(specs),
            title=title,
            axes=axes,
        )
    validation.set_ylabel("")
    shared_legend(figure, train, 3)
    caption = (
        "Loss over optimizer steps in nats per token, without the entropy penalty: training "
        "batches as logged, validation on fixed windows in evaluation mode. "
        + ("One line per seed. " if any(len(n.runs) > 1 for n in networks) else "")
        + "Colours are those of the figure of perplexity and bytes."
    )
    return Picture.of("loss_curves", figure, caption)


def draw_heat_maps(networks: Sequence[Network]) -> Picture | None:
    """Draws every head's entropy, a panel per analysed network; None without one."""
    shown = _analyzed(networks)
    if not shown:
        return None
    columns = 3
    height = _panel_height(shown, columns, label_inches=3.0)
    figure, axes = figure_grid(len(shown), height, columns)
    titles: dict[str, list[str]] = {}
    for (network, analysis), panel in zip(shown, axes, strict=True):
        shares = _array(analysis.values.head_entropy_normalized_visible)
        nats = _array(analysis.values.head_entropy)
        plot_entropy_heat_map(shares, title=network.name, axes=panel)
        panel.collections[0].set_gid(network.name)
        titles[network.name] = [
            f"layer {layer}, head {head}: {nats[layer, head]:.2f} nats, {share:.0%} of its most"
            for (layer, head), share in np.ndenumerate(shares)
        ]
    figure.colorbar(entropy_colors(), ax=axes, label="share of the reachable entropy")
    caption = (
        "Mean entropy of every attention head on the validation text, as a share of the most that "
        "it can reach: row i sees i + 1 tokens, so its entropy is divided by log(i + 1). Yellow "
        "heads look everywhere, dark heads at one token."
    )
    return Picture.of("entropy_heat_maps", figure, caption, titles)


def _panel_height(
    shown: Sequence[tuple[Network, Any]], columns: int, *, label_inches: float
) -> float:
    """Inches per row: by the layers, and in all rows enough for the words at the colour bar."""
    layers = max(network.spec.num_layers for network, _ in shown)
    return max(min(0.9 + 0.3 * layers, 5.0), label_inches / math.ceil(len(shown) / columns))


def draw_quarters(quarters: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture | None:
    """Draws the share of heads per range of entropy; None without a network.

    Args:
        quarters: network -> four shares of `log_context`, and of `observed_max` where a figure of
            the paper has it: a panel per measure.
    """
    if not quarters:
        return None
    measures = {
        "observed_max": "quarters of the network's largest head entropy",
        "log_context": "quarters of log T",
    }
    drawn = [name for name in measures if name in next(iter(quarters.values()))]
    figure, axes = figure_grid(len(drawn), 1.5 + 0.38 * len(quarters), len(drawn), sharey=True)
    for panel, measure in zip(axes, drawn, strict=True):
        shares = {name: by_measure[measure] for name, by_measure in quarters.items()}
        plot_quarter_shares(shares, title=measures[measure], axes=panel)
    # The panels share the y axis, and turning it round twice would undo it.
    axes[0].set_ylim(len(quarters) - 0.5, -0.5)
    shared_legend(figure, axes[0], 4)
    caption = (
        "Share of heads whose mean entropy lies in each quarter of log T, the entropy of T equal "
        "weights."
    )
    if "observed_max" in drawn:
        caption += (
            " The left panel divides the largest entropy of the network's own heads instead, as "
            "the paper does: one head is always in its last quarter."
        )
    return Picture.of("quarter_shares", figure, caption)


def draw_layerwise(networks: Sequence[Network]) -> Picture | None:
    """Draws the layers' entropies over training, a panel per network; None without records."""
    shown = [network for network in networks if network.shown_run.metrics.entropy]
    if not shown:
        return None
    context_length = max(network.spec.context_length for network in shown)
    layers = max(network.spec.num_layers for network in shown)
    figure, axes = figure_grid(len(shown), 2.5, 3, sharex=True, sharey=True)
    for network, panel in zip(shown, axes, strict=True):
        lines = network.shown_run.metrics.entropy
        history = layerwise_mean(_array([line.head_entropy for line in lines]))
        steps = [line.step for line in lines]
        plot_layerwise_entropy(steps, history, context_length, title=network.name, axes=panel)
        panel.label_outer()
    figure.colorbar(layer_colors(layers), ax=axes, label="layer", ticks=range(layers))
    caption = (
        "Mean entropy of each layer's heads over training steps, in nats; the dotted line is the "
        f"most that causal heads reach, {math.lgamma(context_length + 1) / context_length:.2f}."
    )
    return Picture.of("layerwise_entropy", figure, caption)


def draw_thresholds(networks: Sequence[Network]) -> Picture | None:
    """Draws learned thresholds, a panel per network; None without a network that has any."""
    shown = [
        (network, analysis)
        for network, analysis in _analyzed(networks)
        if analysis.values.thresholds is not None
    ]
    if not shown:
        return None
    figure, axes = figure_grid(len(shown), _panel_height(shown, 2, label_inches=2.3), 2)
    for (network, analysis), panel in zip(shown, axes, strict=True):
        values = _array(analysis.values.thresholds)
        plot_learned_thresholds(values, title=network.name, axes=panel)
    figure.colorbar(threshold_colors(), ax=axes, label="threshold (fraction of max)")
    caption = "Learned entropy thresholds per head, as fractions of the maximum entropy."
    return Picture.of("thresholds", figure, caption)


def _temperatures(networks: Sequence[Network]) -> list[Picture]:
    pictures = []
    for network, analysis in _analyzed(networks):
        values = analysis.arrays.get("temperature")
        if values is None:
            continue
        figure, axes = figure_grid(len(values), 2.1, 3, sharex=True, sharey=True)
        for layer, panel in enumerate(axes):
            title = f"layer {layer}"
            plot_learned_temperatures(values[layer], title=title, axes=panel)
            panel.label_outer()
        if values.ndim == 3:
            shared_legend(figure, axes[0], 6)
        caption = (
            f"Learned temperatures of {network.name}: scores are divided by the temperature, so "
            "lower is sharper."
        )
        name = f"temperatures_{network.shown_run.info.slug}"
        pictures.append(Picture.of(name, figure, caption))
    return pictures


def _bytes(report: Report) -> Picture | None:
    stack = report.stacks[0]
    parts = {
        entry.name: entry.private_inference.trained[stack].by_kind for entry in report.networks
    }
    figure, (panel,) = figure_grid(1, 1.1 + 0.3 * len(parts), 1)
    plot_bytes_by_kind(parts, axes=panel)
    shared_legend(figure, panel, 5)
    caption = (
        f"Bytes of one private forward pass of the trained networks on {stack}: GB (1e9 bytes), "
        "sent by both parties, set-up included."
    )
    return Picture.of("bytes", figure, caption)


def _front(report: Report) -> Picture | None:
    stack = report.stacks[0]
    judged = [(entry, entry.perplexity) for entry in report.networks if entry.perplexity]
    shown, spreads = [entry for entry, _ in judged], [spread for _, spread in judged]
    if len(shown) < 2:
        return None
    costs = [e.private_inference.trained[stack].comm_bytes / 1e9 for e in shown]
    groups = [family(entry.spec) for entry in shown]
    order = families(entry.spec for entry in report.networks)
    # Half a page, or a phone: letters as large as the text around them.
    figure = Figure(figsize=(5.4, 4.3), layout="constrained")
    axes = plot_pareto(
        costs,
        [spread.values for spread in spreads],
        [entry.name for entry in shown],
        series=groups,
        series_order=order,
        named=range(len(shown)),
        xlabel=f"GB of one private pass, {stack}",
        ylabel="perplexity on validation text",
        axes=figure.subplots(),
    )
    titles = {}
    for container, name in zip(axes.containers, order, strict=True):
        if name in groups:
            container.get_children()[0].set_gid(f"points {name}")
            titles[f"points {name}"] = [
                f"{entry.name}: perplexity {with_spread(entry.perplexity)}, {cost:.3g} GB"
                for entry, cost, group in zip(shown, costs, groups, strict=True)
                if group == name
            ]
    shared_legend(figure, axes, 2)
    means = [spread.mean for spread in spreads]
    best = pareto_front([*zip(costs, means, strict=True)])
    unbeaten = "those on the dashed line" if len(best) > 1 else shown[best[0]].name
    several = any(len(spread.values) > 1 for spread in spreads)
    points = "mean over seeds, the bar from the best seed to the worst"
    caption = (
        "Perplexity against the bytes of one private pass: "
        f"{points if several else 'one run each'}. No other network here beats {unbeaten} in both."
    )
    return Picture.of("front", figure, caption, titles)


def _analyzed(networks: Sequence[Network]) -> list[tuple[Network, StoredAnalysis]]:
    return [(n, n.shown_run.analysis) for n in networks if n.shown_run.analysis is not None]


def _array(nested: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Nested lists with None for values that are not finite."""
    return np.asarray(nested, dtype=np.float64)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def draw_attention(networks: Sequence[Network]) -> list[Picture]:
    """Every head on the line of `sample.json`, a picture per network that has one."""
    pictures = []
    for network in networks:
        sample = network.shown_run.sample
        if sample is None:
            continue
        attention = triangles(sample.attention)
        layers, heads = attention.shape[:2]
        figure = Figure(figsize=(5.6, 0.5 + 5.2 * heads / layers), layout="constrained")
        plot_attention(attention, title=network.name, axes=figure.subplots())
        caption = f"{network.name}: where every head looks in the line {shown(sample.text)}"
        name = f"attention_{network.shown_run.info.slug}"
        titles = {"rows": list(row_titles(attention, sample.tokens))}
        pictures.append(Picture.of(name, figure, caption, titles))
    return pictures


def triangles(rows: Any) -> NDArray[np.float64]:
    """Triangles [L][H] of rows with i + 1 weights as [L, H, T, T]."""
    size = len(rows[0][0])
    padded = [
        [[row + [0.0] * (size - len(row)) for row in head] for head in layer] for layer in rows
    ]
    return np.asarray(padded, dtype=np.float64)


def row_titles(attention: NDArray[np.float64], tokens: Sequence[str]) -> Iterator[str]:
    """The titles of every row of every head: its entropy, and the three tokens it looks at most."""
    entropies = row_entropies(attention)
    words = [shown(token) for token in tokens]
    for layer, head, row in np.ndindex(entropies.shape):
        weights = attention[layer, head, row, : row + 1]
        seen = ", ".join(
            f"{words[key]} {weights[key]:.0%}" for key in np.argsort(-weights, kind="stable")[:3]
        )
        yield (
            f"layer {layer}, head {head}, at {words[row]}: {entropies[layer, head, row]:.2f} of "
            f"{math.log(row + 1):.2f} nats; looks at {seen}"
        )
