"""The report's figures: panels of `aero.analysis`, drawn off screen into PNG bytes."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave

from aero.analysis import (
    FIGURE_STYLE,
    plot_bytes_by_kind,
    plot_entropy_heat_map,
    plot_layerwise_entropy,
    plot_loss_curves,
    plot_quarter_shares,
)
from aero.analysis.figures.drawing import entropy_colors, layer_colors, threshold_colors
from aero.analysis.figures.learned import plot_learned_temperatures, plot_learned_thresholds
from aero.analysis.files import StoredAnalysis
from aero.analysis.statistics import layerwise_mean
from aero.report.networks import Network

__all__ = [
    "Picture",
    "draw_all",
    "draw_heat_maps",
    "draw_layerwise",
    "draw_losses",
    "draw_quarters",
    "draw_thresholds",
    "figure_grid",
    "png_of",
    "shared_legend",
]

# Inches at 110 dots each: a 1,045 pixel picture, sharp on a phone and not wider than a page.
_WIDTH = 9.5
_DOTS_PER_INCH = 110


@dataclass(frozen=True)
class Picture:
    """One figure of the report.

    Attributes:
        name: file name without ending, and the place in the report it belongs to.
        png: the picture.
        caption: what it shows, with units and normalisation.
    """

    name: str
    png: bytes
    caption: str


def draw_all(networks: Sequence[Network], report: Mapping[str, Any]) -> list[Picture]:
    """Returns every figure the runs have data for.

    Args:
        networks: the runs by network.
        report: the content of report.json, whose bytes are drawn.

    Returns:
        Pictures in reading order.
    """
    with rc_context(FIGURE_STYLE):
        drawn: list[Picture | None] = [
            draw_losses(networks),
            draw_heat_maps(networks),
            draw_quarters(
                {e["name"]: e["entropy"]["quarters"] for e in report["networks"] if e["entropy"]}
            ),
            draw_layerwise(networks),
            draw_thresholds(networks),
            *_temperatures(networks),
            _bytes(report, "trained", "bytes_trained", "the trained networks, at their own sizes"),
            _bytes(report, "gpt2", "bytes_gpt2", "the same labels at GPT-2 size, T = 128"),
        ]
    return [picture for picture in drawn if picture is not None]


def figure_grid(
    count: int, height: float, columns: int, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with `count` Axes in rows of `columns`; `height` inches per row."""
    # A panel alone keeps about the width it has among others.
    width = _WIDTH if count > 1 or columns == 1 else 1.25 * _WIDTH / columns
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    size = (width, height * rows)
    figure = Figure(figsize=size, dpi=_DOTS_PER_INCH, layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False, **options).ravel())
    for unused in axes[count:]:
        unused.remove()
    return figure, axes[:count]


def png_of(figure: Figure) -> bytes:
    """Returns a figure as PNG."""
    # Not savefig, which lays the figure out twice; layout is most of the time.
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    buffer = io.BytesIO()
    pixels = np.asarray(canvas.buffer_rgba())  # type: ignore[no-untyped-call]
    imsave(buffer, pixels, format="png", dpi=_DOTS_PER_INCH)
    return buffer.getvalue()


def shared_legend(figure: Figure, axes: Axes, columns: int) -> None:
    """Puts the legend of one panel below all of them."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(columns, len(labels)), frameon=False
    )


def draw_losses(networks: Sequence[Network]) -> Picture | None:
    """Draws training and validation loss, a line per seed; None without a record."""
    if not any(
        run.metrics["train"] or run.metrics["validation"] for n in networks for run in n.runs
    ):
        return None
    endings = {
        network.name: ending
        for network in networks
        if (ending := next((run.ending for run in network.runs if run.ending), None))
    }
    figure, (train, validation) = figure_grid(2, 4.4, 2, sharex=True, sharey=True)
    # lm_loss leaves the entropy penalty out, so that networks with and without it compare.
    for axes, kind, name, title in (
        (train, "train", "lm_loss", "training"),
        (validation, "validation", "loss", "validation"),
    ):
        curves = {
            network.name: [
                (
                    [entry["step"] for entry in run.metrics[kind]],
                    [_number(entry.get(name)) for entry in run.metrics[kind]],
                )
                for run in network.runs
            ]
            for network in networks
        }
        plot_loss_curves(curves, endings=endings, title=title, axes=axes)
    validation.set_ylabel("")
    shared_legend(figure, train, 3)
    caption = (
        "Loss over optimizer steps in nats per token, without the entropy penalty: training "
        "batches as logged, validation on fixed windows in evaluation mode. One line per seed."
    )
    return Picture("loss_curves", png_of(figure), caption)


def draw_heat_maps(networks: Sequence[Network]) -> Picture | None:
    """Draws every head's entropy, a panel per analysed network; None without one."""
    shown = _analyzed(networks)
    if not shown:
        return None
    # One scale for all panels: that of the longest context, should they differ.
    context_length = max(network.spec.context_length for network, _ in shown)
    columns = 3
    height = _panel_height(shown, columns, label_inches=2.9)
    figure, axes = figure_grid(len(shown), height, columns)
    for (network, analysis), panel in zip(shown, axes, strict=True):
        entropy = _array(analysis.values["head_entropy"])
        plot_entropy_heat_map(entropy, context_length, title=network.name, axes=panel)
    scale = entropy_colors(context_length)
    maximum = math.log(context_length)
    figure.colorbar(
        scale, ax=axes, label=f"entropy (nats), 0 to log {context_length} = {maximum:.2f}"
    )
    caption = (
        "Mean entropy of every attention head on the validation text, in nats. All panels share "
        f"the scale from 0 to log T = {maximum:.2f}; yellow heads look everywhere, dark heads at "
        "one token. A causal row i sees i + 1 tokens, so a head that looks at all of them alike "
        f"reaches {math.lgamma(context_length + 1) / context_length:.2f}, not log T."
    )
    return Picture("entropy_heat_maps", png_of(figure), caption)


