"""Figures of entropies, learned parameters, losses, bytes and savings.

Every function takes plain arrays, draws into the Axes it is given (or into a new pyplot figure) and
returns them. The matplotlib backend, the file and its resolution are the caller's choice.
"""

from aero.analysis.figures.drawing import (
    entropy_colors,
    layer_colors,
    network_colors,
    threshold_colors,
)
from aero.analysis.figures.entropy import (
    entropy_heat_map,
    layerwise_entropy,
    learned_temperatures,
    learned_thresholds,
    quarter_shares,
)
from aero.analysis.figures.networks import bytes_by_kind, loss_curves, ordered_kinds
from aero.analysis.figures.savings import stepwise_savings

__all__ = [
    "bytes_by_kind",
    "entropy_colors",
    "entropy_heat_map",
    "layer_colors",
    "layerwise_entropy",
    "learned_temperatures",
    "learned_thresholds",
    "loss_curves",
    "network_colors",
    "ordered_kinds",
    "quarter_shares",
    "stepwise_savings",
    "threshold_colors",
]
