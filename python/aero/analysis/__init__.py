"""From attention entropies to statistics and figures.

Numpy and matplotlib only; matplotlib loads with the first figure. Every `plot_*` takes plain
arrays, draws into the Axes it is given (or into a new pyplot figure) and returns them.

Example:
    >>> from aero import analysis
    >>> head_entropy = [[4.1, 3.9], [1.2, 0.3]]  # [L, H], nats
    >>> analysis.quarter_shares(head_entropy, maximum=4.1).tolist()
    [0.25, 0.25, 0.0, 0.5]
    >>> analysis.plot_entropy_heat_map(head_entropy, context_length=128).get_ylabel()
    'layer'
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from aero.analysis.files import StoredAnalysis, read_analysis, write_analysis
from aero.analysis.statistics import (
    heads_in_quarter,
    layerwise_mean,
    nan_counts,
    quarter_shares,
)
from aero.analysis.summary import EntropyAccumulator, EntropySummary, summarize_entropies

if TYPE_CHECKING:
    from aero.analysis.figures.comparison import pareto_front, plot_pareto, plot_sweep
    from aero.analysis.figures.costs import (
        ordered_kinds,
        plot_bytes_by_kind,
        plot_stepwise_savings,
    )
    from aero.analysis.figures.drawing import (
        entropy_colors,
        layer_colors,
        network_colors,
        threshold_colors,
    )
    from aero.analysis.figures.entropy import (
        plot_entropy_heat_map,
        plot_layerwise_entropy,
        plot_quarter_shares,
    )
    from aero.analysis.figures.learned import (
        plot_learned_scales,
        plot_learned_slopes,
        plot_learned_temperatures,
        plot_learned_thresholds,
        plot_thresholds_by_layer,
    )
    from aero.analysis.figures.style import FIGURE_STYLE, save_figure
    from aero.analysis.figures.training import plot_loss_curves, plot_nan_counts

__all__ = [
    "FIGURE_STYLE",
    "EntropyAccumulator",
    "EntropySummary",
    "StoredAnalysis",
    "entropy_colors",
    "heads_in_quarter",
    "layer_colors",
    "layerwise_mean",
    "nan_counts",
    "network_colors",
    "ordered_kinds",
    "pareto_front",
    "plot_bytes_by_kind",
    "plot_entropy_heat_map",
    "plot_layerwise_entropy",
    "plot_learned_scales",
    "plot_learned_slopes",
    "plot_learned_temperatures",
    "plot_learned_thresholds",
    "plot_loss_curves",
    "plot_nan_counts",
    "plot_pareto",
    "plot_quarter_shares",
    "plot_stepwise_savings",
    "plot_sweep",
    "plot_thresholds_by_layer",
    "quarter_shares",
    "read_analysis",
    "save_figure",
    "summarize_entropies",
    "threshold_colors",
    "write_analysis",
]

# Figure -> the module that draws it, so that reading an analysis does not load matplotlib.
_DRAWN_IN = {
    name: f"aero.analysis.figures.{module}"
    for module, names in {
        "comparison": ("pareto_front", "plot_pareto", "plot_sweep"),
        "costs": ("ordered_kinds", "plot_bytes_by_kind", "plot_stepwise_savings"),
        "drawing": ("entropy_colors", "layer_colors", "network_colors", "threshold_colors"),
        "entropy": ("plot_entropy_heat_map", "plot_layerwise_entropy", "plot_quarter_shares"),
        "learned": (
            "plot_learned_scales",
            "plot_learned_slopes",
            "plot_learned_temperatures",
            "plot_learned_thresholds",
            "plot_thresholds_by_layer",
        ),
        "style": ("FIGURE_STYLE", "save_figure"),
        "training": ("plot_loss_curves", "plot_nan_counts"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    if name in _DRAWN_IN:
        return getattr(importlib.import_module(_DRAWN_IN[name]), name)
    raise AttributeError(f"module 'aero.analysis' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