def _panel_height(
    shown: Sequence[tuple[Network, Any]], columns: int, *, label_inches: float
) -> float:
    """Inches per row: by the layers, and in all rows enough for the words at the colour bar."""
    layers = max(network.spec.num_layers for network, _ in shown)
    return max(min(0.9 + 0.3 * layers, 5.0), label_inches / math.ceil(len(shown) / columns))


def draw_quarters(quarters: Mapping[str, Mapping[str, Sequence[float]]]) -> Picture | None:
    """Draws the share of heads per range of entropy; None without a network.

    Args:
        quarters: network -> `observed_max` and `log_context`, four shares each.
    """
    if not quarters:
        return None
    figure, axes = figure_grid(2, 1.5 + 0.38 * len(quarters), 2, sharey=True)
    for panel, reference, title in (
        (axes[0], "observed_max", "max = largest observed head entropy"),
        (axes[1], "log_context", "max = log T"),
    ):
        shares = {name: by_reference[reference] for name, by_reference in quarters.items()}
        plot_quarter_shares(shares, title=title, axes=panel)
    # Both panels share the y axis, and turning it round twice would undo it.
    axes[0].set_ylim(len(quarters) - 0.5, -0.5)
    shared_legend(figure, axes[0], 4)
    caption = (
        "Share of heads in each quarter of [0, max], the mean over seeds. Left: max is the largest "
        "head entropy of that network (as in the paper). Right: max is log T."
    )
    return Picture("quarter_shares", png_of(figure), caption)


def draw_layerwise(networks: Sequence[Network]) -> Picture | None:
    """Draws the layers' entropies over training, a panel per network; None without records."""
    shown = [network for network in networks if network.shown_run.metrics["entropy"]]
    if not shown:
        return None
    context_length = max(network.spec.context_length for network in shown)
    layers = max(network.spec.num_layers for network in shown)
    figure, axes = figure_grid(len(shown), 2.5, 3, sharex=True, sharey=True)
    for network, panel in zip(shown, axes, strict=True):
        lines = network.shown_run.metrics["entropy"]
        history = layerwise_mean(_array([line["head_entropy"] for line in lines]))
        steps = [line["step"] for line in lines]
        plot_layerwise_entropy(steps, history, context_length, title=network.name, axes=panel)
        panel.label_outer()
    figure.colorbar(layer_colors(layers), ax=axes, label="layer", ticks=range(layers))
    caption = (
        "Mean entropy of each layer's heads over training steps, in nats; the dotted line is "
        f"log T = {math.log(context_length):.2f}."
    )
    return Picture("layerwise_entropy", png_of(figure), caption)


def draw_thresholds(networks: Sequence[Network]) -> Picture | None:
    """Draws learned thresholds, a panel per network; None without a network that has any."""
    shown = [
        (network, analysis)
        for network, analysis in _analyzed(networks)
        if analysis.values.get("thresholds") is not None
    ]
    if not shown:
        return None
    figure, axes = figure_grid(len(shown), _panel_height(shown, 2, label_inches=2.1), 2)
    for (network, analysis), panel in zip(shown, axes, strict=True):
        values = _array(analysis.values["thresholds"])
        plot_learned_thresholds(values, title=network.name, axes=panel)
    figure.colorbar(threshold_colors(), ax=axes, label="threshold (fraction of max)")
    caption = "Learned entropy thresholds per head, as fractions of the maximum entropy."
    return Picture("thresholds", png_of(figure), caption)


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
        name = f"temperatures_{network.shown_run.info['slug']}"
        pictures.append(Picture(name, png_of(figure), caption))
    return pictures


def _bytes(report: Mapping[str, Any], size: str, name: str, what: str) -> Picture | None:
    entries = [entry for entry in report["networks"] if entry["private_inference"][size]]
    if not entries:
        return None
    stacks = list(report["stacks"])
    figure, axes = figure_grid(len(stacks), 1.1 + 0.3 * len(entries), 1, sharex=True)
    kinds: dict[str, Any] = {}
    most = max(e["private_inference"][size][s]["comm_bytes"] for e in entries for s in stacks)
    for stack, panel in zip(stacks, axes, strict=True):
        parts = {
            entry["name"]: entry["private_inference"][size][stack]["by_kind"] for entry in entries
        }
        plot_bytes_by_kind(parts, title=stack, axes=panel)
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            kinds.setdefault(label, handle)
        panel.label_outer()
    axes[0].set_xlim(0, 1.08 * most / 1e9)
    figure.legend(
        list(kinds.values()), list(kinds), loc="outside lower center", ncols=6, frameon=False
    )
    caption = (
        f"Bytes of one private forward pass of {what}, on each protocol stack: GB (1e9 bytes), "
        "sent by both parties, set-up included."
    )
    return Picture(name, png_of(figure), caption)


def _analyzed(networks: Sequence[Network]) -> list[tuple[Network, StoredAnalysis]]:
    return [(n, n.shown_run.analysis) for n in networks if n.shown_run.analysis is not None]


def _array(nested: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Nested lists with None for what was not finite."""
    return np.asarray(nested, dtype=np.float64)


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)
