"""Statistics of head entropies: which heads look everywhere, which at one token, which broke.

Also the interval of a mean over documents, by Student's t.

Letters: L layers, H heads, T query positions. Entropies are in nats.
Heads are counted in quarters of [0, max] (AERO, Section 3.1, Figure 3a): the first quarter is
entropy collapse, the last is entropic overload. `max` is the largest observed head entropy (the
paper, `observed_max` in our files) or log T (`log_context`).
"""

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from aero.internals.errors import extra

FloatArray = NDArray[np.float64]


def layerwise_mean(head_entropy: ArrayLike) -> FloatArray:
    """Returns the mean entropy of each layer's finite heads; NaN where a layer has none.

    Args:
        head_entropy: [..., L, H], nats.

    Returns:
        [..., L], nats.
    """
    entropy = np.asarray(head_entropy, dtype=np.float64)
    finite = np.isfinite(entropy)
    count = finite.sum(axis=-1)
    total = np.where(finite, entropy, 0.0).sum(axis=-1)
    mean: FloatArray = np.where(count > 0, total / np.maximum(count, 1), np.nan)
    return mean


def nan_counts(head_entropy: ArrayLike) -> NDArray[np.int64]:
    """Returns how many heads of each layer have a non-finite entropy.

    Args:
        head_entropy: [..., L, H], nats.

    Returns:
        [..., L], counts.
    """
    entropy = np.asarray(head_entropy, dtype=np.float64)
    return np.asarray((~np.isfinite(entropy)).sum(axis=-1), dtype=np.int64)


def _quarter_of(head_entropy: ArrayLike, maximum: float) -> NDArray[np.int64]:
    """Quarter 0..3 of every head, -1 where the entropy is not finite."""
    if not maximum >= 0.0 or not np.isfinite(maximum):
        raise ValueError(f"quarter_shares: maximum must be finite and >= 0, got {maximum}")
    entropy = np.asarray(head_entropy, dtype=np.float64)
    finite = np.isfinite(entropy)
    # Heads that all look at one token have maximum 0: every one of them is collapsed.
    scaled = np.where(finite, entropy, 0.0) * (4.0 / maximum if maximum > 0.0 else 0.0)
    return np.where(finite, np.clip(np.floor(scaled), 0, 3), -1).astype(np.int64)


def quarter_shares(head_entropy: ArrayLike, maximum: float) -> FloatArray:
    """Returns the share of finite heads in each quarter of [0, maximum].

    The quarters are [0, max/4), [max/4, max/2), [max/2, 3 max/4), [3 max/4, max] (AERO, Figure 3a).

    Args:
        head_entropy: any shape, one value per head, nats; non-finite heads are left out.
        maximum: upper end of the last quarter, nats.

    Returns:
        [4], fractions that add up to 1, or four zeros if no head is finite.

    Raises:
        ValueError: `maximum` is negative or not finite.
    """
    quarter = _quarter_of(head_entropy, maximum)
    counts = np.array([(quarter == index).sum() for index in range(4)], dtype=np.float64)
    shares: FloatArray = counts / max(counts.sum(), 1.0)
    return shares


def heads_in_quarter(head_entropy: ArrayLike, maximum: float, quarter: int) -> list[list[int]]:
    """Returns [layer, head] of every head in one quarter of [0, maximum], counted from 0.

    Args:
        head_entropy: [L, H], nats.
        maximum: upper end of the last quarter, nats.
        quarter: 0 (collapsed) to 3 (overloaded).

    Raises:
        ValueError: `maximum` is negative or not finite, or `quarter` is not 0..3.
    """
    if quarter not in range(4):
        raise ValueError(f"heads_in_quarter: quarter must be 0, 1, 2 or 3, got {quarter}")
    pairs: list[list[int]] = np.argwhere(_quarter_of(head_entropy, maximum) == quarter).tolist()
    return pairs


@cache
def student_quantile(freedom: float, tail: float) -> float:
    """Returns the quantile of Student's t that leaves `tail` above it.

    Args:
        freedom: degrees of freedom, above 0.
        tail: between 0 and 1.
    """
    with extra("report"):
        from scipy.special import stdtrit

    return float(-stdtrit(freedom, tail))


def mean_over_documents(
    sums: Sequence[float], tokens: Sequence[int], *, tail: float = 0.025
) -> tuple[float, float, float] | None:
    """Returns a mean per token and its interval over documents; None for fewer than two.

    The draw is of documents (files), not of tokens: with n_d tokens of sum s_d in document d of D,
    the mean r = sum s_d / sum n_d has the standard error sqrt(D / (D - 1) sum (s_d - r n_d)^2) /
    sum n_d (a ratio of sums over clusters), and Student's t of D - 1 degrees of freedom makes the
    interval.

    Args:
        sums: of each document: losses, or differences of two networks' losses, [D].
        tokens: of each, above 0, [D].
        tail: of Student's t beyond each end.
    """
    documents = len(sums)
    if documents < 2:
        return None
    values, counts = np.array(sums), np.array(tokens)
    mean = values.sum() / counts.sum()
    residuals = values - mean * counts
    error = np.sqrt(documents / (documents - 1) * np.sum(residuals**2)) / counts.sum()
    reach = student_quantile(documents - 1, tail) * error
    return float(mean), float(mean - reach), float(mean + reach)
