"""Intervals by Student's t: of a mean over documents."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from aero.internals.errors import extra


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
