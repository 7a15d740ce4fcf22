"""From attention entropies to statistics; the figures are in `aero.analysis.figures`.

Numpy and matplotlib only.
"""

from aero.analysis.files import StoredAnalysis, read_analysis, write_analysis
from aero.analysis.statistics import (
    heads_in_quarter,
    layerwise_mean,
    nan_counts,
    quarter_shares,
)
from aero.analysis.summary import EntropyAccumulator, EntropySummary, summarize_entropies

__all__ = [
    "EntropyAccumulator",
    "EntropySummary",
    "StoredAnalysis",
    "heads_in_quarter",
    "layerwise_mean",
    "nan_counts",
    "quarter_shares",
    "read_analysis",
    "summarize_entropies",
    "write_analysis",
]
