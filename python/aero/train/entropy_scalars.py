"""The numbers that curves of attention entropies are drawn from, by TensorBoard's names.

Letters: L layers, H heads, T positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from aero.analysis.statistics import quarter_shares

__all__ = ["entropy_scalars"]


def entropy_scalars(
    head_entropy: NDArray[Any],
    *,
    temperatures: Sequence[NDArray[Any]] | None = None,
    thresholds: NDArray[Any] | None = None,
) -> dict[str, float]:
    """Means per layer, and the shares of collapsed and of overloaded heads.

    Args:
        head_entropy: [L, H], nats.
        temperatures: L arrays [H, T]; None for networks without.
        thresholds: [L, H], fractions; None for networks without.

    Returns:
        ``entropy/layer_i/mean`` in nats, ``entropy/frac_collapse`` and ``entropy/frac_overload``
        (the first and last quarter of the largest head entropy), ``aero/temperature/layer_i/mean``,
        ``.../min`` and ``.../max``, ``aero/threshold/layer_i/mean``.

    Example:
        >>> import numpy as np
        >>> from aero.train.entropy_scalars import entropy_scalars
        >>> scalars = entropy_scalars(np.array([[0.0, 4.0], [2.0, 4.0]]))
        >>> scalars["entropy/layer_1/mean"], scalars["entropy/frac_overload"]
        (3.0, 0.5)
    """
    finite = head_entropy[np.isfinite(head_entropy)]
    # The paper's bins: quarters of the largest head entropy.
    shares = quarter_shares(head_entropy, float(finite.max(initial=0.0)))
    scalars = {f"entropy/layer_{i}/mean": layer.mean() for i, layer in enumerate(head_entropy)}
    scalars["entropy/frac_collapse"] = shares[0]
    scalars["entropy/frac_overload"] = shares[3]
    for i, values in enumerate(temperatures or ()):
        scalars[f"aero/temperature/layer_{i}/mean"] = values.mean()
        scalars[f"aero/temperature/layer_{i}/min"] = values.min()
        scalars[f"aero/temperature/layer_{i}/max"] = values.max()
    if thresholds is not None:
        for i, layer in enumerate(thresholds):
            scalars[f"aero/threshold/layer_{i}/mean"] = layer.mean()
    return {name: float(value) for name, value in scalars.items()}
