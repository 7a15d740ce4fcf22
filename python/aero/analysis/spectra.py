"""How many directions the activations of an FFN use: spectra of their covariance.

Four numbers of NerVE (Jha and Reagen, arXiv 2603.06922), with l_1 >= ... >= l_F the eigenvalues of
the covariance of an FFN's F hidden channels over tokens, and p_i = l_i / sum l:

    spectral entropy     SE  = -sum p_i log p_i                  0 to log F nats
    participation ratio  PR  = (sum l_i)^2 / sum l_i^2           1 to F directions
    early enrichment     EEE = 2/F sum_k (sum_{i<=k} p_i - k/F)  0 if all are alike, 1 if few lead
    Jensen-Shannon       JS  = (KL(p, m) + KL(q, m)) / 2         0 to log 2 nats; m = (p + q) / 2

JS is between the spectrum p before the activation and q after it. Over N tokens at most N - 1
directions can be seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[Any]

_MEASURES = ("entropy", "participation", "enrichment")
#: The numbers of one FFN.
SPECTRA = (
    *(f"{name}_{side}" for side in ("before", "after") for name in _MEASURES),
    "jensen_shannon",
)


def spectrum(eigenvalues: _Array, channels: int) -> _Array:
    """Returns the shares of the eigenvalues, falling, [F]; NaN where one is not finite.

    Args:
        eigenvalues: rising, times any factor: of x' x [F] for centred activations x [N, F], or of
            x x' [N], which has the same but for zeros.
        channels: F.
    """
    if not np.isfinite(eigenvalues).all():
        return np.full(channels, np.nan)
    found = np.maximum(eigenvalues[::-1], 0.0).astype(np.float64)
    shares = np.zeros(channels)
    shares[: len(found)] = found[:channels]
    total = shares.sum()
    return shares / total if total > 0 else np.full(channels, np.nan)


def describe_spectra(before: _Array, after: _Array) -> dict[str, float | None]:
    """Returns the numbers of the spectra before and after an activation, None where not finite.

    Args:
        before: `spectrum`, [F].
        after: likewise.

    Example:
        >>> import numpy as np
        >>> from aero.analysis.spectra import describe_spectra
        >>> describe_spectra(np.array([1.0, 0.0]), np.array([0.5, 0.5]))["participation_after"]
        2.0
    """
    found = {
        f"{name}_{side}": value
        for side, shares in (("before", before), ("after", after))
        for name, value in zip(
            _MEASURES,
            (_entropy(shares), 1.0 / np.sum(shares**2), _early_enrichment(shares)),
            strict=True,
        )
    }
    middle = (before + after) / 2
    divergence = _entropy(middle) - (_entropy(before) + _entropy(after)) / 2
    found["jensen_shannon"] = np.maximum(divergence, 0.0)
    return {
        name: float(f"{value:.6g}") if np.isfinite(value) else None for name, value in found.items()
    }


def spectra_text(layers: Sequence[Mapping[str, float | None] | None]) -> str:
    """A line on the FFNs of all layers; empty where none has an activation."""
    shown = [
        f"layer {index}: {_shown(found['participation_before'])} -> "
        f"{_shown(found['participation_after'])} (JS {_shown(found['jensen_shannon'], 2)})"
        for index, found in enumerate(layers)
        if found is not None
    ]
    if not shown:
        return ""
    return f"directions of the FFN before -> after its activation: {', '.join(shown)}"


def _entropy(shares: _Array) -> Any:
    return -np.sum(np.where(shares > 0, shares * np.log(np.where(shares > 0, shares, 1.0)), shares))


def _early_enrichment(shares: _Array) -> Any:
    channels = len(shares)
    uniform = np.arange(1, channels + 1) / channels
    return np.maximum(2.0 / channels * np.sum(np.cumsum(shares) - uniform), 0.0 * shares[0])


def _shown(value: float | None, digits: int = 1) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
