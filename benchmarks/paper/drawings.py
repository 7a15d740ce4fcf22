"""What the paper draws and reports do not: sweeps, slopes, scales, thresholds by layer, NaN counts.

Letters: L layers, H heads, N steps or settings, S seeds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from aero.analysis.figures.drawing import layer_colors, matrix, network_colors, steps_and_rows
from aero.analysis.figures.tradeoffs import spreads


def plot_thresholds_by_layer(thresholds: ArrayLike, *, title: str, axes: Axes) -> None:
    """Draws mean and standard deviation of each layer's thresholds [L, H] (AERO, Figure 10b)."""
    values = matrix("plot_thresholds_by_layer", "thresholds", thresholds)
    layers = np.arange(len(values))
    color = network_colors(1)[0]
    axes.bar(layers, values.mean(axis=1), color=color, alpha=0.35, label="mean")
    axes.errorbar(
        layers, values.mean(axis=1), values.std(axis=1), fmt="o", color=color, capsize=3,
        label="standard deviation over heads",
    )  # fmt: skip
    _layer_axis(axes)
    axes.set_ylim(0, 1)
    axes.set_ylabel("threshold (fraction of max)")
    axes.set_title(title)


def plot_learned_slopes(steps: ArrayLike, slopes: ArrayLike, *, title: str, axes: Axes) -> None:
    """Draws the negative slopes [N, L] of a leaky ReLU over training (AERO, Figure 4).

    They are [N, 1] where all layers share one. The dotted line is slope 0, which is ReLU.
    """
    positions, values = steps_and_rows("plot_learned_slopes", steps, "slopes", slopes)
    count = values.shape[1]
    for layer, color in enumerate(layer_colors(count).to_rgba(np.arange(count))):
        name = f"layer {layer}" if count > 1 else "all layers"
        axes.plot(positions, values[:, layer], color=color, label=name)
    axes.axhline(0.0, color="0.5", linestyle=":", linewidth=1)
    axes.set_xlabel("step")
    axes.set_ylabel("negative slope")
    axes.set_title(title)


def plot_learned_scales(alpha: ArrayLike, beta: ArrayLike, *, title: str, axes: Axes) -> None:
    """Draws the scales of every layer's FFN, `beta x + FFN(x) / alpha` (AERO, Eq. 6, Figure 11)."""
    scales = [np.asarray(values, dtype=np.float64) for values in (alpha, beta)]
    if scales[0].ndim != 1 or scales[1].shape != scales[0].shape:
        shapes = " and ".join(str(list(values.shape)) for values in scales)
        raise ValueError(f"plot_learned_scales: alpha and beta must both be [L], got {shapes}")
    named = (("alpha, divides the FFN", "o-"), ("beta, of the residual", "s--"))
    for values, (name, line), color in zip(scales, named, network_colors(2), strict=True):
        axes.plot(values, line, color=color, label=name)
    axes.axhline(1.0, color="0.5", linestyle=":", linewidth=1)
    _layer_axis(axes)
    axes.set_ylabel("learned scale")
    axes.set_title(title)
    axes.legend()


def _layer_axis(axes: Axes) -> None:
    axes.set_xlabel("layer")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def plot_nan_counts(steps: ArrayLike, counts: ArrayLike, *, title: str, axes: Axes) -> None:
    """Draws how many non-finite heads [N, L] each layer has over training (AERO, Figure 6a).

    Lines of layers without any lie on zero.
    """
    positions, values = steps_and_rows("plot_nan_counts", steps, "counts", counts)
    colors = layer_colors(values.shape[1]).to_rgba(np.arange(values.shape[1]))
    for layer, color in enumerate(colors):
        axes.step(positions, values[:, layer], where="post", color=color, label=f"layer {layer}")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(0, max(1.0, 1.05 * float(values.max())))
    axes.set_xlabel("step")
    axes.set_ylabel("heads with NaN")
    axes.set_title(title)


def plot_sweep(
    values: ArrayLike, results: Sequence[ArrayLike], *, xlabel: str, ylabel: str, axes: Axes
) -> None:
    """Draws N results [S] over a setting [N]: means, a band from least to greatest, every seed."""
    x = np.asarray(values, dtype=np.float64)
    mean, below, above = spreads(results)
    color = network_colors(1)[0]
    axes.plot(x, mean, "o-", color=color, markersize=4)
    axes.fill_between(x, mean - below, mean + above, color=color, alpha=0.18, linewidth=0)
    for value, seeds in zip(x, results, strict=True):
        points = np.atleast_1d(np.asarray(seeds, dtype=np.float64))
        axes.plot(np.full(points.shape, value), points, ".", color=color, alpha=0.5, markersize=4)
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.grid(alpha=0.25)
