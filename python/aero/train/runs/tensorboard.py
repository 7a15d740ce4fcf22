"""Scalars in TensorBoard's files, and those that curves of entropies are drawn from.

Letters: L layers, H heads, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from aero.analysis.statistics import quarter_shares
from aero.internals.extras import extra

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


def open_board(folder: str | Path, *, first_step: int = 0) -> SummaryWriter:
    """Opens an event file.

    Args:
        folder: created if missing.
        first_step: if above 0, TensorBoard drops later steps of earlier files of the folder.

    Raises:
        MissingExtraError: TensorBoard is not installed.
        OSError: the folder cannot be written.
    """
    with extra("train"):
        from torch.utils.tensorboard import SummaryWriter
    return SummaryWriter(str(folder), purge_step=first_step + 1 if first_step else None)


def add_scalars(board: SummaryWriter, step: int, values: Mapping[str, float]) -> None:
    """Writes values of one step, and raises the error of a disk that does not take them."""
    for name, value in values.items():
        board.add_scalar(name, float(value), step)
    board.flush()


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
